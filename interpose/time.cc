// Sleeping and yielding, and the times of all other hooks as deadlines.
#include <sched.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>
#include <cerrno>

#include "interpose/blocking.h"
#include "interpose/entries.h"

extern "C" {
int __nanosleep(const timespec* req, timespec* rem);
int __sched_yield(void) noexcept;
// The header gives this name to sched_yield; old binaries still refer to it.
__attribute__((visibility("default"))) int old_pthread_yield(void) noexcept __asm__("pthread_yield");
}

namespace vthr {

namespace {

int64_t ns_of(const timespec* t) {
  if (t->tv_sec < 0) return 0;
  return t->tv_sec >= kNever / kSecond ? kNever : t->tv_sec * kSecond + t->tv_nsec;
}

bool valid_time(const timespec* t) { return t->tv_sec >= 0 && valid_nsec(t); }

timespec span(int64_t ns) { return {ns / kSecond, ns % kSecond}; }

void let_others_run(Fiber* f) {
  enter(f);
  yield(f);
  leave(f);
}

// Until the deadline: 0, or -EINTR when a handler ran (no sleep ever restarts), or another -errno.
long sleep_until(Fiber* f, int64_t deadline) {
  uint32_t taken = handlers_run(f);
  for (;;) {
    long r = op_sleep(f, Reason::sleep, deadline);
    if (r == -ECANCELED) cancel_here();
    if (r == -EINTR || r == -ECANCELED) {
      if (handlers_run(f) != taken) return -EINTR;
    } else if (r != 0 || now_ns() >= deadline) {
      return r;
    }
  }
}

long sleep_relative(Fiber* f, const timespec* req, timespec* rem) {
  if (VTHR_UNLIKELY(!readable(req))) return -EFAULT;
  if (!valid_time(req)) return -EINVAL;
  int64_t ns = ns_of(req);
  if (ns == 0) {
    let_others_run(f);
    return 0;
  }
  int64_t deadline = deadline_after(now_ns(), ns);
  long r = sleep_until(f, deadline);
  if (r != -EINTR) return r;
  if (deadline == kNever) {
    if (rem != nullptr) *rem = *req;
    return r;
  }
  int64_t left = deadline - now_ns();
  if (left <= 0) return 0;  // as the kernel: the time is over, so it was not cut short
  if (rem != nullptr) *rem = span(left);
  return r;
}

long sleep_absolute(Fiber* f, clockid_t clock, const timespec* at) {
  if (VTHR_UNLIKELY(!readable(at))) return -EFAULT;
  if (!valid_time(at)) return -EINVAL;
  for (bool first = true;; first = false) {
    int64_t deadline = deadline_of(clock, at);
    if (deadline <= now_ns()) {
      if (first) let_others_run(f);
      return 0;
    }
    // the wall clock may have been set back meanwhile: look again
    long r = sleep_until(f, deadline);
    if (r != 0) return r;
  }
}

// Clocks that a timer of ours cannot follow.
long sleep_natively(Fiber* f, clockid_t clock, int flags, const timespec* req, timespec* rem) {
  uint32_t taken = handlers_run(f);
  timespec left{};
  const timespec* want = req;
  for (;;) {
    long r;
    {
      NativeCall mark(f, "clock_nanosleep");
      AsyncCancel async(f);
      r = sys_call(SYS_clock_nanosleep, clock, flags, sys_arg(want), sys_arg(&left));
    }
    if (r != -EINTR) return r;
    if (handlers_run(f) != taken) {
      if (rem != nullptr && (flags & TIMER_ABSTIME) == 0) *rem = left;
      return r;
    }
    if ((flags & TIMER_ABSTIME) == 0) want = &left;
  }
}

long sleep_on(Fiber* f, clockid_t clock, int flags, const timespec* req, timespec* rem) {
  if (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME) return sleep_natively(f, clock, flags, req, rem);
  return (flags & TIMER_ABSTIME) != 0 ? sleep_absolute(f, clock, req) : sleep_relative(f, req, rem);
}

}  // namespace

int64_t deadline_of(clockid_t clock, const timespec* abs) {
  int64_t at = ns_of(abs);
  if (clock == CLOCK_MONOTONIC || at == kNever) return at;
  timespec t{};
  clock_gettime(clock, &t);
  // the monotonic clock is read last: a deadline may be late by that much, never early
  int64_t ahead = at - ns_of(&t), now = now_ns();
  return ahead <= 0 ? now + ahead : deadline_after(now, ahead);
}

int64_t deadline_in(const timespec* rel) {
  if (rel == nullptr) return kNever;
  return deadline_after(now_ns(), ns_of(rel));
}

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT int nanosleep(const timespec* req, timespec* rem) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(nanosleep)(req, rem);
  return static_cast<int>(libc_result(sleep_relative(f, req, rem)));
}

VTHR_EXPORT int __nanosleep(const timespec* req, timespec* rem) { return nanosleep(req, rem); }

VTHR_EXPORT int clock_nanosleep(clockid_t clock, int flags, const timespec* req, timespec* rem) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(clock_nanosleep)(clock, flags, req, rem);
  if (clock == CLOCK_THREAD_CPUTIME_ID) return EINVAL;
  return static_cast<int>(-sleep_on(f, clock, flags, req, rem));
}

VTHR_EXPORT unsigned sleep(unsigned seconds) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(sleep)(seconds);
  timespec t{static_cast<time_t>(seconds), 0};
  long r = sleep_relative(f, &t, &t);
  if (r == 0) return 0;
  libc_result(r);
  return static_cast<unsigned>(t.tv_sec);
}

VTHR_EXPORT int usleep(useconds_t us) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(usleep)(us);
  timespec t = span(us * kMicro);
  return static_cast<int>(libc_result(sleep_relative(f, &t, nullptr)));
}

VTHR_EXPORT int sched_yield(void) noexcept {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(sched_yield)();
  let_others_run(f);
  return 0;
}

VTHR_EXPORT int __sched_yield(void) noexcept { return sched_yield(); }

int old_pthread_yield(void) noexcept { return sched_yield(); }

VTHR_EXPORT int thrd_sleep(const timespec* req, timespec* rem) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(thrd_sleep)(req, rem);
  long r = sleep_relative(f, req, rem);
  return r == 0 ? 0 : r == -EINTR ? -1 : -2;
}

VTHR_EXPORT void thrd_yield(void) { sched_yield(); }

VTHR_HOOK_NAME(clock_nanosleep);
VTHR_HOOK_NAME(sched_yield);
