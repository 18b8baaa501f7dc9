// What the lock hooks share: who calls, until when, whether glibc's own code must do it, and fairness.
#pragma once
#include <pthread.h>

#include "interpose/enter.h"
#include "interpose/thread.h"

// A second exported name of `target`.
#define VTHR_ALIAS(name, target) \
  extern "C" __attribute__((visibility("default"), alias(#target), copy(target))) decltype(target) name

namespace vthr {

// A word inside an object of the program that has a glibc type.
template <class T>
inline std::atomic<T>& atomic_at(T* p) {
  return *reinterpret_cast<std::atomic<T>*>(p);
}

// The caller's id as owner words hold it: of the fiber, or of the kernel thread; in a child that forked raw, what
// glibc would say. Any thread.
inline int self_tid() {
  Fiber* f =
      current;  // a bound fiber's TCB holds the kernel's tid, for glibc; owners of ours go by the fiber's
  return f != nullptr ? f->tid : tls_tid(tls_self());
}

// Who does it. Until the runtime runs, and for good where it never does, mutexes, condition variables and semaphores are
// wholly glibc's: its code costs what it costs natively and knows how to cancel real threads. Their states at rest, and
// of a mutex also while it is held, mean the same to both. Then our code takes over, for ever: a forked child goes on
// with objects in our states.
// Read-write locks, barriers and once do not have states in common with glibc's; they are ours from the first use.
extern int native_locks;  // all ones until our code took over, then 0
extern int native_all;    // for the second sort: all ones if the library stays out of this process, else 0
// The runtime runs now. `strangers`: other threads exist already, which may sleep in glibc's locks. Without this call the
// first lock operation after the start does it.
void locks_take_over(bool strangers);
// The constructor only: the library stays out of this process.
inline void locks_stay_native() { native_all = ~0; }
// There are strangers: who finds nobody to wake in the parking lot asks the kernel.
extern bool kernel_waiters;
int native_before_take_over();
// Bits to be or'ed into those of an object that choose between our code (0) and glibc's.
inline int native_now() { return VTHR_LIKELY(native_locks == 0) ? 0 : native_before_take_over(); }

// A signal handler runs during the wait of a fiber only if the wait ends for it, whatever the call: a thread of the
// program may be stopped by a signal (a collector's) while it waits for a mutex. So the waits of fibers are never deaf,
// and calls that return no EINTR wait again. A foreign thread runs handlers inside its futex call.
inline bool waits_deaf() { return fiber_here() == nullptr; }

// park_on for calls that are no cancellation points: a pending cancellation ends the wait, once; the next ones are deaf.
inline Wake park_uncancelled(const void* key, ParkArgs& args) {
  Wake how = park_on(key, args);
  if (VTHR_UNLIKELY(how == Wake::cancelled)) args.deaf = true;
  return how;
}

// Waits that are cancellation points are left by a deferred cancellation only, once their state is in order again, also
// when the thread allows asynchronous ones.
class DeferredCancel {
 public:
  DeferredCancel() : word_(tls_cancelhandling(tls_self())) {
    if (VTHR_UNLIKELY((__atomic_load_n(word_, __ATOMIC_RELAXED) & kCancelAsync) != 0)) {
      __atomic_fetch_and(word_, ~kCancelAsync, __ATOMIC_SEQ_CST);
      was_async_ = true;
    }
  }
  ~DeferredCancel() {
    if (VTHR_UNLIKELY(was_async_)) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
  }
  DeferredCancel(const DeferredCancel&) = delete;
  DeferredCancel& operator=(const DeferredCancel&) = delete;

 private:
  int* word_;
  bool was_async_ = false;
};

inline bool lock_clock(clockid_t c) { return c == CLOCK_REALTIME || c == CLOCK_MONOTONIC; }

// Until when a call waits: a time on one of the two clocks, or (abs nullptr) for ever.
struct Until {
  clockid_t clock = CLOCK_MONOTONIC;
  const timespec* abs = nullptr;

  bool valid() const { return abs == nullptr || valid_nsec(abs); }
  int64_t deadline() const { return abs == nullptr ? kNever : deadline_of(clock, abs); }
  // Asked after a time-out: waits run on the monotonic clock, and the real-time clock may have been set back or slewed.
  bool over() const {
    if (abs == nullptr) return false;
    timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec != abs->tv_sec ? now.tv_sec > abs->tv_sec : now.tv_nsec >= abs->tv_nsec;
  }
};

// Fairness. A woken waiter competes with newcomers for a free lock, and with fibers it can lose for ever: a thread that
// sleeps inside its critical section and locks again at once never leaves the carrier between unlock and lock. So once in
// kTurn for each lock an unlock that wakes somebody marks the lock, and a newcomer that finds it free but marked steps
// back once, for at most kStepBack, before it competes. Nobody owns anything meanwhile, so nothing can be lost.
constexpr int64_t kTurn = kMilli, kStepBack = 200 * kMicro;
// Is it time for the object at `key`? If so, not again for kTurn. Any thread.
bool turn_is_due(const void* key);
// For objects whose use after the wake-up the program decides (futex, condition variable): a fiber that woke somebody lets
// others run when the turn is due.
void step_aside(const void* key);

// A call of glibc's own code that may block: a fiber pins its worker meanwhile.
template <class F>
inline auto pinned(const char* name, F call) -> decltype(call()) {
  Fiber* f = fiber_here();
  if (f == nullptr) return call();
  NativeCall mark(f, name);
  return call();
}

// mutex.cc, for pthread_cond_wait. As in glibc a wait gives up one level of a recursive mutex, and the waiter stays
// counted as a user, so that destroying the mutex is EBUSY meanwhile.
int mutex_check_wait(const pthread_mutex_t* m);  // 0; EPERM or EINVAL when the caller may not wait with it
void mutex_unlock_for_wait(pthread_mutex_t* m);  // never blocks, no switch: entered fibers too
int mutex_lock_after_wait(pthread_mutex_t* m);   // 0, or EOWNERDEAD and the like
// From now on glibc's code handles m, which the caller holds: it is used with a process-shared condition variable.
void mutex_make_native(pthread_mutex_t* m);

}  // namespace vthr

// cond.cc, by their names without a version.
extern "C" {
int cond_init_new(pthread_cond_t* c, const pthread_condattr_t* attr);
int cond_destroy_new(pthread_cond_t* c);
int cond_wait_new(pthread_cond_t* c, pthread_mutex_t* m);
int cond_timedwait_new(pthread_cond_t* c, pthread_mutex_t* m, const timespec* abs);
int cond_signal_new(pthread_cond_t* c);
int cond_broadcast_new(pthread_cond_t* c);
}
