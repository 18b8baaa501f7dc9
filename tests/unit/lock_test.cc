// The runtime's own lock: exclusion, sleeping instead of spinning, and no system call when nobody waits.
#include "runtime/lock.h"

#include "tests/unit/support.h"

namespace vthr {
namespace {

TEST(Lock, TryLock) {
  Lock l;
  EXPECT_TRUE(l.try_lock());
  EXPECT_FALSE(l.try_lock());
  std::thread([&] { EXPECT_FALSE(l.try_lock()); }).join();
  l.unlock();
  std::thread([&] {
    EXPECT_TRUE(l.try_lock());
    l.unlock();
  }).join();
  {
    Locked hold(l);
    EXPECT_FALSE(l.try_lock());
  }
  EXPECT_TRUE(l.try_lock());
  l.reset();  // as in a forked child, whose parent held it
  EXPECT_TRUE(l.try_lock());
  l.unlock();
}

// More threads than CPUs, sections of several lengths; some holders leave the CPU inside, so that others sleep.
TEST(Lock, MutualExclusionWithMoreThreadsThanCpus) {
  const int threads = 8, n = rounds(50000);
  Lock l;
  uint64_t plain = 0;
  std::atomic<int> inside{0}, overlaps{0};
  together(threads, [&](int me) {
    for (int i = 0; i < n; i++) {
      bool by_try = i % 7 == 0;
      if (by_try && !l.try_lock()) by_try = false;
      if (!by_try) l.lock();
      if (inside.fetch_add(1, std::memory_order_relaxed) != 0) overlaps.fetch_add(1);
      plain++;
      if ((i + me) % 500 == 0) sched_yield();
      if ((i + me) % 10000 == 0) usleep(200);
      inside.fetch_sub(1, std::memory_order_relaxed);
      l.unlock();
    }
  });
  EXPECT_EQ(overlaps.load(), 0);
  EXPECT_EQ(plain, static_cast<uint64_t>(threads) * n);
  EXPECT_TRUE(l.try_lock()) << "free at the end";
}

TEST(Lock, WaitersSleep) {
  Lock l;
  l.lock();
  std::atomic<int> got{0};
  std::atomic<int64_t> cpu{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; i++) {
    waiters.emplace_back([&] {
      int64_t before = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
      l.lock();
      got.fetch_add(1);
      l.unlock();
      cpu.fetch_add(cpu_ns(CLOCK_THREAD_CPUTIME_ID) - before);
    });
  }
  usleep(200000);
  EXPECT_EQ(got.load(), 0);
  l.unlock();
  EXPECT_TRUE(eventually([&] { return got.load() == 4; })) << "every sleeper is woken in turn";
  for (auto& t : waiters) t.join();
  EXPECT_LT(cpu.load(), 40 * kMilli) << "4 waiters of 200 ms may not spin";
}

// The same template with atomics that count the system calls.
struct CountingAtomics : RealAtomics {
  static std::atomic<int> waits, wakes;
  static void wait(const void* word, uint32_t value) {
    waits.fetch_add(1);
    sys_futex_wait(word, value);
  }
  static void wake(const void* word) {
    wakes.fetch_add(1);
    sys_futex_wake(word);
  }
};
std::atomic<int> CountingAtomics::waits{0}, CountingAtomics::wakes{0};

TEST(Lock, NoSystemCallWithoutContention) {
  LockT<CountingAtomics> l;
  for (int i = 0; i < 1000; i++) {
    l.lock();
    l.unlock();
    ASSERT_TRUE(l.try_lock());
    ASSERT_FALSE(l.try_lock());
    l.unlock();
  }
  EXPECT_EQ(CountingAtomics::waits.load(), 0);
  EXPECT_EQ(CountingAtomics::wakes.load(), 0);
  l.lock();
  std::thread waiter([&] {
    l.lock();
    l.unlock();
  });
  ASSERT_TRUE(eventually([] { return CountingAtomics::waits.load() > 0; }));
  l.unlock();
  waiter.join();
  EXPECT_GE(CountingAtomics::wakes.load(), 1);
}

}  // namespace
}  // namespace vthr
