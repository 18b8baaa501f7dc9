// The parking lot between foreign threads (no runtime is started): who is woken, when, and with what answer.
#include "runtime/parking.h"

#include "tests/unit/waiters.h"

namespace vthr {
namespace {

TEST(Parking, NobodyToWake) {
  int key = 0;
  EXPECT_EQ(unpark_one(&key), 0u);
  EXPECT_EQ(unpark_all(&key), 0u);
  EXPECT_FALSE(anybody_parked_on(&key));
}

TEST(Parking, OneAtATimeInOrderOfArrival) {
  int key = 0, other = 0;
  Waiters w;
  for (int i = 0; i < 5; i++) w.add(&key);
  EXPECT_TRUE(anybody_parked_on(&key));
  EXPECT_EQ(unpark_one(&other), 0u);
  usleep(20000);
  EXPECT_TRUE(w.order().empty()) << "nobody wakes by himself";
  for (int i = 0; i < 5; i++) {
    EXPECT_EQ(unpark_one(&key), 1u);
    ASSERT_TRUE(w.ended(i + 1));
    EXPECT_EQ(w.order().back(), i);
    EXPECT_EQ(w.how(i), Wake::woken);
  }
  EXPECT_EQ(unpark_one(&key), 0u);
  EXPECT_FALSE(anybody_parked_on(&key));
}

TEST(Parking, SomeAndAll) {
  int key = 0, other = 0;
  Waiters w;
  for (int i = 0; i < 5; i++) w.add(&key);
  w.add(&other);
  EXPECT_EQ(unpark_some(&key, 0), 0u);
  EXPECT_EQ(unpark_some(&key, 2), 2u);
  ASSERT_TRUE(w.ended(2));
  EXPECT_EQ(unpark_all(&key), 3u);
  ASSERT_TRUE(w.ended(5)) << "those of another key sleep on";
  EXPECT_EQ(unpark_all(&other), 1u);
}

TEST(Parking, MoreThanABatch) {
  int key = 0;
  Waiters w;
  for (int i = 0; i < 150; i++) w.add(&key);
  EXPECT_EQ(unpark_some(&key, 70), 70u);
  ASSERT_TRUE(w.ended(70));
  EXPECT_EQ(unpark_all(&key), 80u);
  ASSERT_TRUE(w.ended(150));
}

TEST(Parking, ValidationUnderTheBucketLock) {
  int key = 0;
  struct Seen {
    const void* key = nullptr;
    int calls = 0;
    bool slept = false;
  } seen;
  ParkArgs args;
  args.still = [](const void* k, void* arg) {
    static_cast<Seen*>(arg)->key = k;
    static_cast<Seen*>(arg)->calls++;
    return false;
  };
  args.still_arg = &seen;
  args.before_sleep = [](void* arg) { static_cast<Seen*>(arg)->slept = true; };
  args.before_arg = &seen;
  args.deadline = now_ns() + 10 * kSecond;
  EXPECT_EQ(park_on(&key, args), Wake::invalid);
  EXPECT_EQ(seen.key, &key);
  EXPECT_EQ(seen.calls, 1);
  EXPECT_FALSE(seen.slept);
  EXPECT_FALSE(anybody_parked_on(&key)) << "never published";
}

// A waker that comes during the validation waits for it: else its wake would find nobody and be lost.
TEST(Parking, NoWakeComesBetweenValidationAndSleep) {
  static int key;
  static std::atomic<int> waker_at;
  waker_at = 0;
  size_t woken = 0;
  std::thread waker([&] {
    while (waker_at.load() == 0) sched_yield();
    woken = unpark_one(&key);
    waker_at.store(2);
  });
  ParkArgs args;
  args.still = [](const void*, void*) {
    waker_at.store(1);
    usleep(30000);
    return waker_at.load() == 1;
  };
  args.deadline = now_ns() + 5 * kSecond;
  EXPECT_EQ(park_on(&key, args), Wake::woken);
  waker.join();
  EXPECT_EQ(woken, 1u);
}

TEST(Parking, TimeOut) {
  int key = 0;
  ParkArgs args;
  int64_t begun = now_ns();
  args.deadline = begun + 30 * kMilli;
  EXPECT_EQ(park_on(&key, args), Wake::timed_out);
  EXPECT_GE(now_ns(), args.deadline);
  EXPECT_FALSE(anybody_parked_on(&key)) << "withdrawn";
  EXPECT_EQ(unpark_one(&key), 0u);
  args.deadline = now_ns() - kSecond;
  EXPECT_EQ(park_on(&key, args), Wake::timed_out) << "a deadline in the past";
  EXPECT_FALSE(anybody_parked_on(&key));
}

TEST(Parking, AWakeGoesPastThoseThatTimedOut) {
  int key = 0;
  Waiters w;
  ParkArgs brief;
  brief.deadline = now_ns() + 20 * kMilli;
  w.add(&key, brief);
  w.add(&key);
  w.add(&key, brief);
  ASSERT_TRUE(w.ended(2));
  EXPECT_EQ(w.how(0), Wake::timed_out);
  EXPECT_EQ(w.how(2), Wake::timed_out);
  EXPECT_EQ(unpark_all(&key), 1u);
  ASSERT_TRUE(w.ended(3));
  EXPECT_EQ(w.how(1), Wake::woken);
}

TEST(Parking, TagsAndMasks) {
  int key = 0;
  ParkArgs reader, writer;
  reader.tag = 1;
  writer.tag = 2;
  Waiters w;
  w.add(&key, reader);
  w.add(&key, writer);
  w.add(&key, reader);
  w.add(&key, writer);
  EXPECT_EQ(unpark_one(&key, 4), 0u);
  EXPECT_EQ(unpark_one(&key, 2), 1u);
  ASSERT_TRUE(w.ended(1));
  EXPECT_EQ(unpark_some(&key, 10, 1), 2u);
  ASSERT_TRUE(w.ended(3));
  EXPECT_EQ(unpark_some(&key, 10, 1), 0u);
  EXPECT_EQ(unpark_one(&key, 6), 1u);
  ASSERT_TRUE(w.ended(4));
  auto order = w.order();
  EXPECT_EQ(order[0], 1);
  EXPECT_EQ(order[1] + order[2], 0 + 2);
  EXPECT_EQ(order[3], 3);
}

// What cond_wait does: the waker may come as soon as the mutex is unlocked in before_sleep.
TEST(Parking, AWakeFromBeforeSleepCounts) {
  static int key = 0;
  static size_t woken;
  ParkArgs args;
  args.before_sleep = [](void*) { woken = unpark_one(&key); };
  args.deadline = now_ns() + 10 * kSecond;
  for (int i = 0; i < 100; i++) {
    woken = 0;
    ASSERT_EQ(park_on(&key, args), Wake::woken);
    ASSERT_EQ(woken, 1u) << "before_sleep ran before the waiter was published";
  }
  ASSERT_LT(now_ns(), args.deadline);
}

// A signal handler on a foreign thread: ends a wait that allows it (the hooks above decide about restarting).
TEST(Parking, ASignalInterruptsUnlessDeaf) {
  struct sigaction sa {};
  sa.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &sa, nullptr), 0);
  int key = 0;
  Waiters w;
  ParkArgs deaf;
  deaf.deaf = true;
  w.add(&key);
  w.add(&key, deaf);
  ASSERT_TRUE(eventually([&] {
    pthread_kill(w.id(0), SIGUSR1);  // again until it sleeps
    usleep(1000);
    return !w.order().empty();
  }));
  ASSERT_TRUE(w.ended(1));
  EXPECT_EQ(w.how(0), Wake::interrupted);
  for (int i = 0; i < 10; i++) {
    pthread_kill(w.id(1), SIGUSR1);
    usleep(1000);
  }
  ASSERT_TRUE(w.ended(1));
  EXPECT_EQ(unpark_all(&key), 1u);
  ASSERT_TRUE(w.ended(2));
  EXPECT_EQ(w.how(1), Wake::woken);
}

TEST(Parking, WaitersSleep) {
  int key = 0;
  Waiters w;
  for (int i = 0; i < 8; i++) w.add(&key);
  usleep(20000);
  int64_t before = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  usleep(200000);
  EXPECT_LT(cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - before, 20 * kMilli);
  EXPECT_EQ(unpark_all(&key), 8u);
}

}  // namespace
}  // namespace vthr
