// The runtime's own lock: short sections, never across a system call or a switch.
#pragma once
#include "runtime/base.h"

namespace vthr {

// state: 0 free, 1 held, 2 held and somebody may sleep on it.
//   0->1 lock (acquire), any->2 a waiter about to sleep (acquire when the old value was 0),
//   any->0 unlock (release); whoever unlocks a 2 wakes one sleeper. Pairs: unlock's release with lock's acquire.
// A few spins, then a private futex: with fewer CPUs than threads the holder may be off its CPU, and spinning
// through the hooked sched_yield is out of the question.
template <class A = RealAtomics>
class LockT {
 public:
  void lock() {
    uint32_t free = 0;
    if (VTHR_UNLIKELY(!state_.compare_exchange_strong(free, 1, std::memory_order_acquire))) lock_slow();
  }
  bool try_lock() {
    uint32_t free = 0;
    return state_.compare_exchange_strong(free, 1, std::memory_order_acquire);
  }
  void unlock() {
    if (VTHR_UNLIKELY(state_.exchange(0, std::memory_order_release) == 2)) A::wake(&state_);
  }
  void reset() { state_.store(0, std::memory_order_relaxed); }  // in a forked child only

 private:
  VTHR_NOINLINE void lock_slow() {
    for (int i = 0; i < A::kSpins; i++) {
      uint32_t free = 0;
      if (state_.load(std::memory_order_relaxed) == 0 &&
          state_.compare_exchange_strong(free, 1, std::memory_order_acquire))
        return;
      A::pause();
    }
    while (state_.exchange(2, std::memory_order_acquire) != 0) A::wait(&state_, 2);
  }
  typename A::template atomic<uint32_t> state_{0};
};
using Lock = LockT<>;

template <class L>
class Locked {
 public:
  explicit Locked(L& l) : lock_(l) { lock_.lock(); }
  ~Locked() { lock_.unlock(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  L& lock_;
};

}  // namespace vthr
