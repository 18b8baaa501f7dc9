// What every hook asks first: for whom does it act?
#pragma once
#include <cerrno>

#include "interpose/real.h"
#include "runtime/runtime.h"

namespace vthr {

// The fiber to act for; nullptr: not started, foreign thread, scheduler, around vfork, or a raw forked child. Then the
// hook calls REAL(name), except locks, which foreign threads share with fibers (DESIGN D2).
//   Fiber* f = fiber_here();

// -errno as libc returns it: sets errno and gives -1.
inline long libc_result(long r) {
  if (__builtin_expect(r >= 0 || r < -4095, 1)) return r;
  errno = static_cast<int>(-r);
  return -1;
}

// Marks a call that a fiber runs natively on its worker: the pin report names it even where /proc is silent.
class NativeCall {
 public:
  NativeCall(Fiber* f, const char* name) : fiber_(f) {
    fiber_->native_call = name;
    count(counters.native_calls);
  }
  ~NativeCall() { fiber_->native_call = nullptr; }
  NativeCall(const NativeCall&) = delete;
  NativeCall& operator=(const NativeCall&) = delete;

 private:
  Fiber* fiber_;
};

// Absolute time of `clock` -> deadline on CLOCK_MONOTONIC in ns. Any thread.
int64_t deadline_of(clockid_t clock, const timespec* abs);
// Relative timespec -> deadline; kNever for nullptr.
int64_t deadline_in(const timespec* rel);
inline bool valid_nsec(const timespec* t) { return t->tv_nsec >= 0 && t->tv_nsec < 1000000000; }

}  // namespace vthr
