// Sharing of the carriers: hand-off of pinned ones, hogs, stealing, fairness, and an idle runtime.
// run: name=uring env=VTHR_IO=uring
// run: name=epoll env=VTHR_IO=epoll
#include "tests/unit/fibers.h"

namespace vthr {
namespace {

using Handoff = RuntimeTest<2>;

// As many pinned fibers as carriers: the others go on meanwhile.
TEST_F(Handoff, OthersProgressWhileAllCarriersArePinned) {
  uint64_t handoffs = value(counters.handoffs);
  std::atomic<int> ticks{0};
  std::atomic<bool> stop{false};
  Fibers all;
  for (int i = 0; i < 4; i++) {
    all.add([&](Fiber* f) {
      while (!stop.load()) {
        ticks.fetch_add(1);
        sleep_for(f, kMilli);
      }
    });
  }
  usleep(50000);
  Fibers pinned;
  for (int i = 0; i < 2; i++) {
    pinned.add([&](Fiber*) { EXPECT_EQ(block_raw(400 * kMilli), 0); });
  }
  usleep(100000);
  int before = ticks.load();
  usleep(200000);
  EXPECT_GT(ticks.load() - before, 4 * 50) << "4 fibers that tick each millisecond, over 200 ms";
  pinned.join_all();
  EXPECT_GE(value(counters.handoffs) - handoffs, 2u);
  stop.store(true);
}

// Each fiber blocks natively; with more of them than carriers they may not queue up behind each other.
TEST_F(Handoff, ManyPinnedAtOnce) {
  int64_t begun = now_ns();
  Fibers all;
  for (int i = 0; i < 40; i++) {
    all.add([&](Fiber*) { EXPECT_EQ(block_raw(300 * kMilli), 0); });
  }
  all.join_all();
  EXPECT_LT(now_ns() - begun, 5 * kSecond) << "40 x 300 ms on 2 carriers are 6 s one after the other";
}

// A pinned fiber waits natively for what another one, which is runnable, does.
TEST_F(Handoff, APinnedFiberThatWaitsForAnother) {
  for (int i = 0; i < 20; i++) {
    std::atomic<uint32_t> word{0};
    Fibers all;
    for (int k = 0; k < 4; k++) {
      all.add([&](Fiber*) {
        while (word.load() == 0) sys_futex_wait(&word, 0);
      });
    }
    all.add([&](Fiber*) {
      word.store(1);
      sys_futex_wake(&word, 100);
    });
  }
}

// Requests that were submitted before the pin complete for their fibers during it.
TEST_F(Handoff, CompletionsDuringAPin) {
  int fds[8][2];
  for (auto& p : fds) ASSERT_EQ(pipe(p), 0);
  std::atomic<int> got{0}, ended{0};
  Fibers all, pinned;
  for (auto& p : fds) {
    all.add([&, fd = p[0]](Fiber* f) {
      char c = 0;
      Request r;
      r.code = 22;  // IORING_OP_READ
      r.fd = fd;
      r.off = static_cast<uint64_t>(-1);
      r.addr = reinterpret_cast<uint64_t>(&c);
      r.len = 1;
      if (op_wait(f, r, Reason::read, kNever) == 1 && c == 'x') got.fetch_add(1);
    });
  }
  usleep(20000);
  for (int i = 0; i < 2; i++) {
    pinned.add([&](Fiber*) {
      block_raw(2 * kSecond);
      ended.fetch_add(1);
    });
  }
  usleep(30000);
  for (auto& p : fds) ASSERT_EQ(write(p[1], "x", 1), 1);
  EXPECT_TRUE(eventually([&] { return got.load() == 8; }));
  EXPECT_EQ(ended.load(), 0) << "completions waited for the end of the pin";
  for (auto& p : fds) close(p[0]), close(p[1]);
}

// Fibers that compute without a switch do not keep others waiting for long.
TEST_F(Handoff, HogsGiveWay) {
  uint64_t hogs = value(counters.hogs);
  std::atomic<bool> stop{false};
  Fibers all;
  for (int i = 0; i < 3; i++) {
    all.add([&](Fiber*) {
      while (!stop.load(std::memory_order_relaxed)) __builtin_ia32_pause();
    });
  }
  usleep(20000);
  int64_t begun = now_ns();
  std::atomic<int64_t> late{0};
  Fiber* f = spawn([&](Fiber*) { late.store(now_ns() - begun); });
  EXPECT_TRUE(eventually([&] { return late.load() != 0; }, 3 * kSecond));
  EXPECT_LT(late.load(), kSecond);
  stop.store(true);
  join(f);
  all.join_all();
  EXPECT_GT(value(counters.hogs), hogs);
}

TEST_F(Handoff, AllCarriersWork) {
  std::atomic<Worker*> workers[2] = {};
  std::atomic<int> done{0};
  Fibers parent;
  parent.add([&](Fiber*) {
    Fibers children;
    for (int i = 0; i < 200; i++) {
      // made by a fiber: all are in its own carrier's queue, or in the global one
      children.add([&](Fiber* f) {
        burn(kMilli);
        Worker* w = f->worker.load();
        Worker* none = nullptr;
        if (workers[0].load() != w && !workers[0].compare_exchange_strong(none, w)) workers[1].store(w);
        done.fetch_add(1);
      });
    }
  });
  parent.join_all();
  EXPECT_EQ(done.load(), 200);
  EXPECT_NE(workers[1].load(), nullptr) << "one carrier did all the work";
}

// A fiber that wakes others queues them on its own carrier. It keeps that one busy, for less time than makes a hog: they
// run meanwhile only if the other carrier steals them.
TEST_F(Handoff, ABusyCarrierIsStolenFrom) {
  uint64_t steals = value(counters.steals);
  bool in_time = false;
  for (int attempt = 0; attempt < 20 && !in_time; attempt++) {
    int key = 0;
    std::atomic<int> parked{0}, ran{0};
    std::atomic<int64_t> last{0};
    int64_t ended = 0;
    Fibers all;
    for (int i = 0; i < 50; i++) {
      all.add([&](Fiber*) {
        ParkArgs args;
        args.before_sleep = [](void* n) { static_cast<std::atomic<int>*>(n)->fetch_add(1); };
        args.before_arg = &parked;
        park_on(&key, args);
        ran.fetch_add(1);
        last.store(now_ns());
      });
    }
    EXPECT_TRUE(eventually([&] { return parked.load() == 50; }));
    all.add([&](Fiber*) {
      unpark_all(&key);
      burn(8 * kMilli);
      ended = now_ns();
    });
    all.join_all();
    EXPECT_EQ(ran.load(), 50);
    in_time = last.load() < ended;
  }
  EXPECT_TRUE(in_time);
  EXPECT_GT(value(counters.steals), steals);
}

// Fibers that yield share their carriers evenly, and one that becomes ready is not held off by them.
TEST_F(Handoff, YieldIsFair) {
  constexpr int kFibers = 6;
  std::atomic<uint64_t> turns[kFibers] = {};
  std::atomic<bool> stop{false};
  Fibers all;
  for (auto& mine : turns) {
    all.add([&](Fiber* f) {
      while (!stop.load(std::memory_order_relaxed)) {
        mine.fetch_add(1, std::memory_order_relaxed);
        yield_now(f);
      }
    });
  }
  usleep(20000);
  int late = 0;
  Fiber* sleeper = spawn([&](Fiber* f) {
    for (int i = 0; i < 50; i++) {
      int64_t deadline = now_ns() + 2 * kMilli;
      op_sleep(f, Reason::sleep, deadline);
      late += now_ns() - deadline > 50 * kMilli;
    }
  });
  join(sleeper);
  stop.store(true);
  all.join_all();
  uint64_t least = UINT64_MAX, most = 0;
  for (auto& t : turns) {
    least = std::min(least, t.load());
    most = std::max(most, t.load());
  }
  EXPECT_GT(least, 100u);
  EXPECT_LT(most, least * 5) << "least " << least << " most " << most;
  EXPECT_LT(late, 10) << "a sleeper was held off by those that yield";
}

// Fibers that wake each other in turn, so that no run queue is ever empty, starve neither one that was made by a foreign
// thread nor timers.
TEST_F(Handoff, GlobalQueueAndTimersDoNotStarve) {
  std::atomic<bool> stop{false};
  Gate gates[4][2];
  Fibers all;
  for (auto& pair : gates) {
    for (int side = 0; side < 2; side++) {
      all.add([&, side](Fiber*) {
        while (!stop.load()) {
          pair[side].wait();
          pair[1 - side].post();
        }
      });
    }
    pair[0].post();
  }
  usleep(10000);
  int64_t worst = 0;
  for (int i = 0; i < 50; i++) {
    int64_t begun = now_ns();
    Fiber* f = spawn([&](Fiber*) { worst = std::max(worst, now_ns() - begun); });
    join(f);
  }
  Fiber* sleeper = spawn([&](Fiber* f) {
    for (int i = 0; i < 20; i++) {
      int64_t deadline = now_ns() + kMilli;
      op_sleep(f, Reason::sleep, deadline);
      worst = std::max(worst, now_ns() - deadline);
    }
  });
  EXPECT_TRUE(eventually([&] { return sleeper->life.load() == kEnded; }));
  EXPECT_LT(worst, kSecond);
  stop.store(true);
  join(sleeper);
  for (auto& pair : gates) {
    pair[0].post();
    pair[1].post();
  }
}

TEST_F(Handoff, IdleCostsNothing) {
  int key = 0;
  Fibers all;
  for (int i = 0; i < 1000; i++) {
    all.add([&, i](Fiber* f) {
      ParkArgs args;
      args.deadline = i % 2 == 0 ? now_ns() + 60 * kSecond : kNever;
      i % 4 == 0 ? static_cast<void>(op_sleep(f, Reason::sleep, now_ns() + 4 * kSecond))
                 : static_cast<void>(park_on(&key, args));
    });
  }
  usleep(1000000);  // sysmon goes to sleep too
  int64_t before = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  usleep(2000000);
  int64_t used = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - before;
  if (!kTsan) {  // it has a thread of its own that does
    EXPECT_LT(used, 10 * kMilli) << "0.5 % of 2 s";
  }
  ASSERT_TRUE(eventually([&] { return unpark_all(&key) == 0 && fiber_live_count() <= 250; }));
  // and it wakes up again: a pin is seen although sysmon slept
  uint64_t handoffs = value(counters.handoffs);
  for (int i = 0; i < 40 && value(counters.handoffs) == handoffs; i++) {  // it may get no CPU during a pin
    Fibers pinned;
    for (int k = 0; k < 2; k++) pinned.add([](Fiber*) { block_raw(300 * kMilli); });
    pinned.add([](Fiber* f) { sleep_for(f, kMilli); });
  }
  EXPECT_GT(value(counters.handoffs), handoffs);
}

}  // namespace
}  // namespace vthr
