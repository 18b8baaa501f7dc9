// The run queue: order, bounds, stealing, and every item taken exactly once.
#include "runtime/runq.h"

#include <memory>

#include "tests/unit/support.h"

namespace vthr {
namespace {

struct Item {
  int number = 0;
  int payload = 0;  // plain: written before the push, read by whoever takes it
};
using Small = RunQueueT<Item, RealAtomics, 8>;
using Queue = RunQueueT<Item>;

TEST(RunQueue, FirstInFirstOut) {
  Small q;
  Item items[20];
  EXPECT_TRUE(q.empty());
  EXPECT_EQ(q.pop(), nullptr);
  // goes around the ring several times, at every fill
  for (int fill = 1; fill <= 8; fill++) {
    for (int i = 0; i < fill; i++) ASSERT_TRUE(q.push(&items[i]));
    ASSERT_EQ(q.size(), static_cast<uint32_t>(fill));
    for (int i = 0; i < fill; i++) ASSERT_EQ(q.pop(), &items[i]);
    ASSERT_EQ(q.pop(), nullptr);
    ASSERT_TRUE(q.empty());
  }
}

TEST(RunQueue, RefusesWhenFull) {
  Small q;
  Item items[9];
  for (int i = 0; i < 8; i++) ASSERT_TRUE(q.push(&items[i]));
  EXPECT_FALSE(q.push(&items[8]));
  EXPECT_FALSE(q.push(&items[8]));
  EXPECT_EQ(q.size(), 8u);
  EXPECT_EQ(q.pop(), &items[0]) << "a refused push changes nothing";
  EXPECT_TRUE(q.push(&items[8]));
  EXPECT_FALSE(q.push(&items[0]));
  for (int i = 1; i < 9; i++) ASSERT_EQ(q.pop(), &items[i]);
}

TEST(RunQueue, StealTakesHalfFromTheHead) {
  for (int fill = 0; fill <= 8; fill++) {
    for (int offset = 0; offset < 8; offset++) {
      Small victim, thief;
      Item items[8], filler;
      for (int i = 0; i < offset; i++) victim.push(&filler), victim.pop();
      for (int i = 0; i < (offset * 3) % 8; i++) thief.push(&filler), thief.pop();
      for (int i = 0; i < fill; i++) ASSERT_TRUE(victim.push(&items[i]));
      int half = (fill + 1) / 2;
      Item* first = victim.steal_into(thief);
      if (fill == 0) {
        ASSERT_EQ(first, nullptr);
        ASSERT_TRUE(thief.empty());
        continue;
      }
      ASSERT_EQ(first, &items[0]);
      ASSERT_EQ(thief.size(), static_cast<uint32_t>(half - 1));
      ASSERT_EQ(victim.size(), static_cast<uint32_t>(fill - half));
      for (int i = 1; i < half; i++) ASSERT_EQ(thief.pop(), &items[i]);
      for (int i = half; i < fill; i++) ASSERT_EQ(victim.pop(), &items[i]);
      ASSERT_EQ(thief.pop(), nullptr);
      ASSERT_EQ(victim.pop(), nullptr);
    }
  }
}

TEST(RunQueue, OverflowOfTheRealSize) {
  auto q = std::make_unique<Queue>();
  std::vector<Item> items(300);
  size_t accepted = 0;
  while (accepted < items.size() && q->push(&items[accepted])) accepted++;
  EXPECT_EQ(accepted, 256u);
  auto thief = std::make_unique<Queue>();
  EXPECT_EQ(q->steal_into(*thief), &items[0]);
  EXPECT_EQ(q->size(), 128u);
  EXPECT_EQ(thief->size(), 127u);
  for (int i = 0; i < 128; i++) EXPECT_TRUE(q->push(&items[i]));
  EXPECT_FALSE(q->push(&items[0]));
}

// One owner that pushes and pops, three thieves that also steal from each other. A small ring makes it wrap often.
template <class Q>
void take_each_once(int n) {
  std::vector<Item> items(n);
  std::vector<std::atomic<uint8_t>> taken(n);
  auto queues = std::make_unique<Q[]>(4);
  std::atomic<int> left{n};
  std::atomic<uint64_t> torn{0}, stolen{0}, in_order{0};
  auto take = [&](Item* item) {
    if (item->payload != item->number * 3 + 1) torn.fetch_add(1);
    item->payload = 0;
    taken[item->number].fetch_add(1, std::memory_order_relaxed);
    left.fetch_sub(1, std::memory_order_relaxed);
  };
  together(4, [&](int me) {
    Q& mine = queues[me];
    Spin spin;
    if (me == 0) {
      for (int i = 0; i < n; i++) {
        items[i].number = i;
        items[i].payload = i * 3 + 1;
        while (!mine.push(&items[i])) {
          if (Item* own = mine.pop()) take(own);
        }
        if (i % 5 == 0) {
          if (Item* own = mine.pop()) take(own);
        }
        // now and then the thieves find it empty
        if (i % 64 == 63) spin();
      }
      while (Item* own = mine.pop()) take(own);
      return;
    }
    uint64_t count = 0, last_steals_ordered = 0;
    while (left.load(std::memory_order_relaxed) > 0) {
      Item* first = nullptr;
      for (int k = 0; k < 3 && first == nullptr; k++) first = queues[(me + 1 + k) % 4].steal_into(mine);
      if (first == nullptr) {
        spin();
        continue;
      }
      count++;
      int previous = first->number;
      bool ordered = true;
      take(first);
      while (Item* own = mine.pop()) {
        if (own->number < previous) ordered = false;
        previous = own->number;
        take(own);
      }
      last_steals_ordered += ordered;
    }
    stolen.fetch_add(count);
    in_order.fetch_add(last_steals_ordered);
  });
  EXPECT_EQ(left.load(), 0);
  EXPECT_EQ(torn.load(), 0u) << "an item was taken before its contents were visible";
  int wrong = 0;
  for (auto& t : taken) wrong += t.load() != 1;
  EXPECT_EQ(wrong, 0) << "items lost or taken twice";
  EXPECT_GT(stolen.load(), 0u) << "nothing was stolen: the test is blind";
  EXPECT_EQ(in_order.load(), stolen.load()) << "what a thief takes keeps its order";
}

TEST(RunQueue, EveryItemOnce) { take_each_once<Queue>(rounds(1000000)); }
TEST(RunQueue, EveryItemOnceInASmallRing) { take_each_once<Small>(rounds(1000000)); }

}  // namespace
}  // namespace vthr
