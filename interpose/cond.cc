// pthread_cond_*: both versions of the object, 48 bytes since glibc 2.3.2 and 8 bytes before.
//
// The queue of waiters is the parking lot's. A waiter publishes itself under the bucket lock before it unlocks the
// mutex, so a signal sent after that finds it; a wait has one winner, so a waiter whose time is over swallows no signal;
// a woken waiter does not touch the object again, so whoever broadcast may destroy and free it at once.
#include <cerrno>
#include <cstring>

#include "interpose/mutex.h"

namespace vthr {

namespace {

// The first word of either object; zero in all static initialisers. Bit 0: somebody may be waiting. Above: a count of
// waits begun.
//   any    -> even+2, bit 0 set    a waiter, under the bucket lock, as it is queued
//   bit 0 set -> the same, clear   a signaller that read the word, then looked into the bucket and found nobody, by
//                                  compare-and-swap: it fails if a wait began since the read
// So a clear bit 0 means that nobody is queued, but for those who queue later than the caller's look at the word. POSIX
// promises a wake-up to waiters that the caller knows of through the mutex; with it their store is seen.
// While threads may sleep in glibc's wait (kernel_waiters) the object is theirs, and every signal looks into the bucket.
std::atomic<uint32_t>& word_of(void* cond) { return atomic_at(static_cast<uint32_t*>(cond)); }
constexpr uint32_t kMayWait = 1;

// Wake-ups that a waiter could miss while it is out of the queue for a signal handler. Not in the object, which may be gone
// by then; objects share the counters, so a change may mean nothing. Counted before the look into the bucket and read
// under the bucket lock: a waiter that comes back either sees the count or is in the queue before the look.
constexpr size_t kSignalledSlots = 256;
std::atomic<uint32_t> signalled[kSignalledSlots];
std::atomic<uint32_t>& signalled_of(const void* cond) {
  return signalled[(reinterpret_cast<uintptr_t>(cond) * 0x9e3779b97f4a7c15ull) >> 56];
}

struct Wait {
  uint32_t seen;  // signalled_of(cond) before the wait
  bool again;     // it comes back from a signal handler
};

// Under the bucket lock.
bool begin_wait(const void* key, void* arg) {
  auto* w = static_cast<Wait*>(arg);
  if (w->again && signalled_of(key).load(std::memory_order_relaxed) != w->seen) return false;
  if (VTHR_UNLIKELY(kernel_waiters)) return true;
  std::atomic<uint32_t>& word = word_of(const_cast<void*>(key));
  uint32_t v = word.load(std::memory_order_relaxed);
  while (!word.compare_exchange_weak(v, (v + 2) | kMayWait, std::memory_order_release,
                                     std::memory_order_relaxed)) {
  }
  return true;
}

bool is_native(const pthread_cond_t* c) {
  constexpr unsigned kShared = 1;
  return ((__atomic_load_n(&c->__data.__wrefs, __ATOMIC_RELAXED) | static_cast<unsigned>(native_now())) &
          kShared) != 0;
}
clockid_t clock_of(const pthread_cond_t* c) {
  constexpr unsigned kMonotonic = 2;
  return (__atomic_load_n(&c->__data.__wrefs, __ATOMIC_RELAXED) & kMonotonic) != 0 ? CLOCK_MONOTONIC
                                                                                   : CLOCK_REALTIME;
}

// Signal handlers do not end the wait, as natively: back to the queue with the mutex held, unless a wake-up may have been
// missed meanwhile. Then, and when the time turns out not to be over, it is a spurious wake-up.
int wait(void* cond, pthread_mutex_t* m, const Until& until) {
  if (!until.valid()) return EINVAL;
  int err = mutex_check_wait(m);
  if (err != 0) return err;
  pthread_testcancel();
  DeferredCancel deferred;
  Wait w{signalled_of(cond).load(std::memory_order_relaxed), false};
  ParkArgs args;
  args.reason = Reason::cond;
  args.still = begin_wait;
  args.still_arg = &w;
  args.before_sleep = [](void* arg) { mutex_unlock_for_wait(static_cast<pthread_mutex_t*>(arg)); };
  args.before_arg = m;
  args.deadline = until.deadline();
  args.deaf = waits_deaf();
  args.point = true;
  for (;;) {
    Wake how = park_on(cond, args);
    if (how == Wake::invalid) return 0;
    err = mutex_lock_after_wait(m);
    if (err != 0) return err;
    if (how == Wake::timed_out) return until.over() ? ETIMEDOUT : 0;
    if (how == Wake::woken) return 0;
    if (how == Wake::cancelled) cancel_here();
    w.again = true;
  }
}

void signal(void* cond) {
  std::atomic<uint32_t>& word = word_of(cond);
  uint32_t v = word.load(std::memory_order_acquire);
  if ((v & kMayWait) == 0 && !kernel_waiters) return;
  signalled_of(cond).fetch_add(1, std::memory_order_relaxed);
  if (unpark_one(cond) != 0) {
    step_aside(cond);
  } else if (!kernel_waiters) {
    word.compare_exchange_strong(v, v & ~kMayWait, std::memory_order_relaxed);
  }
}

void broadcast(void* cond) {
  if ((word_of(cond).load(std::memory_order_acquire) & kMayWait) == 0 && !kernel_waiters) return;
  signalled_of(cond).fetch_add(1, std::memory_order_relaxed);
  // The bit stays for the next one to clear: the object may be gone by then.
  if (unpark_all(cond) != 0) step_aside(cond);
}

// Process-shared: glibc's code, which unlocks and locks the mutex itself.
template <class F>
int wait_native(pthread_mutex_t* m, F call) {
  if (native_now() == 0) mutex_make_native(m);
  return pinned("pthread_cond_wait", call);
}

using WaitFn = int (*)(pthread_cond_t*, pthread_mutex_t*);
using TimedWaitFn = int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*);
using InitFn = int (*)(pthread_cond_t*, const pthread_condattr_t*);
using CondFn = int (*)(pthread_cond_t*);

// Threads that sleep in glibc's wait since before the runtime ran: the upper bits of __wrefs count them; the old object
// points to a new one once somebody has waited.
bool has_strangers(const pthread_cond_t* c) {
  return VTHR_UNLIKELY(kernel_waiters) && __atomic_load_n(&c->__data.__wrefs, __ATOMIC_RELAXED) >> 3 != 0;
}
bool has_strangers_old(const pthread_cond_t* c) {
  return VTHR_UNLIKELY(kernel_waiters) && c->__data.__wseq.__value64 != 0;
}

}  // namespace

}  // namespace vthr

