#include "runtime/parking.h"

#include <cerrno>

#include "runtime/admission.h"
#include "runtime/sched.h"
#include "runtime/sys.h"
#include "runtime/tls.h"

namespace vthr {

namespace {

struct ByScheduler {
  static void unpark(Fiber* f) { vthr::unpark(f); }
};
BucketsT<RealAtomics, ByScheduler, 12, 64> buckets;

// While the caller holds a bucket lock no handler of the program may run on its thread: it could want the same lock.
// A fiber says so by in_runtime (and owns its carrier if it can, so that what it wakes is queued locally); a foreign
// thread blocks its signals.
class Quiet {
 public:
  Quiet() : fiber_(current) {
    if (fiber_ != nullptr) {
      if (fiber_->in_runtime.load(std::memory_order_relaxed) != 0) return;
      mine_ = true;
      fiber_->in_runtime.store(1, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      uint32_t s = kUser;
      entered_ = fiber_->worker.load(std::memory_order_relaxed)
                     ->state.compare_exchange_strong(s, kRuntime, std::memory_order_acq_rel);
    } else if (this_worker == nullptr) {
      mine_ = true;
      old_mask_ = sys_block_signals(~(sig_bit(kSigRuntime) | sig_bit(kSigSetxid)));
    }
  }
  ~Quiet() {
    if (!mine_) return;
    if (fiber_ == nullptr) {
      sys_set_sigmask(old_mask_);
    } else if (entered_) {
      leave(fiber_);
    } else {
      std::atomic_signal_fence(std::memory_order_seq_cst);
      fiber_->in_runtime.store(0, std::memory_order_relaxed);
    }
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  Fiber* fiber_;
  bool mine_ = false, entered_ = false;
  uint64_t old_mask_ = 0;
};

Wake wake_of(WaitWord::State s) {
  switch (s) {
    case WaitWord::timed_out:
      return Wake::timed_out;
    case WaitWord::interrupted:
      return Wake::interrupted;
    case WaitWord::cancelled:
      return Wake::cancelled;
    default:
      return Wake::woken;
  }
}

Wake park_fiber(Fiber* f, const void* key, const ParkArgs& args) {
  enter(f);
  WaitNode* n = &f->node;
  n->fiber = f;
  n->word = &f->wait;
  n->ticket = f->wait.begin(args.deaf ? WaitWord::waiting_deaf : WaitWord::waiting);
  if (!buckets.publish(n, key, args.tag, args.still, args.still_arg)) {
    f->wait.finish();
    leave(f);
    return Wake::invalid;
  }
  if (args.before_sleep != nullptr) args.before_sleep(args.before_arg);
  if (args.deadline != kNever && !arm_timer(f, n->ticket, args.deadline) &&
      f->wait.end(n->ticket, WaitWord::timed_out)) {
    f->park.unpark();  // no memory for a timer: the wait ends at once, as with a time-out of zero
  }
  if (!args.deaf) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    bool signal =
        (f->pending.load(std::memory_order_relaxed) & ~f->sigmask.load(std::memory_order_relaxed)) != 0;
    if (VTHR_UNLIKELY(signal || cancel_due(f)) &&
        f->wait.end(n->ticket, signal ? WaitWord::interrupted : WaitWord::cancelled))
      f->park.unpark();
  }
  park(f, args.reason, key);
  Wake how = wake_of(f->wait.finish());
  if (args.deadline != kNever) TimerHeap::disarm(&f->timer);
  if (how != Wake::woken) buckets.withdraw(n);
  if (how == Wake::woken) f->hold_since = 0;
  leave(f);
  return how;
}

// Waits of foreign threads that a cancellation may end, so that it finds them. Under `points_lock`, which is also what
// keeps a waiter and its word there while a canceller ends the wait.
struct Point : ListNode {
  void* tcb;
  WaitWord* word;
  uint64_t ticket;
};
Lock points_lock;
List points;

// Pairs: the waiter links itself, then looks at its cancelhandling word, both under the lock; the canceller has changed
// that word before it takes the lock: one of the two sees the other.
class AtPoint {
 public:
  AtPoint(WaitWord* word, uint64_t ticket, bool is_point) : is_point_(is_point) {
    if (!is_point) return;
    point_.tcb = tls_self();
    point_.word = word;
    point_.ticket = ticket;
    Quiet quiet;
    Locked hold(points_lock);
    points.push_back(&point_);
    int bits = __atomic_load_n(tls_cancelhandling(point_.tcb), __ATOMIC_SEQ_CST);
    if ((bits & (kCancelDisabled | kCanceled | kExiting)) == kCanceled)
      word->end(ticket, WaitWord::cancelled);
  }
  ~AtPoint() {
    if (!is_point_) return;
    Quiet quiet;
    Locked hold(points_lock);
    List::remove(&point_);
  }
  AtPoint(const AtPoint&) = delete;
  AtPoint& operator=(const AtPoint&) = delete;

