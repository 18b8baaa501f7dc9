// The parking lot under stress, foreign threads only: no wake is lost and none is delivered twice, whatever it races with.
#include "runtime/parking.h"

#include <random>

#include "tests/unit/support.h"

namespace vthr {
namespace {

// Waiters with tiny time-outs on a few keys, wakers that do not wait for each other. Every wake that a waker counts must
// have arrived at exactly one waiter: the sums agree at the end. Requeues move waiters under way.
TEST(ParkingStress, WakeAgainstTimeOut) {
  constexpr int kWaiters = 4, kKeys = 3;
  const int n = rounds(40000);
  int keys[kKeys] = {};
  std::atomic<int> done{0};
  std::atomic<uint64_t> sent{0}, received{0}, timed_out{0}, other{0}, early{0};
  together(kWaiters + 2, [&](int me) {
    std::mt19937 random(static_cast<unsigned>(me));
    if (me < kWaiters) {
      uint64_t got = 0, late = 0, odd = 0, before = 0;
      for (int i = 0; i < n; i++) {
        ParkArgs args;
        args.deadline = now_ns() + static_cast<int64_t>(random() % 30) * kMicro;
        switch (park_on(&keys[random() % kKeys], args)) {
          case Wake::woken:
            got++;
            break;
          case Wake::timed_out:
            late++;
            if (now_ns() < args.deadline) before++;
            break;
          default:
            odd++;
        }
      }
      received.fetch_add(got);
      timed_out.fetch_add(late);
      other.fetch_add(odd);
      early.fetch_add(before);
      done.fetch_add(1);
      return;
    }
    uint64_t mine = 0;
    while (done.load() < kWaiters) {
      int k = static_cast<int>(random() % kKeys);
      size_t woken = 0;
      switch (random() % 8) {
        case 0:
          mine += unpark_all(&keys[k]);
          break;
        case 1:
        case 2:
          unpark_requeue(&keys[k], random() % 2, &keys[(k + 1) % kKeys], random() % 3, nullptr, nullptr,
                         &woken);
          mine += woken;
          break;
        default:
          mine += unpark_one(&keys[k]);
      }
      if (random() % 4 == 0) sched_yield();
    }
    sent.fetch_add(mine);
  });
  EXPECT_EQ(sent.load(), received.load());
  EXPECT_EQ(received.load() + timed_out.load(), static_cast<uint64_t>(kWaiters) * n);
  EXPECT_EQ(other.load(), 0u);
  EXPECT_EQ(early.load(), 0u) << "a time-out before its deadline";
  EXPECT_GT(received.load(), 100u);
  EXPECT_GT(timed_out.load(), 100u);
  for (auto& k : keys) EXPECT_FALSE(anybody_parked_on(&k)) << "a node was left behind";
}

// A semaphore as the hooks build it: the count on the object, sleepers in the lot. Waiters may give up; posts may not be
// lost, or the last waiters sleep for ever.
TEST(ParkingStress, NoPostIsLost) {
  struct Semaphore {
    std::atomic<int> value{0}, waiters{0};
  } sem;
  const int threads = 4, n = rounds(50000);
  std::atomic<uint64_t> taken{0};
  std::atomic<bool> posted{false};
  auto try_take = [&] {
    int v = sem.value.load();
    while (v > 0) {
      if (sem.value.compare_exchange_weak(v, v - 1)) return true;
    }
    return false;
  };
  together(threads + 1, [&](int me) {
    if (me == threads) {
      for (int i = 0; i < threads * n; i++) {
        sem.value.fetch_add(1);
        if (sem.waiters.load() > 0) unpark_one(&sem);
      }
      posted.store(true);
      return;
    }
    for (int i = 0; i < n;) {
      if (try_take()) {
        i++;
        taken.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      sem.waiters.fetch_add(1);
      ParkArgs args;
      args.reason = Reason::sem;
      args.still = [](const void* key, void*) {
        return static_cast<const Semaphore*>(key)->value.load() <= 0;
      };
      // half of the waits have no time-out: a lost wake would leave them asleep
      if (i % 2 == 0) args.deadline = now_ns() + 10 * kSecond;
      EXPECT_NE(park_on(&sem, args), Wake::timed_out);
      sem.waiters.fetch_sub(1);
    }
  });
  EXPECT_TRUE(posted.load());
  EXPECT_EQ(taken.load(), static_cast<uint64_t>(threads) * n);
  EXPECT_EQ(sem.value.load(), 0);
}

// Two threads that wake each other in turn, each time before or after the other fell asleep.
TEST(ParkingStress, PingPong) {
  const int n = rounds(30000);
  std::atomic<int> turn{0};
  together(2, [&](int me) {
    for (int i = 0; i < n; i++) {
      while (turn.load() % 2 != me) {
        int seen = turn.load();
        if (seen % 2 == me) break;
        ParkArgs args;
        args.still = [](const void* key, void* arg) {
          return static_cast<const std::atomic<int>*>(key)->load() == *static_cast<int*>(arg);
        };
        args.still_arg = &seen;
        park_on(&turn, args);
      }
      turn.fetch_add(1);
      unpark_one(&turn);
    }
  });
  EXPECT_EQ(turn.load(), 2 * n);
}

// A broadcast wakes who waits now, not those that wait again meanwhile: it ends, and nobody is woken twice by it. More
// waiters than one batch.
TEST(ParkingStress, BroadcastWakesEachOnce) {
  constexpr int kWaiters = 100;
  int key = 0;
  std::atomic<bool> stop{false};
  std::atomic<int> parked{0};
  std::atomic<uint64_t> wakes{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kWaiters; i++) {
    threads.emplace_back([&] {
      ParkArgs args;
      args.before_sleep = [](void* arg) { static_cast<std::atomic<int>*>(arg)->fetch_add(1); };
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
    ASSERT_TRUE(eventually([&] { return parked.load() == kWaiters; }));
    size_t woken = unpark_all(&key);
    if (woken > most) most = woken;
    sent += woken;
    ASSERT_TRUE(eventually([&] { return wakes.load() == sent; }));
  }
  EXPECT_EQ(most, static_cast<uint64_t>(kWaiters)) << "somebody was woken twice by one broadcast";
  stop.store(true);
  for (auto& t : threads) {
    while (parked.load() > 0 && t.joinable()) {
      unpark_all(&key);
      sched_yield();
    }
    t.join();
  }
}

}  // namespace
}  // namespace vthr