using namespace vthr;

// glibc's writes the object: zeros, and the bits for the clock and for sharing.
VTHR_EXPORT int cond_init_new(pthread_cond_t* c, const pthread_condattr_t* attr) {
  return REAL_AS(InitFn, cond_init_new)(c, attr);
}

// Nothing to wait for: woken waiters are done with the object.
VTHR_EXPORT int cond_destroy_new(pthread_cond_t* c) {
  return is_native(c) ? REAL_AS(CondFn, cond_destroy_new)(c) : 0;
}

VTHR_EXPORT int cond_wait_new(pthread_cond_t* c, pthread_mutex_t* m) {
  if (is_native(c)) return wait_native(m, [=] { return REAL_AS(WaitFn, cond_wait_new)(c, m); });
  return wait(c, m, Until{});
}

VTHR_EXPORT int cond_timedwait_new(pthread_cond_t* c, pthread_mutex_t* m, const timespec* abs) {
  if (is_native(c))
    return wait_native(m, [=] { return REAL_AS(TimedWaitFn, cond_timedwait_new)(c, m, abs); });
  return wait(c, m, Until{clock_of(c), abs});
}

VTHR_EXPORT int pthread_cond_clockwait(pthread_cond_t* c, pthread_mutex_t* m, clockid_t clock,
                                       const timespec* abs) {
  if (is_native(c)) return wait_native(m, [=] { return REAL(pthread_cond_clockwait)(c, m, clock, abs); });
  if (!lock_clock(clock)) return EINVAL;
  return wait(c, m, Until{clock, abs});
}

