// One carrier: nothing goes on in parallel, so that every hand-off that is missing shows. And a forked child, which starts
// a runtime of its own.
#include "tests/unit/fibers.h"

namespace vthr {
namespace {

using OneCarrier = RuntimeTest<1>;

// A fiber holds what others need in the kernel: they wait natively until it goes on, which needs the only carrier.
TEST_F(OneCarrier, NativeWaitsDoNotDeadlock) {
  for (int round = 0; round < 10; round++) {
    std::atomic<uint32_t> stage{0};
    Fibers all;
    for (uint32_t i = 5; i > 0; i--) {
      // each waits for the one that is made after it
      all.add([&, i](Fiber*) {
        for (uint32_t s; (s = stage.load()) != i - 1;) sys_futex_wait(&stage, s);
        stage.store(i);
        sys_futex_wake(&stage, 100);
      });
    }
    all.join_all();
    EXPECT_EQ(stage.load(), 5u);
  }
}

// The same after the runtime was idle for long, so that sysmon was asleep.
TEST_F(OneCarrier, APinAfterAnIdleTimeIsSeen) {
  for (int i = 0; i < 20; i++) {
    usleep(30000 + i * 1111);
    std::atomic<uint32_t> word{0};
    Fibers all;
    all.add([&](Fiber*) {
      int64_t limit = now_ns() + 5 * kSecond;
      while (word.load() == 0 && now_ns() < limit) sys_futex_wait(&word, 0, kSecond);
      EXPECT_LT(now_ns(), limit) << "nobody took the carrier from a pinned fiber";
    });
    usleep(200);
    all.add([&](Fiber*) {
      word.store(1);
      sys_futex_wake(&word);
    });
  }
}

TEST_F(OneCarrier, AHogGivesWay) {
  std::atomic<bool> stop{false};
  Fibers all;
  all.add([&](Fiber*) {
    while (!stop.load(std::memory_order_relaxed)) __builtin_ia32_pause();
  });
  usleep(5000);
  all.add([&](Fiber*) { stop.store(true); });
  all.join_all();
}

TEST_F(OneCarrier, TimersGoOnWhileFibersYield) {
  std::atomic<bool> stop{false};
  Fibers all;
  for (int i = 0; i < 3; i++) {
    all.add([&](Fiber* f) {
      while (!stop.load()) yield_now(f);
    });
  }
  int64_t begun = now_ns();
  all.add([&](Fiber* f) {
    for (int i = 0; i < 20; i++) sleep_for(f, kMilli);
    stop.store(true);
  });
  all.join_all();
  EXPECT_LT(now_ns() - begun, kSecond);
}

TEST_F(OneCarrier, SleepersWakeInOrderOfTheirDeadlines) {
  constexpr int kFibers = 100;
  // later than all are made, which takes long under ThreadSanitizer
  int64_t first = now_ns() + (kTsan ? 3 * kSecond : 100 * kMilli);
  std::vector<int> order;
  Lock lock;
  Fibers all;
  for (int k = 0; k < kFibers; k++) {
    int i = k * 37 % kFibers;
    all.add([&, i](Fiber* f) {
      op_sleep(f, Reason::sleep, first + i * kMilli);
      Locked hold(lock);
      order.push_back(i);
    });
  }
  all.join_all();
  ASSERT_EQ(order.size(), static_cast<size_t>(kFibers));
  // a worker that lost its CPU for long may lose its carrier as well, with a fiber that has not noted itself yet
  int wrong = 0;
  for (int i = 1; i < kFibers; i++) wrong += order[i] < order[i - 1];
  EXPECT_LE(wrong, 5);
}

// A hundred pinned fibers, each for a while: workers come as they are needed, past the soft limit only slowly.
TEST_F(OneCarrier, MorePinsThanWorkers) {
  options.max_workers = 30;
  std::atomic<int> done{0};
  int64_t begun = now_ns();
  Fibers all;
  for (int i = 0; i < 100; i++) {
    all.add([&](Fiber*) {
      block_raw(50 * kMilli);
      done.fetch_add(1);
    });
  }
  all.join_all();
  EXPECT_EQ(done.load(), 100);
  EXPECT_LT(now_ns() - begun, 5 * kSecond);
  EXPECT_LE(worker_count(), 40) << "the limit is soft, but a limit";
  options.max_workers = 256;
}

int life_in_a_child() {
  std::atomic<int> ran{0}, slept{0};
  Gate ping, pong;
  {
    Fibers all;
    for (int i = 0; i < 200; i++) {
      all.add([&](Fiber* f) {
        ran.fetch_add(1);
        sleep_for(f, kMilli);
        slept.fetch_add(1);
      });
    }
    all.add([&](Fiber*) {
      for (int i = 0; i < 1000; i++) ping.wait(), pong.post();
    });
    for (int i = 0; i < 1000; i++) ping.post(), pong.wait();
    all.add([&](Fiber*) { block_raw(20 * kMilli); });
    all.add([&](Fiber*) { ran.fetch_add(1); });
  }
  if (ran.load() != 201) return 2;
  if (slept.load() != 200) return 3;
  return 0;
}

// fork from a foreign thread, at moments when fibers run, sleep, and hold locks of the runtime.
TEST_F(OneCarrier, AForkedChildStartsAfresh) {
  if (kTsan) GTEST_SKIP() << "ThreadSanitizer starts no threads in a forked child";
  std::atomic<bool> stop{false};
  Fibers all;
  for (int i = 0; i < 20; i++) {
    all.add([&](Fiber* f) {
      int key = 0;
      while (!stop.load()) {
        ParkArgs args;
        args.deadline = now_ns() + 20 * kMicro;
        park_on(&key, args);
        yield_now(f);
      }
    });
  }
  for (int i = 0; i < 10; i++) {
    int status = in_child([&] {
      if (runtime_alive()) return 10;  // before any handler ran
      // as interpose/init.cc does
      parking_after_fork();
      sched_after_fork();
      if (sched_running() || fiber_live_count() != 0 || stack_stats().free_now != 0) return 11;
      if (start_runtime(i % 2 + 1) != nullptr) return 12;
      if (carrier_count != i % 2 + 1 || !runtime_alive()) return 13;
      int r = life_in_a_child();
      if (r != 0) return r;
      // and its child likewise
      return exited(in_child([] {
                      parking_after_fork();
                      sched_after_fork();
                      return start_runtime(1) != nullptr ? 12 : life_in_a_child();
                    }),
                    0)
                 ? 0
                 : 14;
    });
    EXPECT_TRUE(exited(status, 0)) << "round " << i << ": " << WEXITSTATUS(status) << ", signal "
                                   << WTERMSIG(status);
    if (!exited(status, 0)) break;
  }
  stop.store(true);
  all.join_all();
  EXPECT_TRUE(runtime_alive());
}

// fork while others are being made and are ending: whatever lock of the runtime was held then is free in the child.
TEST_F(OneCarrier, ForkWhileFibersComeAndGo) {
  if (kTsan) GTEST_SKIP() << "ThreadSanitizer starts no threads in a forked child";
  if (kAsan)
    GTEST_SKIP() << "fork while other threads allocate: AddressSanitizer's own locks stay taken in the child";
  std::atomic<bool> stop{false};
  std::thread creator([&] {
    size_t size = 64 << 10;
    while (!stop.load()) {
      // sizes of their own now and then: fresh slots, with new TLS blocks
      std::vector<Fiber*> some;
      for (int i = 0; i < 8; i++) some.push_back(spawn([](Fiber*) {}, false, size));
      for (Fiber* f : some) join(f);
      size = size < (256 << 10) ? size + kPage : 64 << 10;
    }
  });
  for (int i = 0; i < 150; i++) {
    int status = in_child([&] {
      alarm(10);
      parking_after_fork();
      sched_after_fork();
      if (start_runtime(1) != nullptr) return 12;
      int ran = 0;
      for (int k = 0; k < 3; k++) join(spawn([&](Fiber*) { ran++; }));
      return ran == 3 ? 0 : 1;
    });
    EXPECT_TRUE(exited(status, 0)) << "round " << i << ": " << WEXITSTATUS(status) << ", signal "
                                   << WTERMSIG(status);
    if (!exited(status, 0)) break;
  }
  stop.store(true);
  creator.join();
}

}  // namespace
}  // namespace vthr
