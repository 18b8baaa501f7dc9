// sem_*: glibc's object, the parking lot behind it. Process-shared and named semaphores are glibc's own.
#include <semaphore.h>
#include <cerrno>
#include <climits>

#include "interpose/mutex.h"

namespace vthr {

namespace {

// glibc's object, 16 of sem_t's 32 bytes.
struct Sem {
  std::atomic<uint64_t> data;
  int shared;  // 0: of this process only
  std::atomic<uint32_t> yielding;
};
static_assert(sizeof(Sem) <= sizeof(sem_t));

// data: the value in the low half, where sem_getvalue reads it; above it the number of waiters.
//   value + 1                 sem_post (release); it then wakes one if there were waiters in the same read
//   value - 1                 sem_trywait, or a sem_wait that need not wait (acquire)
//   waiters + 1               a waiter, once, before it parks
//   value - 1 and waiters - 1 a waiter that got it (acquire), in one step: after it the semaphore may be freed
//   waiters - 1               a waiter that gives up
// Pairs: the post's release with the taker's acquire. No wake-up is lost: a waiter publishes itself under the bucket
// lock only while the value is 0, and a post raises it before it takes that lock.
constexpr uint64_t kWaiter = 1ull << 32;
constexpr uint32_t kMostValue = INT_MAX;  // SEM_VALUE_MAX
bool has_value(uint64_t d) { return static_cast<uint32_t>(d) != 0; }

// yielding (glibc's padding): a turn is due, newcomers step back once (mutex.h). Only a hint: a waiter that got it or
// stepped back clears it, so garbage costs one kStepBack.

Sem* of(sem_t* s) { return reinterpret_cast<Sem*>(s); }
bool is_native(const Sem* s) { return (__atomic_load_n(&s->shared, __ATOMIC_RELAXED) | native_now()) != 0; }

bool try_take(Sem* s, uint64_t also = 0) {
  uint64_t d = s->data.load(std::memory_order_relaxed);
  while (has_value(d)) {
    if (s->data.compare_exchange_weak(d, d - 1 - also, std::memory_order_acquire, std::memory_order_relaxed))
      return true;
  }
  return false;
}

void step_back(Sem* s) {
  ParkArgs args;
  args.reason = Reason::sem;
  args.deadline = now_ns() + kStepBack;
  args.deaf = waits_deaf();
  park_on(s, args);
  s->yielding.store(0, std::memory_order_relaxed);
}

// 0 or an error number.
VTHR_NOINLINE int wait_slow(Sem* s, const Until& until) {
  DeferredCancel deferred;
  s->data.fetch_add(kWaiter, std::memory_order_relaxed);
  if (s->yielding.load(std::memory_order_relaxed) != 0) step_back(s);
  ParkArgs args;
  args.reason = Reason::sem;
  args.still = [](const void* key, void*) {
    return !has_value(static_cast<const Sem*>(key)->data.load(std::memory_order_relaxed));
  };
  args.point = true;
  Fiber* f = fiber_here();
  int err = 0;
  while (err == 0) {
    if (try_take(s, kWaiter)) {
      s->yielding.store(0, std::memory_order_relaxed);
      return 0;
    }
    args.deadline = until.deadline();
    switch (park_on(s, args)) {
      case Wake::timed_out:
        if (until.over()) err = ETIMEDOUT;
        break;
      case Wake::interrupted:
        // As the kernel does it, whatever signal(7) says of sem_timedwait: a futex call with a time-out never restarts.
        // It has done so for a foreign thread already.
        if (f == nullptr || until.abs != nullptr || !signal_restarts(f)) err = EINTR;
        break;
      case Wake::cancelled:
        s->data.fetch_sub(kWaiter, std::memory_order_relaxed);
        cancel_here();
        s->data.fetch_add(kWaiter, std::memory_order_relaxed);
        break;
      case Wake::woken:
      case Wake::invalid:
        break;
    }
  }
  s->data.fetch_sub(kWaiter, std::memory_order_relaxed);
  return err;
}

// `point`: a cancellation point also when it need not wait. glibc's sem_clockwait is not.
int wait(Sem* s, const Until& until, bool point = true) {
  int err = EINVAL;
  if (until.valid()) {
    if (point) pthread_testcancel();
    if (VTHR_LIKELY(s->yielding.load(std::memory_order_relaxed) == 0) && try_take(s)) return 0;
    err = wait_slow(s, until);
  }
  if (err == 0) return 0;
  errno = err;
  return -1;
}

}  // namespace

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT int sem_init(sem_t* s, int shared, unsigned value) {
  int r = REAL(sem_init)(s, shared, value);
  if (r == 0) of(s)->yielding.store(0, std::memory_order_relaxed);
  return r;
}

VTHR_EXPORT int sem_destroy(sem_t* s) { return REAL(sem_destroy)(s); }

VTHR_EXPORT int sem_wait(sem_t* s) {
  if (is_native(of(s))) return pinned("sem_wait", [s] { return REAL(sem_wait)(s); });
  return wait(of(s), Until{});
}

VTHR_EXPORT int sem_timedwait(sem_t* s, const timespec* abs) {
  if (is_native(of(s))) return pinned("sem_timedwait", [=] { return REAL(sem_timedwait)(s, abs); });
  return wait(of(s), Until{CLOCK_REALTIME, abs});
}

VTHR_EXPORT int sem_clockwait(sem_t* s, clockid_t clock, const timespec* abs) {
  if (!lock_clock(clock)) {
    errno = EINVAL;
    return -1;
  }
  if (is_native(of(s))) return pinned("sem_clockwait", [=] { return REAL(sem_clockwait)(s, clock, abs); });
  return wait(of(s), Until{clock, abs}, false);
}

VTHR_EXPORT int sem_trywait(sem_t* s) {
  if (try_take(of(s))) return 0;
  errno = EAGAIN;
  return -1;
}

// Async-signal-safe.
VTHR_EXPORT int sem_post(sem_t* s) {
  Sem* sem = of(s);
  if (is_native(sem)) return REAL(sem_post)(s);
  uint64_t d = sem->data.load(std::memory_order_relaxed);
  if (d >= kWaiter && turn_is_due(sem)) sem->yielding.store(1, std::memory_order_relaxed);
  do {
    if (static_cast<uint32_t>(d) == kMostValue) {
      errno = EOVERFLOW;
      return -1;
    }
  } while (!sem->data.compare_exchange_weak(d, d + 1, std::memory_order_release, std::memory_order_relaxed));
  if (d >= kWaiter && unpark_one(sem) == 0 && kernel_waiters) sys_futex_wake(sem);
  return 0;
}