VTHR_EXPORT int cond_signal_new(pthread_cond_t* c) {
  if (is_native(c)) return REAL_AS(CondFn, cond_signal_new)(c);
  if (has_strangers(c)) REAL_AS(CondFn, cond_signal_new)(c);
  signal(c);
  return 0;
}

VTHR_EXPORT int cond_broadcast_new(pthread_cond_t* c) {
  if (is_native(c)) return REAL_AS(CondFn, cond_broadcast_new)(c);
  if (has_strangers(c)) REAL_AS(CondFn, cond_broadcast_new)(c);
  broadcast(c);
  return 0;
}

// The old object is one pointer wide; nothing behind it is ours. It knows neither clocks nor sharing.
VTHR_EXPORT int cond_init_old(pthread_cond_t* c, const pthread_condattr_t* attr) {
  if (native_now() != 0) return REAL_AS(InitFn, cond_init_old)(c, attr);
  memset(static_cast<void*>(c), 0, sizeof(void*));
  return 0;
}

VTHR_EXPORT int cond_destroy_old(pthread_cond_t* c) {
  return native_now() != 0 ? REAL_AS(CondFn, cond_destroy_old)(c) : 0;
}

VTHR_EXPORT int cond_wait_old(pthread_cond_t* c, pthread_mutex_t* m) {
  return native_now() != 0 ? REAL_AS(WaitFn, cond_wait_old)(c, m) : wait(c, m, Until{});
}

VTHR_EXPORT int cond_timedwait_old(pthread_cond_t* c, pthread_mutex_t* m, const timespec* abs) {
  return native_now() != 0 ? REAL_AS(TimedWaitFn, cond_timedwait_old)(c, m, abs)
                           : wait(c, m, Until{CLOCK_REALTIME, abs});
}

VTHR_EXPORT int cond_signal_old(pthread_cond_t* c) {
  if (native_now() != 0) return REAL_AS(CondFn, cond_signal_old)(c);
  if (has_strangers_old(c)) REAL_AS(CondFn, cond_signal_old)(c);
  signal(c);
  return 0;
}

VTHR_EXPORT int cond_broadcast_old(pthread_cond_t* c) {
  if (native_now() != 0) return REAL_AS(CondFn, cond_broadcast_old)(c);
  if (has_strangers_old(c)) REAL_AS(CondFn, cond_broadcast_old)(c);
  broadcast(c);
  return 0;
}

__asm__(".symver cond_init_new, pthread_cond_init@@GLIBC_2.3.2");
__asm__(".symver cond_destroy_new, pthread_cond_destroy@@GLIBC_2.3.2");
__asm__(".symver cond_wait_new, pthread_cond_wait@@GLIBC_2.3.2");
__asm__(".symver cond_timedwait_new, pthread_cond_timedwait@@GLIBC_2.3.2");
__asm__(".symver cond_signal_new, pthread_cond_signal@@GLIBC_2.3.2");
__asm__(".symver cond_broadcast_new, pthread_cond_broadcast@@GLIBC_2.3.2");
__asm__(".symver cond_init_old, pthread_cond_init@GLIBC_2.2.5");
__asm__(".symver cond_destroy_old, pthread_cond_destroy@GLIBC_2.2.5");
__asm__(".symver cond_wait_old, pthread_cond_wait@GLIBC_2.2.5");
__asm__(".symver cond_timedwait_old, pthread_cond_timedwait@GLIBC_2.2.5");
__asm__(".symver cond_signal_old, pthread_cond_signal@GLIBC_2.2.5");
__asm__(".symver cond_broadcast_old, pthread_cond_broadcast@GLIBC_2.2.5");
