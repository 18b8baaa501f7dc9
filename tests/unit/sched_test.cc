// The scheduler on two carriers: fibers run, park, wake, migrate and end.
#include <errno.h>

#include <set>

#include "tests/unit/fibers.h"

namespace vthr {
namespace {

using Sched = RuntimeTest<2>;

TEST_F(Sched, RunsAndJoins) {
  std::atomic<int> ran{0};
  std::set<uint64_t> ids;
  std::set<int> tids;
  uint64_t live = fiber_live_count();
  for (int round = 0; round < 10; round++) {
    std::vector<Fiber*> all;
    for (int i = 0; i < 200; i++) {
      all.push_back(spawn([&](Fiber* f) {
        if (f == current && (tls_self() == f->tcb) == kFsMoves && f->worker.load()->running.load() == f)
          ran.fetch_add(1);
      }));
      ASSERT_NE(all.back(), nullptr);
      EXPECT_TRUE(ids.insert(all.back()->id).second);
      EXPECT_TRUE(tids.insert(all.back()->tid).second);
      EXPECT_GE(all.back()->tid, kFirstTid);
      EXPECT_EQ(fiber_of(reinterpret_cast<uintptr_t>(all.back()->tcb)), all.back());
    }
    for (Fiber* f : all) join(f);
  }
  EXPECT_EQ(ran.load(), 2000);
  EXPECT_EQ(fiber_live_count(), live);
  EXPECT_EQ(fiber_of(pthread_self()), nullptr);
  EXPECT_EQ(fiber_here(), nullptr);
}

TEST_F(Sched, DetachedFibersRecycleTheirStacks) {
  std::atomic<int> ended{0};
  uint64_t made = stack_stats().made, live = fiber_live_count();
  for (int i = 0; i < 2000; i++) {
    ASSERT_NE(spawn([&](Fiber*) { ended.fetch_add(1); }, true), nullptr);
    ASSERT_TRUE(i % 50 != 49 || eventually([&] { return fiber_live_count() == live; }));
  }
  EXPECT_EQ(ended.load(), 2000);
  EXPECT_LT(stack_stats().made - made, 200u);
}

TEST_F(Sched, TenThousandSleepers) {
  constexpr int kFibers = kTsan ? 1000 : 10000;  // TSan knows about 8,000 threads and fibers at most
  std::atomic<int> woken{0}, early{0};
  int threads = kernel_threads();
  int64_t begun = now_ns();
  Fibers all;
  for (int i = 0; i < kFibers; i++) {
    all.add([&, i](Fiber* f) {
      int64_t deadline = now_ns() + 300 * kMilli + i % 100 * kMilli;
      if (op_sleep(f, Reason::sleep, deadline) != 0 || now_ns() < deadline) early.fetch_add(1);
      woken.fetch_add(1);
    });
  }
  int asleep = kernel_threads();
  all.join_all();
  EXPECT_EQ(woken.load(), kFibers);
  EXPECT_EQ(early.load(), 0);
  if (!kTsan) {
    EXPECT_LT(now_ns() - begun, 5 * kSecond);
  }
  EXPECT_LE(asleep, threads + 4) << "sleepers are not kernel threads";
}

TEST_F(Sched, PingPong) {
  const int kRounds = rounds(50000);
  Gate ping, pong;
  uint64_t parks = value(counters.parks);
  int hits = 0;  // plain: only one of the two runs
  Fibers all;
  all.add([&](Fiber*) {
    for (int i = 0; i < kRounds; i++) {
      ping.wait();
      hits++;
      pong.post();
    }
  });
  all.add([&](Fiber*) {
    for (int i = 0; i < kRounds; i++) {
      hits++;
      ping.post();
      pong.wait();
    }
  });
  all.join_all();
  EXPECT_EQ(hits, 2 * kRounds);
  EXPECT_GT(value(counters.parks), parks);
}

TEST_F(Sched, FiberAndForeignThread) {
  constexpr int kRounds = 5000;
  Gate ping, pong;
  int hits = 0;
  Fibers all;
  all.add([&](Fiber*) {
    for (int i = 0; i < kRounds; i++) {
      ping.wait();
      hits++;
      pong.post();
    }
  });
  for (int i = 0; i < kRounds; i++) {
    hits++;
    ping.post();
    pong.wait();
  }
  all.join_all();
  EXPECT_EQ(hits, 2 * kRounds);
}

// More fibers than a run queue holds become ready in one act of a fiber.
TEST_F(Sched, OneWakesThousands) {
  constexpr int kFibers = kTsan ? 1000 : 3000;
  std::atomic<int> parked{0}, ran{0};
  int key = 0;
  Fibers all;
  for (int i = 0; i < kFibers; i++) {
    all.add([&](Fiber*) {
      ParkArgs args;
      args.reason = Reason::cond;
      args.before_sleep = [](void* n) { static_cast<std::atomic<int>*>(n)->fetch_add(1); };
      args.before_arg = &parked;
      if (park_on(&key, args) == Wake::woken) ran.fetch_add(1);
    });
  }
  ASSERT_TRUE(eventually([&] { return parked.load() == kFibers; }));
  size_t woken = 0;
  all.add([&](Fiber*) { woken = unpark_all(&key); });
  all.join_all();
  EXPECT_EQ(woken, static_cast<size_t>(kFibers));
  EXPECT_EQ(ran.load(), kFibers);
}

TEST_F(Sched, TimedWaitsOfFibers) {
  int key = 0;
  Fibers all;
  all.add([&](Fiber* f) {
    ParkArgs args;
    args.reason = Reason::cond;
    int64_t begun = now_ns();
    args.deadline = begun + 20 * kMilli;
    EXPECT_EQ(park_on(&key, args), Wake::timed_out);
    EXPECT_GE(now_ns(), args.deadline);
    EXPECT_EQ(f->reason.load(), Reason::none);
    EXPECT_FALSE(anybody_parked_on(&key));
    args.deadline = begun - 1;
    EXPECT_EQ(park_on(&key, args), Wake::timed_out) << "in the past";
    args.still = [](const void*, void*) { return false; };
    EXPECT_EQ(park_on(&key, args), Wake::invalid);
  });
}

TEST_F(Sched, InterruptAndCancelEndAWait) {
  int key = 0;
  for (bool cancel : {false, true}) {
    for (bool deaf : {false, true}) {
      std::atomic<int> parked{0};
      Wake how = Wake::invalid;
      Fiber* f = spawn([&](Fiber*) {
        ParkArgs args;
        args.reason = Reason::mutex;
        args.deaf = deaf;
        args.before_sleep = [](void* n) { static_cast<std::atomic<int>*>(n)->fetch_add(1); };
        args.before_arg = &parked;
        how = park_on(&key, args);
      });
      ASSERT_TRUE(eventually([&] { return parked.load() == 1 && f->park.is_parked(); }));
      interrupt_wait(f, cancel);
      if (deaf) {
        usleep(10000);
        EXPECT_TRUE(f->park.is_parked());
        EXPECT_EQ(unpark_one(&key), 1u);
      }
      join(f);
      EXPECT_EQ(how, deaf ? Wake::woken : cancel ? Wake::cancelled : Wake::interrupted);
      EXPECT_FALSE(anybody_parked_on(&key));
    }
  }
  long slept = 1;
  Fiber* f = spawn([&](Fiber* self) { slept = op_sleep(self, Reason::sleep, now_ns() + 60 * kSecond); });
  ASSERT_TRUE(eventually([&] { return f->park.is_parked(); }));
  interrupt_wait(f, false);
  join(f);
  EXPECT_EQ(slept, -EINTR);
}

// A pending, unblocked signal is not slept over.
TEST_F(Sched, APendingSignalEndsAWaitAtOnce) {
  Fibers all;
  all.add([](Fiber* f) {
    int key = 0;
    f->pending.store(sig_bit(SIGUSR1));
    ParkArgs args;
    args.deadline = now_ns() + 10 * kSecond;
    EXPECT_EQ(park_on(&key, args), Wake::interrupted);
    EXPECT_EQ(op_sleep(f, Reason::sleep, now_ns() + 10 * kSecond), -EINTR);
    f->sigmask.store(sig_bit(SIGUSR1));
    args.deadline = now_ns() + 5 * kMilli;
    EXPECT_EQ(park_on(&key, args), Wake::timed_out) << "a blocked one waits";
    EXPECT_EQ(op_sleep(f, Reason::sleep, now_ns() + 5 * kMilli), 0);
    f->pending.store(0);
  });
}

// What a fiber keeps in TLS stays its own wherever it runs.
__thread int mine;
TEST_F(Sched, MigrationKeepsTls) {
  if (!kFsMoves) GTEST_SKIP() << "this build's fibers have no TLS of their own";
  std::atomic<int> wrong{0};
  std::atomic<uint64_t> moves{0};
  Fibers all;
  for (int i = 1; i <= 16; i++) {
    all.add([&, i](Fiber* f) {
      mine = i;
      errno = i;
      Worker* last = f->worker.load();
      uint64_t moved = 0;
      for (int k = 0; k < 2000; k++) {
        burn(2 * kMicro);
        k % 50 == 0 ? sleep_for(f, 10 * kMicro) : yield_now(f);
        if (mine != i || errno != i || current != f) wrong.fetch_add(1);
        Worker* now = f->worker.load();
        moved += now != last;
        last = now;
      }
      moves.fetch_add(moved);
    });
  }
  all.join_all();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GT(moves.load(), 16u) << "nobody migrated: the test is blind";
}

}  // namespace
}  // namespace vthr
