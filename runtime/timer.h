// The timers of one carrier: a 4-ary heap of nodes that know their place, so that a wait which ended is taken out at
// once. Armed by the owner of the carrier, disarmed by whoever runs the fiber next: a lock guards it.
#pragma once
#include <cstring>

#include "runtime/base.h"
#include "runtime/lock.h"

namespace vthr {

template <class A>
class TimerHeapT;

template <class A = RealAtomics>
struct TimerT {
  int64_t when = kNever;  // CLOCK_MONOTONIC, ns
  uint64_t ticket = 0;    // the wait it ends
  uint32_t place = 0;     // index in the heap + 1; 0: not armed
  // heap it was armed in last; written before the wait is published
  typename A::template atomic<TimerHeapT<A>*> home{nullptr};
};
using Timer = TimerT<>;

template <class A = RealAtomics>
class TimerHeapT {
 public:
  using Timer = TimerT<A>;
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
  bool grow();
  void place(Timer* t, size_t i) {
    heap_[i] = t;
    t->place = static_cast<uint32_t>(i + 1);
  }
  void up(size_t i, Timer* t);
  void down(size_t i, Timer* t);
  void remove(Timer* t);
  void publish() { next_.store(size_ == 0 ? kNever : heap_[0]->when, std::memory_order_relaxed); }

  LockT<A> lock_;
  Timer** heap_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
  typename A::template atomic<int64_t> next_{kNever};
};
using TimerHeap = TimerHeapT<>;

template <class A>
bool TimerHeapT<A>::grow() {
  size_t more = capacity_ == 0 ? 512 : capacity_ * 2;
  auto* bigger = static_cast<Timer**>(A::map(more * sizeof(Timer*)));
  if (bigger == nullptr) return false;
  if (heap_ != nullptr) {
    memcpy(bigger, heap_, size_ * sizeof(Timer*));
    A::unmap(heap_, capacity_ * sizeof(Timer*));
  }
  heap_ = bigger;
  capacity_ = more;
  return true;
}

template <class A>
bool TimerHeapT<A>::arm(Timer* t) {
  Locked hold(lock_);
  if (size_ == capacity_ && !grow()) return false;
  t->home.store(this, std::memory_order_relaxed);
  up(size_++, t);
  publish();
  return true;
}

template <class A>
bool TimerHeapT<A>::disarm(Timer* t) {
  TimerHeapT* h = t->home.load(std::memory_order_relaxed);
  if (h == nullptr) return false;
  Locked hold(h->lock_);
  if (t->place == 0) return false;
  h->remove(t);
  return true;
}

template <class A>
void TimerHeapT<A>::remove(Timer* t) {
  size_t i = t->place - 1;
  t->place = 0;
  Timer* last = heap_[--size_];
  if (last != t) {
    if (i > 0 && heap_[(i - 1) / 4]->when > last->when) {
      up(i, last);
    } else {
      down(i, last);
    }
  }
  publish();
}

template <class A>
void TimerHeapT<A>::up(size_t i, Timer* t) {
  while (i > 0) {
    size_t parent = (i - 1) / 4;
    if (heap_[parent]->when <= t->when) break;
    place(heap_[parent], i);
    i = parent;
  }
  place(t, i);
}

template <class A>
void TimerHeapT<A>::down(size_t i, Timer* t) {
  for (;;) {
    size_t child = 4 * i + 1;
    if (child >= size_) break;
    size_t end = child + 4 < size_ ? child + 4 : size_, least = child;
    for (size_t c = child + 1; c < end; c++) {
      if (heap_[c]->when < heap_[least]->when) least = c;
    }
    if (heap_[least]->when >= t->when) break;
    place(heap_[least], i);
    i = least;
  }
  place(t, i);
}

extern template class TimerHeapT<RealAtomics>;

}  // namespace vthr
