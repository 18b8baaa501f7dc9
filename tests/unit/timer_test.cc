// The timer heap against a reference, and disarming while another thread expires.
#include "runtime/timer.h"

#include <map>
#include <memory>
#include <random>

#include "tests/unit/support.h"

namespace vthr {
namespace {

TEST(TimerHeap, EmptyHasNothingDue) {
  TimerHeap h;
  Timer t;
  EXPECT_EQ(h.next(), kNever);
  EXPECT_EQ(h.size(), 0u);
  EXPECT_FALSE(h.expire_one(kNever - 1, [](Timer*) { FAIL(); }));
  EXPECT_FALSE(TimerHeap::disarm(&t)) << "never armed";
}

TEST(TimerHeap, ExpiresWhatIsDueAndNothingElse) {
  TimerHeap h;
  Timer early, late;
  early.when = 100;
  late.when = 200;
  ASSERT_TRUE(h.arm(&late));
  ASSERT_TRUE(h.arm(&early));
  EXPECT_EQ(h.next(), 100);
  Timer* fired = nullptr;
  auto fire = [&](Timer* t) { fired = t; };
  EXPECT_FALSE(h.expire_one(99, fire));
  EXPECT_EQ(fired, nullptr);
  EXPECT_TRUE(h.expire_one(100, fire)) << "due at its very nanosecond";
  EXPECT_EQ(fired, &early);
  EXPECT_EQ(h.next(), 200);
  EXPECT_FALSE(TimerHeap::disarm(&early)) << "it has expired";
  EXPECT_FALSE(h.expire_one(199, fire));
  EXPECT_TRUE(TimerHeap::disarm(&late));
  EXPECT_FALSE(TimerHeap::disarm(&late)) << "once";
  EXPECT_EQ(h.next(), kNever);
  EXPECT_FALSE(h.expire_one(kNever - 1, fire));
}

// Random arming, disarming and expiring, with many equal times, in several sizes (the heap grows from 512 places).
TEST(TimerHeap, AgreesWithAMultimap) {
  for (unsigned seed = 1; seed <= 4; seed++) {
    std::mt19937_64 random(seed);
    const int n = seed % 2 == 0 ? 3000 : 40;
    std::vector<Timer> timers(n);
    TimerHeap heap;
    std::multimap<int64_t, Timer*> reference;
    std::vector<bool> armed(n);
    int64_t clock = 0;
    int expired = 0, disarmed = 0;
    for (int step = 0; step < rounds(200000); step++) {
      int i = static_cast<int>(random() % n);
      Timer* t = &timers[i];
      switch (random() % 8) {
        case 0:
          clock += static_cast<int64_t>(random() % 20);
          while (heap.expire_one(clock, [&](Timer* f) {
            ASSERT_LE(f->when, clock);
            ASSERT_FALSE(reference.empty());
            ASSERT_EQ(f->when, reference.begin()->first) << "the earliest goes first";
            auto range = reference.equal_range(f->when);
            auto found = range.first;
            while (found != range.second && found->second != f) ++found;
            ASSERT_NE(found, range.second) << "expired without being armed";
            reference.erase(found);
            armed[f - timers.data()] = false;
            expired++;
          })) {
          }
          ASSERT_TRUE(reference.empty() || reference.begin()->first > clock) << "one that was due is left";
          break;
        case 1:
        case 2:
        case 3: {
          bool was = armed[i];
          ASSERT_EQ(TimerHeap::disarm(t), was);
          if (!was) break;
          disarmed++;
          auto range = reference.equal_range(t->when);
          auto found = range.first;
          while (found->second != t) ++found;
          reference.erase(found);
          armed[i] = false;
          break;
        }
        default:
          if (armed[i]) break;
          t->when = clock + static_cast<int64_t>(random() % 1000);
          if (random() % 100 == 0) t->when = clock - 5;  // in the past already
          ASSERT_TRUE(heap.arm(t));
          reference.emplace(t->when, t);
          armed[i] = true;
      }
      ASSERT_EQ(heap.size(), reference.size());
      ASSERT_EQ(heap.next(), reference.empty() ? kNever : reference.begin()->first);
    }
    EXPECT_GT(expired, 200);
    EXPECT_GT(disarmed, 200);
  }
}

TEST(TimerHeap, ATimerMayMoveToAnotherHeap) {
  TimerHeap a, b;
  Timer t;
  t.when = 5;
  ASSERT_TRUE(a.arm(&t));
  ASSERT_TRUE(TimerHeap::disarm(&t));
  ASSERT_TRUE(b.arm(&t));
  EXPECT_EQ(a.size(), 0u);
  EXPECT_EQ(b.size(), 1u);
  EXPECT_TRUE(TimerHeap::disarm(&t));
  EXPECT_EQ(b.size(), 0u);
}

// One thread arms and expires, as the owner of a carrier does; another disarms, as whoever runs the fiber next does. Each
// timer ends once, and after disarm() no expiry of it is under way: what fire() wrote may be read without a lock.
TEST(TimerHeap, DisarmWhileExpiring) {
  struct Waiter {
    Timer timer;
    int fired = 0;              // plain, written by fire()
    std::atomic<int> round{0};  // 1: armed
    int ended = 0;              // by the disarming thread
  };
  constexpr int kWaiters = 64;
  const int n = rounds(4000);
  auto waiters = std::make_unique<Waiter[]>(kWaiters);
  TimerHeap heap;
  std::atomic<bool> stop{false};
  int done = 0;
  uint64_t by_expiry = 0, by_disarm = 0, wrong = 0;
  together(2, [&](int me) {
    std::mt19937 random(static_cast<unsigned>(me));
    Spin spin;
    if (me == 0) {
      for (Budget budget(n); budget.has(done); done++) {
        for (int i = 0; i < kWaiters; i++) {
          Waiter& w = waiters[i];
          // some only end by being disarmed
          w.timer.when = now_ns() + (i % 4 == 0 ? 60 * kSecond : static_cast<int64_t>(random() % 20000));
          ASSERT_TRUE(heap.arm(&w.timer));
          w.round.store(1, std::memory_order_release);
        }
        for (bool all = false; !all; spin()) {
          while (heap.expire_one(now_ns(), [](Timer* t) { reinterpret_cast<Waiter*>(t)->fired++; })) {
          }
          all = true;
          for (int i = 0; i < kWaiters; i++)
            all = all && waiters[i].round.load(std::memory_order_acquire) == 0;
        }
      }
      stop.store(true);
      return;
    }
    for (; !stop.load(); spin()) {
      int i = static_cast<int>(random() % kWaiters);
      for (int k = 0; k < kWaiters; k++) {
        Waiter& w = waiters[(i + k) % kWaiters];
        if (w.round.load(std::memory_order_acquire) == 0 || random() % 2 == 0) continue;
        bool mine = TimerHeap::disarm(&w.timer);
        int fired = w.fired - w.ended;  // since its last round
        if (fired != (mine ? 0 : 1)) wrong++;
        w.ended = w.fired;
        mine ? by_disarm++ : by_expiry++;
        w.round.store(0, std::memory_order_release);
      }
    }
  });
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(by_disarm + by_expiry, static_cast<uint64_t>(done) * kWaiters);
  EXPECT_GT(by_disarm, 0u);
  EXPECT_GT(by_expiry, 0u);
  EXPECT_EQ(heap.size(), 0u);
  EXPECT_EQ(heap.next(), kNever);
}

}  // namespace
}  // namespace vthr
