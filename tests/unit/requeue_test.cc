// Moving waiters from one key to another, as FUTEX_REQUEUE does.
#include "tests/unit/waiters.h"

namespace vthr {
namespace {

bool yes(const void*, void*) { return true; }
bool no(const void*, void*) { return false; }

TEST(Requeue, WakesSomeAndMovesOthers) {
  int from = 0, to = 0;
  Waiters w;
  for (int i = 0; i < 5; i++) w.add(&from);
  int last = w.add(&to);
  size_t woken = 99;
  EXPECT_EQ(unpark_requeue(&from, 1, &to, 2, no, nullptr, &woken), -1);
  EXPECT_EQ(woken, 0u);
  usleep(10000);
  EXPECT_TRUE(w.order().empty());
  EXPECT_EQ(unpark_requeue(&from, 1, &to, 2, yes, nullptr, &woken), 3);
  EXPECT_EQ(woken, 1u);
  ASSERT_TRUE(w.ended(1));
  EXPECT_EQ(w.order()[0], 0);
  EXPECT_EQ(unpark_some(&from, 10), 2u) << "two were left";
  ASSERT_TRUE(w.ended(3));
  // those that were moved stand behind who waited there before, in their order
  const int expected[3] = {last, 1, 2};
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(unpark_one(&to), 1u);
    ASSERT_TRUE(w.ended(4 + i));
    EXPECT_EQ(w.order().back(), expected[i]);
  }
  EXPECT_EQ(unpark_requeue(&from, 1, &to, 10, nullptr, nullptr, nullptr), 0);
}

TEST(Requeue, AMovedWaiterStillTimesOut) {
  int from = 0, to = 0;
  Waiters w;
  ParkArgs brief;
  brief.deadline = now_ns() + 50 * kMilli;
  w.add(&from, brief);
  w.add(&from);
  EXPECT_EQ(unpark_requeue(&from, 0, &to, 10, nullptr, nullptr), 2);
  EXPECT_FALSE(anybody_parked_on(&from));
  ASSERT_TRUE(w.ended(1));
  EXPECT_EQ(w.how(0), Wake::timed_out);
  EXPECT_EQ(unpark_all(&to), 1u) << "it left the queue that it was moved to";
}

TEST(Requeue, WakesAsManyAsAsked) {
  int from = 0, to = 0;
  Waiters w;
  for (int i = 0; i < 100; i++) w.add(&from);
  size_t woken = 0;
  EXPECT_EQ(unpark_requeue(&from, 80, &to, 1000, nullptr, nullptr, &woken), 100);
  EXPECT_EQ(woken, 80u);
  EXPECT_TRUE(w.ended(80));
  EXPECT_EQ(unpark_all(&to), 20u);
  unpark_all(&from);
}

TEST(Requeue, ToTheSameKeyEnds) {
  int key = 0;
  Waiters w;
  for (int i = 0; i < 3; i++) w.add(&key);
  EXPECT_LE(unpark_requeue(&key, 1, &key, 1u << 20, nullptr, nullptr), 3) << "each is moved once";
  EXPECT_EQ(unpark_all(&key), 2u);
}

}  // namespace
}  // namespace vthr
