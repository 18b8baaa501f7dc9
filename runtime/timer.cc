#include "runtime/timer.h"

#include <cstring>

#include "runtime/sys.h"

namespace vthr {

bool TimerHeap::arm(Timer* t) {
  Locked hold(lock_);
  if (size_ == capacity_) {
    size_t more = capacity_ == 0 ? 512 : capacity_ * 2;
    auto* bigger = static_cast<Timer**>(sys_map(more * sizeof(Timer*)));
    if (bigger == nullptr) return false;
    if (heap_ != nullptr) {
      memcpy(bigger, heap_, size_ * sizeof(Timer*));
      sys_unmap(heap_, capacity_ * sizeof(Timer*));
    }
    heap_ = bigger;
    capacity_ = more;
  }
  t->home.store(this, std::memory_order_relaxed);
  up(size_++, t);
  publish();
  return true;
}

bool TimerHeap::disarm(Timer* t) {
  TimerHeap* h = t->home.load(std::memory_order_relaxed);
  if (h == nullptr) return false;
  Locked hold(h->lock_);
  if (t->place == 0) return false;
  h->remove(t);
  return true;
}

void TimerHeap::remove(Timer* t) {
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

void TimerHeap::up(size_t i, Timer* t) {
  while (i > 0) {
    size_t parent = (i - 1) / 4;
    if (heap_[parent]->when <= t->when) break;
    place(heap_[parent], i);
    i = parent;
  }
  place(t, i);
}

void TimerHeap::down(size_t i, Timer* t) {
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

}  // namespace vthr
