// Who sleeps, and who is woken for new work: the doorbell of a carrier, and how many carriers sleep or look for work.
#pragma once
#include "runtime/base.h"

namespace vthr {

// Doorbell of a carrier: is its owner asleep?
//   awake -> sleeping        the owner, before its last look at the queues (seq_cst, with a fence)
//   sleeping -> rung         a ringer that left something for this carrier, by compare-and-swap: it alone rings the
//                            engine's bell
//   sleeping -> rung_to_spin the same, to make the owner look for work anywhere: it counts as a spinner
//   any -> awake             the owner when it wakes
// Pairs: the ringer queues work, fences, then reads the word; the owner writes the word, fences, then reads the
// queues: one of the two sees the other.
template <class A = RealAtomics>
class DoorbellT {
 public:
  void about_to_sleep() {
    word_.store(sleeping, std::memory_order_seq_cst);
    A::fence();
  }
  // True: it was rung to spin.
  bool awake_now() { return word_.exchange(awake, std::memory_order_acq_rel) == rung_to_spin; }
  bool ring(bool to_spin) {
    uint32_t s = sleeping;
    return word_.load(std::memory_order_relaxed) == sleeping &&
           word_.compare_exchange_strong(s, to_spin ? rung_to_spin : rung, std::memory_order_acq_rel);
  }
  bool is_sleeping() const { return word_.load(std::memory_order_relaxed) == sleeping; }

 private:
  enum : uint32_t { awake, sleeping, rung, rung_to_spin };
  typename A::template atomic<uint32_t> word_{awake};
};

// All carriers together.
// idle: how many sleep or are about to, changed by their owners (seq_cst).
// spinners: 1 while somebody was woken to look for work and has found none yet: nobody else is woken meanwhile.
//   0 -> 1  who queued work and will ring a bell, by compare-and-swap (acq_rel)
//   1 -> 0  who was woken, before it sleeps or when it found work; or the one who found nobody to wake. With a fence, and
//           then a look at what those left who saw the 1: at the queues, at the bells
// Pairs: who queues work fences and reads both words; an owner changes them, fences (its doorbell, stop_spinning) and looks
// at the queues.
template <class A = RealAtomics>
class WakingT {
 public:
  int idle() const { return idle_.load(std::memory_order_seq_cst); }
  void stop_spinning() {
    spinners_.store(0, std::memory_order_release);
    A::fence();
  }
  // After work was queued: rings the bell of one of `carriers` that sleeps. bell(i) is the DoorbellT of carrier i, rung(i)
  // wakes its engine. Any thread.
  template <class Bell, class Rung>
  void wake_one(int carriers, Bell bell, Rung rung) {
    A::fence();
    for (bool again = true; again;) {
      if (idle_.load(std::memory_order_relaxed) == 0 || spinners_.load(std::memory_order_relaxed) != 0)
        return;
      int none = 0;
      if (!spinners_.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) return;
      uint32_t from = next_.fetch_add(1, std::memory_order_relaxed);
      for (int k = 0; k < carriers; k++) {
        uint32_t i = (from + static_cast<uint32_t>(k)) % static_cast<uint32_t>(carriers);
        if (bell(i).ring(true)) return rung(i);
      }
      // Nobody slept. Somebody may since, and others who queued work meanwhile saw our 1 and relied on us.
      stop_spinning();
      again = false;
      for (int k = 0; k < carriers; k++) again = again || bell(static_cast<uint32_t>(k)).is_sleeping();
    }
  }
  // The owner of a carrier that found no work. True: it may sleep; awake() follows in any case. look(): is there work?
  template <class Look>
  bool sleep(DoorbellT<A>& bell, Look look) {
    idle_.fetch_add(1, std::memory_order_seq_cst);
    bell.about_to_sleep();  // its fence stands between both words and the look
    return !look();
  }
  // True: it was woken to spin.
  bool awake(DoorbellT<A>& bell) {
    idle_.fetch_add(-1, std::memory_order_seq_cst);
    return bell.awake_now();
  }
  void after_fork() {
    idle_.store(0, std::memory_order_relaxed);
    spinners_.store(0, std::memory_order_relaxed);
  }

 private:
  typename A::template atomic<int> idle_{0};
  typename A::template atomic<int> spinners_{0};
  typename A::template atomic<uint32_t> next_{0};
};

}  // namespace vthr
