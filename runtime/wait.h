// The wait word: who ends a wait, decided by one compare-and-swap; and the park word: is the fiber off its stack.
#pragma once
#include "runtime/base.h"

namespace vthr {

enum class Reason : uint8_t {
#define WAIT_REASON(name, own) name,
#include "runtime/wait_reasons.def"
#undef WAIT_REASON
};
const char* reason_name(Reason r);     // "mutex", ...; any thread
bool reason_is_own_request(Reason r);  // keeps its admission slot; any thread

// How a wait ended.
enum class Wake : uint8_t {
  woken,        // a waker chose this waiter
  timed_out,    // the deadline passed
  interrupted,  // a signal for this fiber is pending (only in waits that allow it)
  cancelled,    // pthread_cancel (only in waits that allow it)
  invalid,      // validation failed under the bucket lock: never waited
};

// Wait word: (sequence << 5) | mark | state. One word per waiter, living as long as the waiter's thread record, so that a
// late waker compares a sequence number instead of touching a dead object.
//   idle        -> waiting      the waiter, before it publishes itself (release)
//   idle        -> requesting   the waiter of a ring operation: time-outs, signals and cancels may only *ask*
//   waiting     -> woken | timed_out | interrupted | cancelled   by one compare-and-swap (acq_rel): the winner, and
//                                only the winner, then unparks the waiter
//   requesting  -> nudged       somebody asks for the end of the operation, under the inbox lock of its carrier
//   requesting, nudged -> woken by the reaper of the completion (its result is the outcome)
//   any outcome -> idle(seq+1)  the waiter, when it runs again (relaxed: only it writes then)
// Pairs: the winner's release with the waiter's acquire load after it is unparked.
template <class A = RealAtomics>
class WaitWordT {
 public:
  enum State : uint64_t {
    idle,
    waiting,
    waiting_deaf,
    requesting,
    nudged,
    woken,
    timed_out,
    interrupted,
    cancelled
  };

  // deaf: neither signal nor cancel may end it (mutexes). Returns the ticket that wakers compare.
  uint64_t begin(State kind) {
    uint64_t t = (word_.load(std::memory_order_relaxed) & ~kMask) | kind;
    word_.store(t, std::memory_order_release);
    return t;
  }
  // Ends the wait `ticket` with `outcome`; true for the one caller that wins. Any thread.
  bool end(uint64_t ticket, State outcome) {
    return word_.compare_exchange_strong(ticket, (ticket & ~kMask) | outcome, std::memory_order_acq_rel,
                                         std::memory_order_relaxed);
  }
  // The same for the wait of a ring operation, nudged or not. The reaper.
  bool end_request(uint64_t ticket) {
    if (end(ticket, woken)) return true;
    uint64_t w = (ticket & ~kMask) | nudged;
    return word_.compare_exchange_strong(w, (ticket & ~kMask) | woken | kNudgedMark,
                                         std::memory_order_acq_rel, std::memory_order_relaxed);
  }
  bool is_request(uint64_t ticket) const {  // that operation is still under way
    uint64_t w = load();
    return w == ticket || w == ((ticket & ~kMask) | nudged);
  }
  // The waiter, running again: what happened; the word becomes idle under the next sequence number.
  State finish(bool* was_nudged = nullptr) {
    uint64_t w = word_.load(std::memory_order_acquire);
    if (was_nudged != nullptr) *was_nudged = (w & kNudgedMark) != 0;
    word_.store((w & ~kMask) + kMask + 1, std::memory_order_relaxed);
    return static_cast<State>(w & (kMask & ~kNudgedMark));
  }
  // The waiter, if it is a foreign thread: sleeps until the wait is over; what happened, as finish(). wait() sleeps on
  // address() while the low half of the word is the ticket's, and says the end that the waiter itself wants, or `waiting`.
  template <class Wait>
  State sleep(uint64_t ticket, Wait wait) {
    while (load() == ticket) {
      State wanted = wait();
      if (wanted != waiting) end(ticket, wanted);
    }
    return finish();
  }
  uint64_t load() const { return word_.load(std::memory_order_acquire); }
  static State state_of(uint64_t ticket) { return static_cast<State>(ticket & kMask); }
  void* address() { return &word_; }

 private:
  static constexpr uint64_t kMask = 31, kNudgedMark = 16;  // the mark stays until finish()
  typename A::template atomic<uint64_t> word_{0};
};
using WaitWord = WaitWordT<>;

// Park word: has the fiber left its stack yet?
//   running  -> parked    the scheduler, after the switch (commit on the other side)
//   running  -> notified  unpark before the commit: the commit fails and the fiber runs on
//   parked   -> running   unpark, whose caller then owns the fiber and queues it
//   notified -> running   the scheduler
// Exactly one unpark per wait (the winner of the wait word). Pairs: unpark's exchange (acq_rel) with the commit.
template <class A = RealAtomics>
class ParkWordT {
 public:
  // True: parked. False: an unpark came first; the caller runs the fiber on.
  bool commit() {
    uint32_t s = running;
    if (word_.compare_exchange_strong(s, parked, std::memory_order_acq_rel)) return true;
    word_.store(running, std::memory_order_relaxed);
    return false;
  }
  // True: the caller now owns the fiber and must queue it. Any thread.
  bool unpark() {
    uint32_t s = running;
    if (word_.compare_exchange_strong(s, notified, std::memory_order_acq_rel)) return false;
    word_.store(running, std::memory_order_relaxed);
    return true;
  }
  bool is_parked() const { return word_.load(std::memory_order_acquire) == parked; }

 private:
  enum : uint32_t { running, parked, notified };
  typename A::template atomic<uint32_t> word_{running};
};
using ParkWord = ParkWordT<>;

}  // namespace vthr
