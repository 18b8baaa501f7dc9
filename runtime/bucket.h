// The buckets of the parking lot: who waits on which address, in order of arrival, and who is chosen to be woken.
#pragma once
#include "runtime/base.h"
#include "runtime/list.h"
#include "runtime/lock.h"
#include "runtime/wait.h"

namespace vthr {

struct Fiber;

// A waiter in a bucket. Embedded in fibers; foreign threads have one on their stack.
template <class A = RealAtomics>
struct WaitNodeT : ListNode {
  typename A::template atomic<const void*> key{nullptr};  // changes only under the bucket locks, by a requeue
  bool queued = false;                                    // in the bucket of `key`; under its lock
  WaitWordT<A>* word = nullptr;
  uint64_t ticket = 0;
  Fiber* fiber = nullptr;  // nullptr: a foreign thread that sleeps on `word`
  uint64_t arrival = 0;    // number in its bucket: a broadcast wakes those who came before it
  uint32_t tag = 0;        // the caller's: reader or writer, futex bit set
};
using WaitNode = WaitNodeT<>;

// One bucket of the hash table: a lock and the waiters of all keys that fall here, in order of arrival.
template <class A>
struct alignas(kCacheLine) BucketT {
  LockT<A> lock;
  ListNode* first = nullptr;  // singly ended: zero-initialised memory is an empty bucket
  ListNode* last = nullptr;

  uint64_t arrivals = 0;

  void append(WaitNodeT<A>* n) {
    n->arrival = ++arrivals;
    n->queued = true;
    n->next = nullptr;
    n->prev = last;
    (last != nullptr ? last->next : first) = n;
    last = n;
  }
  void remove(WaitNodeT<A>* n) {
    (n->prev != nullptr ? n->prev->next : first) = n->next;
    (n->next != nullptr ? n->next->prev : last) = n->prev;
    n->next = n->prev = nullptr;
    n->queued = false;
  }
};

// The table of 2^Bits buckets; up to Batch waiters are chosen under a lock and woken after it. Fibers::unpark(Fiber*) makes
// a fiber whose wait was ended runnable. Callers see to it that no handler of the program runs on their thread meanwhile.
template <class A, class Fibers, unsigned Bits, size_t Batch>
class BucketsT {
 public:
  using Node = WaitNodeT<A>;
  using Still = bool (*)(const void* key, void* arg);

  // Queues n, whose word and ticket are set, unless still(), under the bucket's lock, says no: then false.
  bool publish(Node* n, const void* key, uint32_t tag, Still still, void* still_arg) {
    Bucket& b = bucket_of(key);
    Locked hold(b.lock);
    if (still != nullptr && !still(key, still_arg)) return false;
    n->key.store(key, std::memory_order_relaxed);
    n->tag = tag;
    b.append(n);
    return true;
  }

  // Takes a waiter out whose wait ended without a waker. It must hold the bucket lock even when it finds itself taken
  // out already: the waker that did so may still read the node, which is gone when its owner returns.
  void withdraw(Node* n) {
    for (;;) {
      const void* key = n->key.load(std::memory_order_relaxed);
      Bucket& b = bucket_of(key);
      Locked hold(b.lock);
      if (n->key.load(std::memory_order_relaxed) != key) continue;  // requeued meanwhile
      if (n->queued) b.remove(n);
      return;
    }
  }

  size_t wake(const void* key, size_t most, uint32_t mask) {
    size_t total = 0;
    Chosen chosen;
    Bucket& b = bucket_of(key);
    uint64_t last = 0;  // who waits again while the first ones are being woken is not meant
    for (bool more = true; more && total < most;) {
      more = false;
      {
        Locked hold(b.lock);
        if (last == 0) last = b.arrivals;
        for (ListNode *p = b.first, *next; p != nullptr && total < most; p = next) {
          next = p->next;
          auto* n = static_cast<Node*>(p);
          if (n->arrival > last) break;
          if (n->key.load(std::memory_order_relaxed) != key || (n->tag & mask) == 0) continue;
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

  long requeue(const void* from, size_t wake, const void* to, size_t move, Still still, void* still_arg,
               size_t* woken) {
    Chosen chosen;
    size_t done = 0, moved = 0;
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
        auto* n = static_cast<Node*>(p);
        if (n->arrival > last) break;
        if (n->key.load(std::memory_order_relaxed) != from) continue;
        if (done < wake) {
          if (chosen.full()) {
            more = true;
            break;
          }
          a.remove(n);
          if (choose(n, &chosen)) done++;
        } else if (moved < move) {
          a.remove(n);
          n->key.store(to, std::memory_order_relaxed);
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

  bool anybody(const void* key) {
    Bucket& b = bucket_of(key);
    Locked hold(b.lock);
    for (ListNode* p = b.first; p != nullptr; p = p->next) {
      if (static_cast<Node*>(p)->key.load(std::memory_order_relaxed) == key) return true;
    }
    return false;
  }

  void after_fork() {
    for (Bucket& b : buckets_) {
      b.lock.reset();
      b.first = b.last = nullptr;
    }
  }

 private:
  using Bucket = BucketT<A>;

  // Waiters chosen under a bucket lock, to be woken after it.
  struct Chosen {
    Fiber* fibers[Batch];
    const void* words[Batch];
    size_t fiber_count = 0, word_count = 0;
    bool full() const { return fiber_count == Batch || word_count == Batch; }
    void wake() {
      for (size_t i = 0; i < fiber_count; i++) Fibers::unpark(fibers[i]);
      // The foreign thread may be gone by now, and its word with it: then the kernel finds nobody, or no memory.
      for (size_t i = 0; i < word_count; i++) A::wake(words[i]);
      fiber_count = word_count = 0;
    }
  };

  Bucket& bucket_of(const void* key) {
    auto h = reinterpret_cast<uintptr_t>(key) * 0x9e3779b97f4a7c15ull;
    return buckets_[h >> (64 - Bits)];
  }

  // Ends one waiter's wait; true when the caller won it. Under the bucket lock, the node already removed.
  static bool choose(Node* n, Chosen* chosen) {
    Fiber* f = n->fiber;
    WaitWordT<A>* word = n->word;
    if (!word->end(n->ticket, WaitWordT<A>::woken)) return false;
    if (f != nullptr) {
      chosen->fibers[chosen->fiber_count++] = f;
    } else {
      chosen->words[chosen->word_count++] = word->address();
    }
    return true;
  }

  Bucket buckets_[size_t{1} << Bits];
};

}  // namespace vthr
