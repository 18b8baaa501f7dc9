// Doorbells and waking (runtime/doorbell.h): no work stays queued while a carrier sleeps.
#include "runtime/doorbell.h"

#include "runtime/runq.h"
#include "tests/model/checker.h"

namespace {
using namespace model;

// What the seeded faults change: the order of looking and announcing, on either side.
enum Order { right, looks_before_it_announces, rings_before_it_queues, nobody_wakes_the_next };

// Carriers that queue `Items` each and compute for ever; the others take one each and do the same (or, if they are Short,
// look for the next), or sleep, and wake once for a completion of their own. As ready(), find() and sleep_idle() of the scheduler.
template <Fault F, Order Way, int Busy, int Items, int Sleepers, bool Short = false>
struct Doorbells {
  static constexpr int threads = Busy + Sleepers;
  using A = Atomics<F>;
  struct Carrier {
    vthr::RunQueueT<int, A, 2> runq;
    vthr::DoorbellT<A> bell;
    Atomic<uint32_t, F> engine{0};  // what its eventfd counts
  };
  Carrier carriers[threads];
  vthr::WakingT<A> waking;
  int items[Items];

  void wake_one() {
    waking.wake_one(
        threads, [this](uint32_t i) -> vthr::DoorbellT<A>& { return carriers[i].bell; },
        [this](uint32_t i) {
          carriers[i].engine.store(1);
          A::wake(&carriers[i].engine);
        });
  }
  bool work_anywhere() {
    for (int i = 0; i < Busy; i++) {
      if (!carriers[i].runq.empty()) return true;
    }
    return false;
  }
  bool steal(Carrier& mine) {
    for (int i = 0; i < Busy; i++) {
      if (carriers[i].runq.steal_into(mine.runq) != nullptr) return true;
    }
    return false;
  }
  void thread(int me) {
    Carrier& mine = carriers[me];
    for (int i = 0; me < Busy && i < Items; i++) {
      if (Way == rings_before_it_queues) wake_one();
      mine.runq.push(&items[i]);
      if (Way != rings_before_it_queues) wake_one();
    }
    if (me < Busy) return;
    bool spinning = false, completion = true;
    do {
      for (; !steal(mine); completion = false) {
        if (spinning) waking.stop_spinning();
        bool none = Way == looks_before_it_announces && !work_anywhere();
        if (waking.sleep(mine.bell, [&] { return !none && work_anywhere(); })) {
          while (mine.engine.exchange(0) == 0 && (A::sleep(&mine.engine, 0, completion) || !completion)) {
          }
        }
        spinning = waking.awake(mine.bell);
      }
      if (!spinning) continue;
      spinning = false;
      waking.stop_spinning();
      if (Way != nobody_wakes_the_next && work_anywhere()) wake_one();
    } while (Short && mine.runq.pop() == nullptr);
  }
  void end() {
    int asleep = 0;
    for (int i = Busy; i < threads; i++) asleep += !machine.is_over(i + 1);
    check(asleep == 0 || !work_anywhere(), "work is queued and a carrier sleeps");
    check(waking.idle() == asleep, "the number of idle carriers is wrong");
  }
};

}  // namespace

int main() {
  begin();
  explore<Doorbells<kNone, right, 1, 1, 1>>("doorbells: 1 carrier queues, 1 sleeps", {5, 3});
  explore<Doorbells<kNone, right, 2, 1, 1>>("doorbells: 2 carriers queue, 1 sleeps", {3, 1});
  explore<Doorbells<kNone, right, 2, 1, 1, true>>("doorbells: the same, short work", {3, 0});
  explore<Doorbells<kNone, right, 1, 2, 2>>("doorbells: 1 carrier queues 2, 2 sleep", {2, 1});
  must_find<Doorbells<kNone, looks_before_it_announces, 1, 1, 1>>(
      "  seeded: the queue read before the doorbell", {2, 1});
  must_find<Doorbells<kNone, rings_before_it_queues, 1, 1, 1>>("  seeded: the doorbell read before the queue",
                                                               {2, 1});
  must_find<Doorbells<kNoFence, right, 1, 1, 1>>("  seeded: no fence", {2, 2});
  must_find<Doorbells<kNone, nobody_wakes_the_next, 1, 2, 2>>("  seeded: who found work wakes nobody",
                                                              {2, 1});
  return all_good ? 0 : 1;
}
