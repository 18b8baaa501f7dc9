// The run queue (runtime/runq.h): its owner pushes and pops, thieves steal, each item is taken once and seen whole.
#include "runtime/runq.h"

#include "tests/model/checker.h"

namespace {
using namespace model;

struct Item {
  Plain<int> made, taken;
};

// Items more than places: what a thief reads may be reused meanwhile. `Thieves` queues of their own.
template <Fault F, uint32_t Places, int Items, int Thieves>
struct Steals {
  static constexpr int threads = 1 + Thieves;
  using Queue = vthr::RunQueueT<Item, Atomics<F>, Places>;
  Item items[Items];
  Queue queue, theirs[Thieves];

  static void take(Item* item) {
    check(item->made.get() == 1, "an item that was not yet made");
    check(item->taken.get() == 0, "an item taken twice");
    item->taken.set(1);
  }
  void thread(int me) {
    if (me > 0) {
      Queue& mine = theirs[me - 1];
      if (Item* item = queue.steal_into(mine)) take(item);
      while (Item* item = mine.pop()) take(item);
      return;
    }
    for (Item& item : items) {
      item.made.set(1);
      while (!queue.push(&item)) {
        if (Item* other = queue.pop()) take(other);
      }
    }
    while (Item* item = queue.pop()) take(item);
  }
  void end() {
    check(queue.empty(), "an item is left behind");
    for (Item& item : items) check(item.taken.get() == 1, "an item was lost");
  }
};

}  // namespace

int main() {
  begin();
  explore<Steals<kNone, 2, 3, 1>>("run queue, 2 places, 3 items, 1 thief", {4, 3});
  explore<Steals<kNone, 4, 4, 1>>("run queue, 4 places, 4 items, 1 thief", {4, 3});
  explore<Steals<kNone, 4, 3, 2>>("run queue, 4 places, 3 items, 2 thieves", {3, 1});
  must_find<Steals<kLostRelease, 4, 2, 1>>("  seeded: a lost release", {2, 1});
  must_find<Steals<kSplitWeakCas, 4, 2, 1>>("  seeded: the owner takes the last without CAS", {2, 1});
  must_find<Steals<kSplitCas, 2, 3, 2>>("  seeded: thieves take without CAS", {2, 1});
  return all_good ? 0 : 1;
}
