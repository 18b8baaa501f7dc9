// The timers of one carrier: a 4-ary heap of nodes that know their place, so that a wait which ended is taken out at
// once. Armed by the owner of the carrier, disarmed by whoever runs the fiber next: a lock guards it.
#pragma once
#include "runtime/base.h"
#include "runtime/lock.h"

namespace vthr {

class TimerHeap;

struct Timer {
  int64_t when = kNever;                  // CLOCK_MONOTONIC, ns
  uint64_t ticket = 0;                    // the wait it ends
  uint32_t place = 0;                     // index in the heap + 1; 0: not armed
  std::atomic<TimerHeap*> home{nullptr};  // heap it was armed in last; written before the wait is published
};

class TimerHeap {
 public:
  // False when memory for the heap ran out: the caller must not wait on it.
  bool arm(Timer* t);
  // True when it was still armed. After it returns no expiry of `t` is under way (expired under the same lock).
  static bool disarm(Timer* t);
  // Takes out the first timer due at `now` and calls fire(timer) under the lock; false when none is due.
  template <class F>
  bool expire_one(int64_t now, F fire) {
    if (next_.load(std::memory_order_relaxed) > now) return false;
    Locked hold(lock_);
    if (size_ == 0 || heap_[0]->when > now) return false;
    Timer* t = heap_[0];
    remove(t);
    fire(t);
    return true;
  }
  int64_t next() const { return next_.load(std::memory_order_relaxed); }  // kNever when empty; any thread
  size_t size() const { return size_; }

 private:
  void place(Timer* t, size_t i) {
    heap_[i] = t;
    t->place = static_cast<uint32_t>(i + 1);
  }
  void up(size_t i, Timer* t);
  void down(size_t i, Timer* t);
  void remove(Timer* t);
  void publish() { next_.store(size_ == 0 ? kNever : heap_[0]->when, std::memory_order_relaxed); }

  Lock lock_;
  Timer** heap_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
  std::atomic<int64_t> next_{kNever};
};

}  // namespace vthr