 private:
  Point point_;
  bool is_point_;
};

WaitWord::State sleep_foreign(WaitWord& word, const WaitNode& n, const ParkArgs& args) {
  AtPoint at_point(&word, n.ticket, args.point);
  return word.sleep(n.ticket, [&] {
    int64_t left = -1;
    if (args.deadline != kNever) {
      left = args.deadline - now_ns();
      if (left <= 0) return WaitWord::timed_out;
    }
    long r = sys_futex_wait(word.address(), static_cast<uint32_t>(n.ticket), left);
    return r == -EINTR && !args.deaf ? WaitWord::interrupted : WaitWord::waiting;
  });
}

Wake park_foreign(const void* key, const ParkArgs& args) {
  WaitWord word;
  WaitNode n;
  n.word = &word;
  n.ticket = word.begin(WaitWord::waiting);
  {
    Quiet quiet;
    if (!buckets.publish(&n, key, args.tag, args.still, args.still_arg)) return Wake::invalid;
  }
  count(counters.foreign_waits);
  if (args.before_sleep != nullptr) args.before_sleep(args.before_arg);
  Wake how = wake_of(sleep_foreign(word, n, args));
  if (how != Wake::woken) {
    Quiet quiet;
    buckets.withdraw(&n);
  }
  return how;
}

}  // namespace

Wake park_on(const void* key, const ParkArgs& args) {
  Fiber* f = fiber_here();
  return f != nullptr ? park_fiber(f, key, args) : park_foreign(key, args);
}

size_t unpark_some(const void* key, size_t most, uint32_t mask) {
  Quiet quiet;
  return buckets.wake(key, most, mask);
}

size_t unpark_one(const void* key, uint32_t mask) { return unpark_some(key, 1, mask); }

long unpark_requeue(const void* from, size_t wake, const void* to, size_t move,
                    bool (*still)(const void*, void*), void* still_arg, size_t* woken) {
  Quiet quiet;
  return buckets.requeue(from, wake, to, move, still, still_arg, woken);
}

bool anybody_parked_on(const void* key) {
  Quiet quiet;
  return buckets.anybody(key);
}

void interrupt_wait(Fiber* f, bool cancel) {
  uint64_t ticket = f->wait.load();
  switch (WaitWord::state_of(ticket)) {
    case WaitWord::waiting:
      if (f->wait.end(ticket, cancel ? WaitWord::cancelled : WaitWord::interrupted)) {
        Quiet quiet;
        unpark(f);
      }
      break;
    case WaitWord::requesting: {
      Quiet quiet;
      nudge(f, ticket, cancel ? ECANCELED : EINTR);
      break;
    }
    default:
      break;
  }
}

void cancel_foreign_wait(void* tcb) {
  constexpr size_t kMost = 8;  // of one thread: those of its signal handlers too
  const void* words[kMost];
  size_t n = 0;
  Quiet quiet;
  {
    Locked hold(points_lock);
    for (ListNode* node = points.head.next; node != &points.head && n < kMost; node = node->next) {
      auto* p = static_cast<Point*>(node);
      if (p->tcb == tcb && p->word->end(p->ticket, WaitWord::cancelled)) words[n++] = p->word->address();
    }
  }
  // The thread may be gone by now, and its word with it: then the kernel finds nobody, or no memory.
  for (size_t i = 0; i < n; i++) sys_futex_wake(words[i]);
}

void parking_after_fork() {
  points_lock.reset();
  points.clear();
  buckets.after_fork();
}

}  // namespace vthr
