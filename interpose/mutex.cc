// pthread_mutex_*: glibc's object and fast path, the parking lot behind it.
//
// Process-shared and robust mutexes are glibc's own: other processes and the kernel read them. Priority inheritance and
// protection of private mutexes mean nothing between fibers, and the kernel does not know a fiber's tid, so these are
// ordinary mutexes here.
#include "interpose/mutex.h"

#include <cerrno>
#include <climits>

namespace vthr {

int native_locks = ~0;
int native_all = 0;
bool kernel_waiters = false;

namespace {

// __kind: the type, then flags. Elision bits (lock elision is gone from glibc, its bits are not) are ignored.
enum Kind : int {
  kNormal = 0,
  kRecursive = 1,
  kErrorcheck = 2,
  kType = 3,  // mask; 3 itself is the adaptive type
  kRobust = 16,
  kInherit = 32,
  kProtect = 64,
  kElision = 256 | 512,
  kOurs = kType | kInherit | kProtect,  // any other bit, also of a destroyed mutex (-1): glibc decides
};

// __lock: bits 19 and up are the ceiling of a kProtect mutex and change only under it; the others:
//   kUnlocked  -> kHeld        lock, trylock (acquire)
//   kHeld      -> kUnlocked    unlock (release)
//   kHeld      -> kContended   a waiter, before it parks: the unlock must wake one
//   kUnlocked  -> kContended   a waiter that did not get it at once (acquire): others may still be parked
//   kContended -> kUnlocked    unlock (release), which then wakes one
//   kContended -> kYielding    the same when a turn is due: free, but newcomers step back once
//   kYielding  -> kContended   whoever takes it (acquire)
// (Any other value: held, taken by glibc's priority inheritance before the runtime ran.)
// Pairs: the unlocker's release with the next owner's acquire. No wake-up is lost: a waiter publishes itself under the
// bucket lock only while the word is kContended, and the unlocker changes that before it takes that lock.
// The unlocker does not touch the mutex after its release: the next owner may free it.
enum State : int { kUnlocked, kHeld, kContended, kYielding, kStateMask = (1 << 19) - 1 };
bool is_free(int v) { return (v & kStateMask) == kUnlocked || (v & kStateMask) == kYielding; }
int with_state(int v, int state) { return (v & ~kStateMask) | state; }

constexpr int kChanged = -1;  // the mutex became glibc's while the caller waited
constexpr int kSpins = 32;

std::atomic<int>& word_of(pthread_mutex_t* m) { return atomic_at(&m->__data.__lock); }
int kind_of(const pthread_mutex_t* m) {
  return __atomic_load_n(&m->__data.__kind, __ATOMIC_RELAXED) | native_now();
}
bool is_ours(int kind) { return (kind & ~(kOurs | kElision)) == 0; }
int owner_of(const pthread_mutex_t* m) { return __atomic_load_n(&m->__data.__owner, __ATOMIC_RELAXED); }
void set_owner(pthread_mutex_t* m, int tid) {
  atomic_at(&m->__data.__owner).store(tid, std::memory_order_relaxed);
}
void own(pthread_mutex_t* m, int tid, unsigned users = 1) {
  set_owner(m, tid);
  m->__data.__nusers += users;
}

bool try_word(std::atomic<int>& word) {
  int v = word.load(std::memory_order_relaxed);
  while (is_free(v)) {
    int to = with_state(v, (v & kStateMask) == kUnlocked ? kHeld : kContended);
    if (word.compare_exchange_weak(v, to, std::memory_order_acquire, std::memory_order_relaxed)) return true;
  }
  return false;
}

// A short critical section on another carrier ends sooner than a switch costs. Not with one carrier, where the owner
// cannot run meanwhile, nor behind others. __spins, which glibc uses for the same end, halves the effort each time it
// was in vain.
bool spin(pthread_mutex_t* m) {
  if (carrier_count < 2) return false;
  std::atomic<int>& word = word_of(m);
  auto& vain = atomic_at(&m->__data.__spins);
  short v = vain.load(std::memory_order_relaxed);
  for (int i = kSpins >> (v & 7); i > 0; i--) {
    int state = word.load(std::memory_order_relaxed) & kStateMask;
    if (state == kUnlocked) {
      if (!try_word(word)) break;
      if (v > 0) vain.store(static_cast<short>(v - 1), std::memory_order_relaxed);
      return true;
    }
    if (state != kHeld) return false;
    RealAtomics::pause();
  }
  if (v < 5) vain.store(static_cast<short>(v + 1), std::memory_order_relaxed);
  return false;
}

bool still_contended(const void* key, void*) {
  auto* m = static_cast<pthread_mutex_t*>(const_cast<void*>(key));
  return (word_of(m).load(std::memory_order_relaxed) & kStateMask) == kContended && is_ours(kind_of(m));
}
bool still_yielding(const void* key, void*) {
  auto* m = static_cast<pthread_mutex_t*>(const_cast<void*>(key));
  return (word_of(m).load(std::memory_order_relaxed) & kStateMask) == kYielding;
}

// Takes the word, waiting as long as `until` allows. 0, ETIMEDOUT, EINVAL, or kChanged.
VTHR_NOINLINE int lock_word_slow(pthread_mutex_t* m, const Until& until) {
  std::atomic<int>& word = word_of(m);
  if (spin(m)) return 0;
  ParkArgs args;
  args.reason = Reason::mutex;
  args.deaf = waits_deaf();
  int64_t deadline = kNever;
  bool timed = false, waited = false;
  for (;;) {
    int v = word.load(std::memory_order_relaxed);
    if ((v & kStateMask) == kYielding && !waited && until.valid()) {
      waited = true;
      args.still = still_yielding;
      args.deadline = now_ns() + kStepBack;
      park_uncancelled(m, args);
      continue;
    }
    if (is_free(v)) {
      if (word.compare_exchange_weak(v, with_state(v, kContended), std::memory_order_acquire,
                                     std::memory_order_relaxed))
        return 0;
      continue;
    }
    if (!is_ours(kind_of(m))) return kChanged;
    if (until.abs != nullptr && !timed) {
      if (!until.valid()) return EINVAL;
      deadline = until.deadline();
      timed = true;
    }
    if ((v & kStateMask) != kContended &&
        !word.compare_exchange_weak(v, with_state(v, kContended), std::memory_order_relaxed))
      continue;
    waited = true;
    args.still = still_contended;
    args.deadline = deadline;
    if (park_uncancelled(m, args) == Wake::timed_out) {
      if (until.over()) return ETIMEDOUT;
      deadline = until.deadline();
    }
  }
}

int lock_word(pthread_mutex_t* m, const Until& until) {
  int v = kUnlocked;
  if (VTHR_LIKELY(
          word_of(m).compare_exchange_strong(v, kHeld, std::memory_order_acquire, std::memory_order_relaxed)))
    return 0;
  return lock_word_slow(m, until);
}

// After the release. Where glibc's code may meet the word, which does not know kYielding, an unlocker that may leave its
// carrier gives the others their turn that way.
void wake_waiter(const void* m) {
  size_t woken = unpark_one(m);
  if (VTHR_LIKELY(!kernel_waiters)) return;
  if (woken == 0) {
    sys_futex_wake(m);
  } else if (Fiber* f = fiber_here(); f != nullptr && f->in_runtime.load(std::memory_order_relaxed) == 0) {
    step_aside(m);
  }
}

VTHR_NOINLINE void unlock_word_slow(pthread_mutex_t* m) {
  std::atomic<int>& word = word_of(m);
  int v = word.load(std::memory_order_relaxed), to = kUnlocked;
  if ((v & kStateMask) == kContended && !kernel_waiters && turn_is_due(m) && anybody_parked_on(m))
    to = kYielding;
  for (;;) {
    if (is_free(v)) return;  // a normal mutex that nobody holds: undefined, and harmless as in glibc
    bool contended = (v & kStateMask) == kContended;
    if (word.compare_exchange_weak(v, with_state(v, contended ? to : kUnlocked), std::memory_order_release,
                                   std::memory_order_relaxed)) {
      if (contended) wake_waiter(m);
      return;
    }
  }
}

void unlock_word(pthread_mutex_t* m) {
  int v = kHeld;
  if (VTHR_UNLIKELY(!word_of(m).compare_exchange_strong(v, kUnlocked, std::memory_order_release,
                                                        std::memory_order_relaxed)))
    unlock_word_slow(m);
}

// ---- mutexes that are glibc's own: a fiber that has to wait for one pins its worker ----

// The kernel compares the owner of robust and inheriting mutexes with its own tid, and other processes that of every
// type with an owner: a fiber is bound to a kernel thread before it takes one (DESIGN D11).
void bind_for(const pthread_mutex_t* m) {
  Fiber* f = fiber_here();
  int kind = kind_of(m);
  int type = kind & kType;
  if (f != nullptr && kind >= 0 &&
      ((kind & (kRobust | kInherit)) != 0 || type == kRecursive || type == kErrorcheck))
    bind_fiber(f);
}

int lock_native(pthread_mutex_t* m) {
  bind_for(m);
  if (fiber_here() == nullptr) return REAL(pthread_mutex_lock)(m);
  int r = REAL(pthread_mutex_trylock)(m);
  return r != EBUSY ? r : pinned("pthread_mutex_lock", [m] { return REAL(pthread_mutex_lock)(m); });
}
int lock_native(pthread_mutex_t* m, const Until& until) {
  if (until.abs == nullptr) return lock_native(m);
  bind_for(m);
  return pinned("pthread_mutex_clocklock",
                [m, &until] { return REAL(pthread_mutex_clocklock)(m, until.clock, until.abs); });
}

// ---- every kind of ours but the normal one ----

constexpr int kOwned = -2;
// Before `tid` takes the word: 0; kOwned, it has the mutex already and now once more; or an error.
int before_lock(pthread_mutex_t* m, int kind, int tid, bool trying) {
  int type = kind & kType;
  if (VTHR_LIKELY(owner_of(m) != tid) || type == kNormal || type == kType) return 0;
  if (type == kErrorcheck) return trying ? EBUSY : EDEADLK;
  if (m->__data.__count == UINT_MAX) return EAGAIN;
  m->__data.__count++;
  return kOwned;
}

// `users`: by how much __nusers changes.
int lock_any(pthread_mutex_t* m, const Until& until, unsigned users = 1) {
  int tid = self_tid();
  for (;;) {
    int kind = kind_of(m);
    if (!is_ours(kind)) return lock_native(m, until);
    int r = before_lock(m, kind, tid, false);
    if (r != 0) return r == kOwned ? 0 : r;
    r = lock_word(m, until);
    if (r == kChanged) continue;
    if (r != 0) return r;
    if ((kind & kType) == kRecursive) m->__data.__count = 1;
    own(m, tid, users);
    return 0;
  }
}

VTHR_NOINLINE int lock_slow(pthread_mutex_t* m) { return lock_any(m, Until{}); }

// EPERM: not the caller's to unlock. Owners of glibc's mutexes go by the tid in the TCB, which of a bound fiber is the kernel's.
int may_unlock(const pthread_mutex_t* m, int kind) {
  int type = kind & kType;
  bool owned = type == kRecursive || type == kErrorcheck || (kind & (kInherit | kRobust)) != 0;
  return owned && owner_of(m) != (is_ours(kind) ? self_tid() : tls_tid(tls_self())) ? EPERM : 0;
}

int unlock_any(pthread_mutex_t* m, int kind, unsigned users) {
  int r = may_unlock(m, kind);
  if (r != 0) return r;
  if ((kind & kType) == kRecursive && --m->__data.__count != 0) return 0;
  set_owner(m, 0);
  m->__data.__nusers -= users;
  unlock_word(m);
  return 0;
}

VTHR_NOINLINE int unlock_slow(pthread_mutex_t* m) {
  int kind = kind_of(m);
  return is_ours(kind) ? unlock_any(m, kind, 1) : REAL(pthread_mutex_unlock)(m);
}

// A normal mutex in our hands: what the two fast paths need to know.
bool is_plain(const pthread_mutex_t* m) {
  return ((__atomic_load_n(&m->__data.__kind, __ATOMIC_RELAXED) | native_locks) & ~kElision) == kNormal;
}

std::atomic<int64_t> turns[256];  // when the last turn was

}  // namespace

void locks_take_over(bool strangers) {
  kernel_waiters = strangers;
  native_locks = 0;
}

VTHR_NOINLINE int native_before_take_over() {
  // Looking glibc's functions up may call the program's malloc, which may lock: then ours serve, glibc's are not known yet.
  if (real_table[kRealCount - 1] == nullptr) return 0;
  if (native_all != 0 || !sched_running()) return ~0;
  locks_take_over(false);
  return 0;
}

bool turn_is_due(const void* key) {
  std::atomic<int64_t>& turn = turns[(reinterpret_cast<uintptr_t>(key) * 0x9e3779b97f4a7c15ull) >> 56];
  int64_t now = now_ns(), last = turn.load(std::memory_order_relaxed);
  return now - last >= kTurn && turn.compare_exchange_strong(last, now, std::memory_order_relaxed);
}

void step_aside(const void* key) {
  Fiber* f = fiber_here();
  if (f == nullptr || !turn_is_due(key)) return;
  enter(f);
  yield(f);
  leave(f);
}

int mutex_check_wait(const pthread_mutex_t* m) {
  int kind = kind_of(m);
  return kind < 0 ? EINVAL : may_unlock(m, kind);  // < 0: destroyed
}

void mutex_unlock_for_wait(pthread_mutex_t* m) {
  int kind = kind_of(m);
  if (is_ours(kind)) {
    unlock_any(m, kind, 0);
  } else {
    REAL(pthread_mutex_unlock)(m);
  }
}

int mutex_lock_after_wait(pthread_mutex_t* m) {
  return is_ours(kind_of(m)) ? lock_any(m, Until{}, 0) : lock_native(m);
}

void mutex_make_native(pthread_mutex_t* m) {
  int kind = kind_of(m);
  if (!is_ours(kind)) return;
  constexpr int kShared = 128;
  // With the holder's word at kContended glibc's unlock wakes; those who park here see the kind under the bucket lock.
  atomic_at(&m->__data.__kind).store((kind & ~(kInherit | kProtect)) | kShared, std::memory_order_seq_cst);
  word_of(m).store(kContended, std::memory_order_relaxed);
  unpark_all(m);
}

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT int pthread_mutex_init(pthread_mutex_t* m, const pthread_mutexattr_t* attr) {
  return REAL(pthread_mutex_init)(m, attr);
}

// Looks at __nusers, writes __kind.
VTHR_EXPORT int pthread_mutex_destroy(pthread_mutex_t* m) { return REAL(pthread_mutex_destroy)(m); }

VTHR_EXPORT int pthread_mutex_lock(pthread_mutex_t* m) {
  int v = kUnlocked;
  if (VTHR_UNLIKELY(!is_plain(m) || !word_of(m).compare_exchange_strong(v, kHeld, std::memory_order_acquire,
                                                                        std::memory_order_relaxed)))
    return lock_slow(m);
  own(m, self_tid());
  return 0;
}

VTHR_EXPORT int pthread_mutex_trylock(pthread_mutex_t* m) {
  int kind = kind_of(m);
  if (!is_ours(kind)) {
    bind_for(m);
    return REAL(pthread_mutex_trylock)(m);
  }
  int tid = self_tid(), r = before_lock(m, kind, tid, true);
  if (r != 0) return r == kOwned ? 0 : r;
  if (!try_word(word_of(m))) return EBUSY;
  if ((kind & kType) == kRecursive) m->__data.__count = 1;
  own(m, tid);
  return 0;
}

VTHR_EXPORT int pthread_mutex_clocklock(pthread_mutex_t* m, clockid_t clock, const timespec* abs) {
  if (!lock_clock(clock)) return EINVAL;
  return lock_any(m, Until{clock, abs});
}

VTHR_EXPORT int pthread_mutex_timedlock(pthread_mutex_t* m, const timespec* abs) {
  return lock_any(m, Until{CLOCK_REALTIME, abs});
}

VTHR_EXPORT int pthread_mutex_unlock(pthread_mutex_t* m) {
  if (VTHR_UNLIKELY(!is_plain(m))) return unlock_slow(m);
  set_owner(m, 0);
  m->__data.__nusers--;
  unlock_word(m);
  return 0;
}

// glibc's takes the word itself and wakes through the kernel, which does not know our waiters.
VTHR_EXPORT int pthread_mutex_setprioceiling(pthread_mutex_t* m, int ceiling, int* old) {
  int kind = kind_of(m);
  if (!is_ours(kind)) return REAL(pthread_mutex_setprioceiling)(m, ceiling, old);
  if ((kind & kProtect) == 0 || ceiling < sched_get_priority_min(SCHED_FIFO) ||
      ceiling > sched_get_priority_max(SCHED_FIFO))
    return EINVAL;
  int r = lock_any(m, Until{});
  if (r != 0) return r;
  std::atomic<int>& word = word_of(m);
  int v = word.load(std::memory_order_relaxed);
  while (!word.compare_exchange_weak(v, (ceiling << 19) | (v & kStateMask), std::memory_order_relaxed)) {
  }
  *old = static_cast<int>(static_cast<unsigned>(v) >> 19);
  return unlock_any(m, kind, 1);
}

VTHR_ALIAS(__pthread_mutex_lock, pthread_mutex_lock);
VTHR_ALIAS(__pthread_mutex_trylock, pthread_mutex_trylock);
VTHR_ALIAS(__pthread_mutex_unlock, pthread_mutex_unlock);
