// The runtime in the test's process, without hooks: starts it as interpose/init.cc does and makes fibers as
// interpose/thread.cc does, the shortest way.
#pragma once
#include <dirent.h>
#include <pthread.h>
#include <string.h>

#include <memory>

#include "runtime/inspect.h"
#include "runtime/op.h"
#include "runtime/options.h"
#include "runtime/parking.h"
#include "runtime/runtime.h"
#include "tests/unit/support.h"

namespace vthr {

inline int make_real_thread(void* (*start)(void*), void* arg) {
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attr, 256 << 10);
  uint64_t old =
      sys_set_sigmask(~(sig_bit(kSigRuntime) | sig_bit(kSigSetxid) | sig_bit(SIGSEGV) | sig_bit(SIGBUS)));
  pthread_t id;
  int err = pthread_create(&id, &attr, start, arg);
  sys_set_sigmask(old);
  pthread_attr_destroy(&attr);
  return err;
}

// nullptr, or why the runtime does not start. Once in a process; again in a forked child.
inline const char* start_runtime(int carriers) {
  if (sched_running()) return nullptr;
  if (const char* missing = start_tls()) return missing;
  options.carriers = carriers;
  const char* io = getenv("VTHR_IO");
  if (io != nullptr && strcmp(io, "epoll") == 0) options.io = kIoEpoll;
  hooks.deliver_signals = [](Fiber*) {};
  hooks.fiber_ended = [](Fiber* f) { unpark_all(&f->life); };
  hooks.last_fiber_ended = [] {};
  hooks.make_thread = make_real_thread;
  return sched_start();
}

using Body = std::function<void(Fiber*)>;

inline void fiber_main(Fiber* f) {
  leave(f);
  if (kFsMoves) tls_first_run();
  auto* body = static_cast<Body*>(f->arg);
  (*body)(f);
  delete body;
  if (kFsMoves) {
    tls_run_destructors();
    tls_recycle();
  }
  enter(f);
  exit_fiber(f);
}

// nullptr when no fiber can be made.
inline Fiber* spawn(Body body, bool detached = false, size_t stack = 64 << 10) {
  FiberAttr attr;
  // sanitizers have much TLS, which lies in the stack's size too, and large frames
  attr.stack_bytes = kTsan || kAsan ? 4 * stack + round_up(tls_block_size(), kPage) : stack;
  attr.guard_bytes = kPage;
  attr.detached = detached;
  Fiber* f;
  if (fiber_make(attr, fiber_main, &f) != 0) return nullptr;
  f->arg = new Body(std::move(body));
  f->sigmask.store(0, std::memory_order_relaxed);
  context_make(
      &f->ctx, f->slot.record, f->stack_bytes,
      [](void* p) { static_cast<Fiber*>(p)->main(static_cast<Fiber*>(p)); }, f);
  if (launch(f) != 0) return nullptr;
  return f;
}

// Waits for the end of a fiber and frees it. From fibers and foreign threads.
inline void join(Fiber* f) {
  ParkArgs args;
  args.reason = Reason::join;
  args.still = [](const void* key, void*) {
    return static_cast<const std::atomic<uint32_t>*>(key)->load(std::memory_order_acquire) != kEnded;
  };
  while (f->life.load(std::memory_order_acquire) != kEnded) park_on(&f->life, args);
  fiber_free(f);
}

// Several fibers, joined at the end of the scope.
class Fibers {
 public:
  ~Fibers() { join_all(); }
  Fiber* add(Body body) {
    Fiber* f = spawn(std::move(body));
    EXPECT_NE(f, nullptr);
    if (f != nullptr) fibers_.push_back(f);
    return f;
  }
  void join_all() {
    for (Fiber* f : fibers_) join(f);
    fibers_.clear();
  }

 private:
  std::vector<Fiber*> fibers_;
};

inline void sleep_for(Fiber* f, int64_t ns) { op_sleep(f, Reason::sleep, now_ns() + ns); }
inline void yield_now(Fiber* f) {
  enter(f);
  yield(f);
  leave(f);
}
// Blocks the worker in the kernel, as an inline system call would.
inline long block_raw(int64_t ns) {
  timespec ts{ns / kSecond, ns % kSecond};
  return sys_call(SYS_nanosleep, sys_arg(&ts));
}
inline void burn(int64_t ns) {
  for (int64_t end = now_ns() + ns; now_ns() < end;) __builtin_ia32_pause();
}
inline int kernel_threads() {
  int n = 0;
  DIR* d = opendir("/proc/self/task");
  while (dirent* e = readdir(d)) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}
inline uint64_t value(const std::atomic<uint64_t>& counter) { return counter.load(); }

// A semaphore as the hooks build one.
class Gate {
 public:
  void wait() {
    for (;;) {
      int v = value_.load();
      while (v > 0) {
        if (value_.compare_exchange_weak(v, v - 1)) return;
      }
      ParkArgs args;
      args.reason = Reason::sem;
      args.still = [](const void* key, void*) {
        return static_cast<const std::atomic<int>*>(key)->load() <= 0;
      };
      park_on(&value_, args);
    }
  }
  void post() {
    value_.fetch_add(1);
    unpark_one(&value_);
  }

 private:
  std::atomic<int> value_{0};
};

// With `Carriers` carriers; skips where the runtime does not start.
template <int Carriers>
class RuntimeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!sched_running()) options.pin = kPinOff;  // sysmon reads it
    const char* why = start_runtime(Carriers);
    if (why != nullptr) GTEST_SKIP() << why;
    ASSERT_EQ(carrier_count, Carriers);
  }
};

}  // namespace vthr
