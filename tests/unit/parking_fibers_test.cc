// The parking lot between fibers and foreign threads, under stress: sums of wakes agree, locks exclude, nobody sleeps on.
#include <random>

#include "tests/unit/fibers.h"

namespace vthr {
namespace {

using ParkingFibers = RuntimeTest<2>;

// Fibers and foreign threads wait with tiny time-outs on a few keys; wakers of both kinds wake, broadcast and requeue;
// somebody interrupts fibers. Every wake that was counted arrived at exactly one waiter.
TEST_F(ParkingFibers, WakesAgainstTimeOutsAndInterrupts) {
  constexpr int kFiberWaiters = 12, kThreadWaiters = 2, kKeys = 3, kRounds = 20000;
  int keys[kKeys] = {};
  std::atomic<int> left{kFiberWaiters + kThreadWaiters};
  std::atomic<uint64_t> sent{0}, received{0}, timed_out{0}, interrupted{0}, odd{0};
  auto wait = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < kRounds; i++) {
      ParkArgs args;
      args.reason = Reason::cond;
      args.deadline = now_ns() + static_cast<int64_t>(random() % 40) * kMicro;
      args.deaf = random() % 4 == 0;
      Wake how = park_on(&keys[random() % kKeys], args);
      (how == Wake::woken         ? received
       : how == Wake::timed_out   ? timed_out
       : how == Wake::interrupted ? interrupted
                                  : odd)
          .fetch_add(1);
    }
    left.fetch_sub(1);
  };
  auto wake = [&](unsigned seed, auto pause) {
    std::mt19937 random(seed);
    uint64_t mine = 0;
    while (left.load() > 0) {
      int k = static_cast<int>(random() % kKeys);
      size_t woken = 0;
      switch (random() % 6) {
        case 0:
          mine += unpark_all(&keys[k]);
          break;
        case 1:
          unpark_requeue(&keys[k], random() % 2, &keys[(k + 1) % kKeys], random() % 3, nullptr, nullptr,
                         &woken);
          mine += woken;
          break;
        default:
          mine += unpark_one(&keys[k]);
      }
      pause();
    }
    sent.fetch_add(mine);
  };
  std::vector<Fiber*> waiters;
  for (unsigned i = 0; i < kFiberWaiters; i++) waiters.push_back(spawn([&, i](Fiber*) { wait(i); }));
  Fibers wakers;
  for (unsigned i = 0; i < 2; i++) {
    wakers.add([&, i](Fiber* f) { wake(100 + i, [&] { yield_now(f); }); });
  }
  together(kThreadWaiters + 2, [&](int me) {
    if (me < kThreadWaiters) return wait(50 + static_cast<unsigned>(me));
    if (me == kThreadWaiters) return wake(60, [] { usleep(30); });
    std::mt19937 random(70);
    while (left.load() > 0) {
      interrupt_wait(waiters[random() % kFiberWaiters], false);
      usleep(20);
    }
  });
  for (Fiber* f : waiters) join(f);
  wakers.join_all();
  EXPECT_EQ(sent.load(), received.load());
  EXPECT_EQ(odd.load(), 0u);
  EXPECT_EQ(received.load() + timed_out.load() + interrupted.load(),
            static_cast<uint64_t>(kFiberWaiters + kThreadWaiters) * kRounds);
  EXPECT_GT(received.load(), 100u);
  EXPECT_GT(timed_out.load(), 100u);
  EXPECT_GT(interrupted.load(), 0u);
  for (auto& k : keys) EXPECT_FALSE(anybody_parked_on(&k));
}

// A mutex as the hooks build one: 0 free, 1 held, 2 held and somebody may sleep.
class Mutex {
 public:
  void lock() {
    uint32_t free = 0;
    if (word_.compare_exchange_strong(free, 1)) return;
    while (word_.exchange(2) != 0) {
      ParkArgs args;
      args.reason = Reason::mutex;
      args.deaf = true;
      args.still = [](const void* key, void*) {
        return static_cast<const std::atomic<uint32_t>*>(key)->load() == 2;
      };
      park_on(&word_, args);
    }
  }
  void unlock() {
    if (word_.exchange(0) == 2) unpark_one(&word_);
  }

 private:
  std::atomic<uint32_t> word_{0};
};

