#include "runtime/parking.h"

#include <cerrno>

#include "runtime/admission.h"
#include "runtime/sched.h"
#include "runtime/sys.h"

namespace vthr {

namespace {

// One bucket of the hash table: a lock and the waiters of all keys that fall here, in order of arrival. A template
// over its atomics for the model checker.
template <class A = FutexAtomics>
struct alignas(kCacheLine) BucketT {
  LockT<A> lock;
  ListNode* first = nullptr;  // singly ended: zero-initialised memory is an empty bucket
  ListNode* last = nullptr;

  uint64_t arrivals = 0;

  void append(WaitNode* n) {
    n->arrival = ++arrivals;
    n->queued = true;
    n->next = nullptr;
    n->prev = last;
    (last != nullptr ? last->next : first) = n;
    last = n;
  }
  void remove(WaitNode* n) {
    (n->prev != nullptr ? n->prev->next : first) = n->next;
    (n->next != nullptr ? n->next->prev : last) = n->prev;
    n->next = n->prev = nullptr;
    n->queued = false;
  }
};
using Bucket = BucketT<>;

constexpr size_t kBuckets = 4096;
Bucket buckets[kBuckets];

Bucket& bucket_of(const void* key) {
  auto h = reinterpret_cast<uintptr_t>(key) * 0x9e3779b97f4a7c15ull;
  return buckets[h >> 52];
}
static_assert(kBuckets == 1 << 12, "bucket_of takes the top 12 bits");

constexpr size_t kBatch = 64;

// Waiters chosen under a bucket lock, to be woken after it.
struct Chosen {
  Fiber* fibers[kBatch];
  const void* words[kBatch];
  size_t fiber_count = 0, word_count = 0;
  bool full() const { return fiber_count == kBatch || word_count == kBatch; }
  void wake() {
    for (size_t i = 0; i < fiber_count; i++) unpark(fibers[i]);
    // The foreign thread may be gone by now, and its word with it: then the kernel finds nobody, or no memory.
    for (size_t i = 0; i < word_count; i++) sys_futex_wake(words[i]);
    fiber_count = word_count = 0;
  }
};

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
      old_mask_ = sys_set_sigmask(~(sig_bit(kSigRuntime) | sig_bit(kSigSetxid)));
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

// Ends one waiter's wait; true when the caller won it. Under the bucket lock, the node already removed.
bool choose(WaitNode* n, Chosen* chosen) {
  Fiber* f = n->fiber;
  WaitWord* word = n->word;
  if (!word->end(n->ticket, WaitWord::woken)) return false;
  if (f != nullptr) {
    chosen->fibers[chosen->fiber_count++] = f;
  } else {
    chosen->words[chosen->word_count++] = word->address();
  }
  return true;
}

// Takes a waiter out whose wait ended without a waker. It must hold the bucket lock even when it finds itself taken out
// already: the waker that did so may still read the node, which is gone when its owner returns.
void withdraw(WaitNode* n) {
  for (;;) {
    const void* key = __atomic_load_n(&n->key, __ATOMIC_RELAXED);
    Bucket& b = bucket_of(key);
    Locked hold(b.lock);
    if (__atomic_load_n(&n->key, __ATOMIC_RELAXED) != key) continue;  // requeued meanwhile
    if (n->queued) b.remove(n);
    return;
  }
}

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

bool publish(WaitNode* n, const void* key, const ParkArgs& args) {
  Bucket& b = bucket_of(key);
  Locked hold(b.lock);
  if (args.still != nullptr && !args.still(key, args.still_arg)) return false;
  __atomic_store_n(&n->key, key, __ATOMIC_RELAXED);
  n->tag = args.tag;
  b.append(n);
  return true;
}

Wake park_fiber(Fiber* f, const void* key, const ParkArgs& args) {
  enter(f);
  WaitNode* n = &f->node;
  n->fiber = f;
  n->word = &f->wait;
  n->ticket = f->wait.begin(args.deaf ? WaitWord::waiting_deaf : WaitWord::waiting);
  if (!publish(n, key, args)) {
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
  if (how != Wake::woken) withdraw(n);
  if (how == Wake::woken) f->hold_since = 0;
  leave(f);
  return how;
}

Wake park_foreign(const void* key, const ParkArgs& args) {
  WaitWord word;
  WaitNode n;
  n.word = &word;
  n.ticket = word.begin(WaitWord::waiting);
  {
    Quiet quiet;
    if (!publish(&n, key, args)) return Wake::invalid;
  }
  count(counters.foreign_waits);
  if (args.before_sleep != nullptr) args.before_sleep(args.before_arg);
  while (word.load() == n.ticket) {
    int64_t left = -1;
    if (args.deadline != kNever) {
      left = args.deadline - now_ns();
      if (left <= 0) {
        word.end(n.ticket, WaitWord::timed_out);
        break;
      }
    }
    long r = sys_futex_wait(word.address(), static_cast<uint32_t>(n.ticket), left);
    if (r == -EINTR && !args.deaf) word.end(n.ticket, WaitWord::interrupted);
  }
  Wake how = wake_of(word.finish());
  if (how != Wake::woken) {
    Quiet quiet;
    withdraw(&n);
  }
  return how;
}

}  // namespace

Wake park_on(const void* key, const ParkArgs& args) {
  Fiber* f = fiber_here();
  return f != nullptr ? park_fiber(f, key, args) : park_foreign(key, args);
}

size_t unpark_some(const void* key, size_t most, uint32_t mask) {
  size_t total = 0;
  Chosen chosen;
  Quiet quiet;
  Bucket& b = bucket_of(key);
  uint64_t last = 0;  // who waits again while the first ones are being woken is not meant
  for (bool more = true; more && total < most;) {
    more = false;
    {
      Locked hold(b.lock);
      if (last == 0) last = b.arrivals;
      for (ListNode *p = b.first, *next; p != nullptr && total < most; p = next) {
        next = p->next;
        auto* n = static_cast<WaitNode*>(p);
        if (n->arrival > last) break;
        if (n->key != key || (n->tag & mask) == 0) continue;
        if (chosen.full()) {
          more = true;
          break;
        }
        b.remove(n);
        if (choose(n, &chosen)) total++;
      }
    }
    chosen.wake();
  }
  return total;
}

size_t unpark_one(const void* key, uint32_t mask) { return unpark_some(key, 1, mask); }

long unpark_requeue(const void* from, size_t wake, const void* to, size_t move,
                    bool (*still)(const void*, void*), void* still_arg, size_t* woken) {
  Chosen chosen;
  size_t done = 0, moved = 0;
  Quiet quiet;
  Bucket &a = bucket_of(from), &b = bucket_of(to);
  uint64_t last = 0;
  for (bool more = true; more;) {
    more = false;
    (&a < &b ? a : b).lock.lock();
    if (&a != &b) (&a < &b ? b : a).lock.lock();
    if (last == 0 && still != nullptr && !still(from, still_arg)) {
      if (&a != &b) b.lock.unlock();
      a.lock.unlock();
      if (woken != nullptr) *woken = 0;
      return -1;
    }
    if (last == 0) last = a.arrivals;
    for (ListNode *p = a.first, *next; p != nullptr; p = next) {
      next = p->next;
      auto* n = static_cast<WaitNode*>(p);
      if (n->arrival > last) break;
      if (n->key != from) continue;
      if (done < wake) {
        if (chosen.full()) {
          more = true;
          break;
        }
        a.remove(n);
        if (choose(n, &chosen)) done++;
      } else if (moved < move) {
        a.remove(n);
        __atomic_store_n(&n->key, to, __ATOMIC_RELAXED);
        b.append(n);
        moved++;
      } else {
        break;
      }
    }
    if (&a != &b) b.lock.unlock();
    a.lock.unlock();
    chosen.wake();
  }
  if (woken != nullptr) *woken = done;
  return static_cast<long>(done + moved);
}

bool anybody_parked_on(const void* key) {
  Quiet quiet;
  Bucket& b = bucket_of(key);
  Locked hold(b.lock);
  for (ListNode* p = b.first; p != nullptr; p = p->next) {
    if (static_cast<WaitNode*>(p)->key == key) return true;
  }
  return false;
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

void parking_after_fork() {
  for (Bucket& b : buckets) {
    b.lock.reset();
    b.first = b.last = nullptr;
  }
}

}  // namespace vthr
