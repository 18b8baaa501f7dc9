// The run queue of a carrier: a bounded ring that its owner pushes and pops and that anybody steals half of, after
// the queue of the Go runtime's P (Vyukov's design). Overflow goes to the global queue, which the caller owns.
#pragma once
#include "runtime/base.h"

namespace vthr {

// head: next to take, moved by compare-and-swap by the owner's pop and by thieves (acq_rel).
// tail: next free place, moved by the owner only (release); pairs with the thieves' acquire load, so that what they
// read from the ring is what was pushed. A thief that read a place which was reused meanwhile fails its
// compare-and-swap, since head moved on.
template <class T, class A = RealAtomics, uint32_t kSize = 256>
class RunQueueT {
 public:
  // Owner. False when full.
  bool push(T* item) {
    uint32_t t = tail_.load(std::memory_order_relaxed);
    if (t - head_.load(std::memory_order_acquire) >= kSize) return false;
    ring_[t % kSize].store(item, std::memory_order_relaxed);
    tail_.store(t + 1, std::memory_order_release);
    return true;
  }
  // Owner. nullptr when empty.
  T* pop() {
    uint32_t h = head_.load(std::memory_order_acquire);
    for (;;) {
      if (h == tail_.load(std::memory_order_relaxed)) return nullptr;
      T* item = ring_[h % kSize].load(std::memory_order_relaxed);
      if (head_.compare_exchange_weak(h, h + 1, std::memory_order_acq_rel, std::memory_order_acquire))
        return item;
    }
  }
  // Owner of `into`, which must be empty: takes half of this queue, returns the first and pushes the others to `into`.
  T* steal_into(RunQueueT& into) {
    for (;;) {
      uint32_t h = head_.load(std::memory_order_acquire);
      uint32_t t = tail_.load(std::memory_order_acquire);
      uint32_t n = t - h;
      n -= n / 2;
      if (n == 0) return nullptr;
      if (n > kSize / 2) continue;  // head and tail were read at different times
      uint32_t to = into.tail_.load(std::memory_order_relaxed);
      for (uint32_t i = 1; i < n; i++) {
        into.ring_[(to + i - 1) % kSize].store(ring_[(h + i) % kSize].load(std::memory_order_relaxed),
                                               std::memory_order_relaxed);
      }
      T* first = ring_[h % kSize].load(std::memory_order_relaxed);
      if (!head_.compare_exchange_strong(h, h + n, std::memory_order_acq_rel)) continue;
      into.tail_.store(to + n - 1, std::memory_order_release);
      return first;
    }
  }
  uint32_t size() const {  // a snapshot
    uint32_t h = head_.load(std::memory_order_acquire);
    uint32_t n = tail_.load(std::memory_order_acquire) - h;
    return n > kSize ? 0 : n;
  }
  bool empty() const { return size() == 0; }

 private:
  typename A::template atomic<uint32_t> head_{0};
  typename A::template atomic<uint32_t> tail_{0};
  typename A::template atomic<T*> ring_[kSize] = {};
};

}  // namespace vthr