TEST_F(ParkingFibers, AMutexExcludesFibersAndThreads) {
  constexpr int kFibers = 20, kThreads = 2, kRounds = 3000;
  Mutex mutex;
  uint64_t plain = 0;
  std::atomic<int> inside{0}, overlaps{0};
  auto body = [&](Fiber* f) {
    for (int i = 0; i < kRounds; i++) {
      mutex.lock();
      if (inside.fetch_add(1) != 0) overlaps.fetch_add(1);
      plain++;
      if (i % 100 == 0) f != nullptr ? sleep_for(f, 10 * kMicro) : static_cast<void>(usleep(10));
      if (i % 700 == 0) burn(50 * kMicro);
      inside.fetch_sub(1);
      mutex.unlock();
      if (i % 50 == 0 && f != nullptr) yield_now(f);
    }
  };
  Fibers all;
  for (int i = 0; i < kFibers; i++) all.add([&](Fiber* f) { body(f); });
  together(kThreads, [&](int) { body(nullptr); });
  all.join_all();
  EXPECT_EQ(overlaps.load(), 0);
  EXPECT_EQ(plain, static_cast<uint64_t>(kFibers + kThreads) * kRounds);
}

// A condition variable's protocol: before_sleep unlocks; a producer that takes the mutex then must find the waiter.
TEST_F(ParkingFibers, AConditionLosesNoSignal) {
  constexpr int kItems = 20000, kConsumers = 8;
  Mutex mutex;
  int queued = 0, produced = 0, consumed = 0;
  bool over = false;
  char cond = 0;
  auto wait = [&] {
    ParkArgs args;
    args.reason = Reason::cond;
    args.before_sleep = [](void* m) { static_cast<Mutex*>(m)->unlock(); };
    args.before_arg = &mutex;
    park_on(&cond, args);
    mutex.lock();
  };
  Fibers all;
  for (int i = 0; i < kConsumers; i++) {
    all.add([&](Fiber*) {
      mutex.lock();
      for (;;) {
        while (queued == 0 && !over) wait();
        if (queued == 0) break;
        queued--;
        consumed++;
      }
      mutex.unlock();
    });
  }
  auto produce = [&](int n) {
    for (int i = 0; i < n; i++) {
      mutex.lock();
      queued++;
      produced++;
      mutex.unlock();
      unpark_one(&cond);
    }
  };
  all.add([&](Fiber*) { produce(kItems / 2); });
  produce(kItems / 2);
  EXPECT_TRUE(eventually([&] {
    mutex.lock();
    bool done = consumed == kItems;
    mutex.unlock();
    return done;
  })) << "a signal was lost: items are queued and consumers sleep";
  mutex.lock();
  over = true;
  mutex.unlock();
  unpark_all(&cond);
  all.join_all();
  EXPECT_EQ(produced, kItems);
  EXPECT_EQ(consumed, kItems);
}

// Hundreds of fibers that wait again as soon as they are woken: one broadcast wakes each once and returns.
TEST_F(ParkingFibers, BroadcastEnds) {
  constexpr int kFibers = 500;
  int key = 0;
  std::atomic<bool> stop{false};
  std::atomic<int> parked{0};
  std::atomic<uint64_t> wakes{0};
  Fibers all;
  for (int i = 0; i < kFibers; i++) {
    all.add([&](Fiber*) {
      ParkArgs args;
      args.before_sleep = [](void* n) { static_cast<std::atomic<int>*>(n)->fetch_add(1); };
      args.before_arg = &parked;
      while (!stop.load()) {
        park_on(&key, args);
        parked.fetch_sub(1);
        wakes.fetch_add(1);
      }
    });
  }
  uint64_t sent = 0, most = 0;
  for (int i = 0; i < 20; i++) {
    EXPECT_TRUE(eventually([&] { return parked.load() == kFibers; }));
    size_t woken = unpark_all(&key);
    most = std::max<uint64_t>(most, woken);
    sent += woken;
    EXPECT_TRUE(eventually([&] { return wakes.load() == sent; }));
  }
  EXPECT_EQ(most, static_cast<uint64_t>(kFibers));
  stop.store(true);
  EXPECT_TRUE(eventually([&] { return unpark_all(&key) == 0 && parked.load() == 0; }));
}

}  // namespace
}  // namespace vthr
