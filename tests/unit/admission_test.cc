// The cap: who gets a slot, who gives it up, who has to wait.
#include "runtime/admission.h"

#include <errno.h>

#include <memory>
#include <random>

#include "tests/unit/admission_fixture.h"

namespace vthr {
namespace {

TEST_F(AdmissionTest, NoCap) {
  options.max_concurrency = 0;
  EXPECT_FALSE(admission_active());
  std::vector<std::unique_ptr<Fiber>> many;
  for (int i = 0; i < 1000; i++) {
    many.push_back(std::make_unique<Fiber>());
    ASSERT_EQ(admission_enter(many.back().get()), 0);
  }
  EXPECT_TRUE(admission_gate(many[0].get()));
  for (auto& f : many) admission_leave(f.get());
  EXPECT_EQ(admission_queued(), 0u);
}

TEST_F(AdmissionTest, QueueStartsLaterInOrder) {
  EXPECT_TRUE(admission_active());
  EXPECT_EQ(admission_enter(&a), 0);
  EXPECT_EQ(admission_enter(&b), 0);
  EXPECT_EQ(admission_enter(&c), 1);
  EXPECT_EQ(admission_enter(&d), 1);
  EXPECT_EQ(admission_enter(&e), 1);
  EXPECT_EQ(admission_queued(), 3u);
  EXPECT_GE(admission_oldest(now_ns() + kSecond), kSecond);
  EXPECT_EQ(next_ready(), nullptr);
  admission_leave(&b);
  EXPECT_EQ(next_ready(), &c);
  EXPECT_EQ(next_ready(), nullptr) << "one end, one start";
  admission_leave(&c);
  EXPECT_EQ(next_ready(), &d);
  admission_leave(&a);
  EXPECT_EQ(next_ready(), &e);
  EXPECT_EQ(admission_queued(), 0u);
  EXPECT_EQ(admission_oldest(now_ns()), 0);
  admission_leave(&d);
  EXPECT_EQ(admission_enter(&a), 0);
}

TEST_F(AdmissionTest, RejectSaysEagainOnlyWhenFull) {
  options.admission = kAdmitReject;
  EXPECT_EQ(admission_enter(&a), 0);
  EXPECT_EQ(admission_enter(&b), 0);
  EXPECT_EQ(admission_enter(&c), -EAGAIN);
  EXPECT_EQ(admission_queued(), 0u);
  admission_leave(&a);
  EXPECT_EQ(admission_enter(&c), 0);
  EXPECT_EQ(admission_enter(&d), -EAGAIN);
}

// The creator waits until the new fiber has a slot; what comes between its look and its sleep is not missed.
TEST_F(AdmissionTest, BlockWaitsForTheNewFibersSlot) {
  options.admission = kAdmitBlock;
  EXPECT_EQ(admission_enter(&a), 0);
  EXPECT_EQ(admission_enter(&b), 0);
  c.id = 3;
  int waits = 0;
  on_park = [&](const void* key, const ParkArgs& args) {
    if (waits > 0 && !args.still(key, args.still_arg)) return Wake::invalid;
    EXPECT_EQ(args.reason, Reason::create);
    EXPECT_EQ(args.deadline, kNever);
    EXPECT_TRUE(args.still(key, args.still_arg)) << "c waits: the creator may sleep";
    if (++waits == 3) {
      unparked.clear();
      admission_leave(&a);
      EXPECT_EQ(unparked.count(key), 1u) << "the creator is woken";
      EXPECT_FALSE(args.still(key, args.still_arg)) << "c has a slot: it must not sleep";
    }
    return Wake::woken;
  };
  EXPECT_GE(admission_enter(&c), 0);
  EXPECT_EQ(waits, 3) << "spurious wakes are not taken for slots";
  EXPECT_EQ(next_ready(), &c);
  EXPECT_EQ(next_ready(), nullptr) << "queued once";
}

TEST_F(AdmissionTest, SlotsOfLongWaitsForOthersGoOn) {
  const int64_t now = 100 * kSecond;
  admission_enter(&a);
  admission_enter(&b);
  admission_enter(&c);
  parks(&a, Reason::recv, now - 60 * kSecond);   // its own request's I/O: however long
  parks(&b, Reason::mutex, now - 900 * kMilli);  // not yet a second
  admission_scan(now);
  EXPECT_EQ(next_ready(), nullptr);
  admission_scan(now + 200 * kMilli);
  EXPECT_EQ(next_ready(), &c);
  // b's wait ends: it needs a slot first, and gets one before fibers that have not started
  admission_enter(&d);
  unparks(&b);
  EXPECT_EQ(next_ready(), nullptr);
  EXPECT_EQ(admission_queued(), 2u);
  admission_leave(&c);
  EXPECT_EQ(next_ready(), &b);
  EXPECT_EQ(next_ready(), nullptr);
  // b has a slot: its next wait ends without a queue
  parks(&b, Reason::cond, now);
  unparks(&b);
  EXPECT_EQ(next_ready(), &b);
  admission_leave(&b);
  EXPECT_EQ(next_ready(), &d);
}

TEST_F(AdmissionTest, EveryWaitForOthersGivesTheSlotUp) {
  for (Reason r : {Reason::mutex, Reason::cond, Reason::rwlock, Reason::sem, Reason::barrier, Reason::futex,
                   Reason::join, Reason::accept, Reason::create}) {
    SetUp();
    options.max_concurrency = 1;
    Fiber holder, newcomer;
    admission_enter(&holder);
    admission_enter(&newcomer);
    parks(&holder, r, kSecond);
    admission_scan(4 * kSecond);
    EXPECT_EQ(next_ready(), &newcomer) << reason_name(r);
  }
}

TEST_F(AdmissionTest, ARunningFiberKeepsItsSlot) {
  admission_enter(&a);
  admission_enter(&b);
  admission_enter(&c);
  a.reason.store(Reason::mutex);
  a.hold_since = 1;  // it was parked, but runs again
  admission_scan(100 * kSecond);
  EXPECT_EQ(next_ready(), nullptr);
}

// DESIGN section 5: idle pool workers and acceptors hold no slots, whatever the policy.
TEST_F(AdmissionTest, RejectHasRoomWhileOthersWaitLong) {
  options.admission = kAdmitReject;
  admission_enter(&a);
  admission_enter(&b);
  parks(&a, Reason::cond, kSecond);
  admission_scan(5 * kSecond);
  EXPECT_EQ(admission_enter(&c), 0);
  EXPECT_EQ(admission_enter(&d), -EAGAIN);
}

TEST_F(AdmissionTest, BlockedCreatorsHearOfReleasedSlots) {
  options.admission = kAdmitBlock;
  admission_enter(&a);
  admission_enter(&b);
  parks(&a, Reason::accept, kSecond);
  int waits = 0;
  on_park = [&](const void* key, const ParkArgs& args) {
    if (!args.still(key, args.still_arg)) return Wake::invalid;
    if (++waits == 1) admission_scan(5 * kSecond);
    EXPECT_EQ(unparked.count(key), 1u);
    return Wake::woken;
  };
  EXPECT_GE(admission_enter(&c), 0);
  EXPECT_EQ(waits, 1);
  EXPECT_EQ(next_ready(), &c);
}

// A creator that is a fiber does no work while it waits: its slot serves the queue at once.
TEST_F(AdmissionTest, ABlockedCreatorLendsItsSlot) {
  options.admission = kAdmitBlock;
  options.max_concurrency = 1;
  admission_enter(&a);
  current = &a;
  on_park = [&](const void* key, const ParkArgs& args) {
    EXPECT_FALSE(args.still(key, args.still_arg)) << "c had a's slot at once";
    return Wake::invalid;
  };
  while_parked = [&] {
    EXPECT_EQ(next_ready(), &c);
    admission_leave(&c);
  };
  EXPECT_GE(admission_enter(&c), 0);
  current = nullptr;
  EXPECT_EQ(next_ready(), &a) << "and a one of its own before it runs on";
  EXPECT_EQ(a.slotting, Slotting::held);
}

TEST_F(AdmissionTest, AJoinerGivesItsSlotToWhomItJoins) {
  admission_enter(&a);
  admission_enter(&b);
  admission_enter(&c);
  admission_enter(&d);
  admission_joined(&d, &a);
  EXPECT_EQ(next_ready(), &d) << "although c came first";
  EXPECT_EQ(admission_queued(), 1u);
  parks(&a, Reason::join, 1);
  unparks(&a);
  EXPECT_EQ(next_ready(), nullptr);
  admission_leave(&d);
  EXPECT_EQ(next_ready(), &a) << "back before newcomers";
  admission_joined(&b, &a);  // it runs: nothing to give
  EXPECT_EQ(next_ready(), nullptr);
  admission_leave(&a);
  EXPECT_EQ(next_ready(), &c);
}

TEST_F(AdmissionTest, AForeignJoinMovesToTheHead) {
  admission_enter(&a);
  admission_enter(&b);
  admission_enter(&c);
  admission_enter(&d);
  admission_joined(&d, nullptr);
  EXPECT_EQ(next_ready(), nullptr);
  EXPECT_EQ(admission_queued(), 2u);
  admission_leave(&a);
  EXPECT_EQ(next_ready(), &d);
}

// A joiner that gave its slot away and then did not have to wait takes one again.
TEST_F(AdmissionTest, Regain) {
  admission_enter(&a);
  admission_enter(&b);
  admission_enter(&c);
  admission_joined(&c, &a);
  ASSERT_EQ(next_ready(), &c);
  admission_leave(&c);
  while_parked = [] { ADD_FAILURE() << "a slot was free: it runs on"; };
  admission_regain(&a);
  EXPECT_FALSE(a.park.is_parked());
  EXPECT_EQ(a.slotting, Slotting::held);
  EXPECT_EQ(next_ready(), nullptr) << "nobody queues a fiber that runs";
  // and with none free it parks until there is one
  admission_enter(&d);
  admission_joined(&d, &a);
  ASSERT_EQ(next_ready(), &d);
  while_parked = [&] {
    EXPECT_EQ(next_ready(), nullptr);
    admission_leave(&d);
  };
  admission_regain(&a);
  EXPECT_EQ(next_ready(), &a);
  EXPECT_EQ(a.slotting, Slotting::held);
  EXPECT_FALSE(a.park.is_parked());
}

// Random lives of 40 fibers under a cap of 4: never more than the cap make progress, and in the end all have run.
TEST_F(AdmissionTest, NeverMoreThanTheCapAndNobodyIsForgotten) {
  constexpr int kFibers = 40, kCap = 4;
  options.max_concurrency = kCap;
  for (unsigned seed = 1; seed <= 50; seed++) {
    admission_after_fork();
    readied.clear();
    std::mt19937 random(seed);
    std::vector<std::unique_ptr<Fiber>> fibers;
    for (int i = 0; i < kFibers; i++) fibers.push_back(std::make_unique<Fiber>());
    std::vector<Fiber*> running, parked;
    int started = 0, ended = 0;
    int64_t now = kSecond;
    auto take = [&](std::vector<Fiber*>& from) {
      size_t i = random() % from.size();
      Fiber* f = from[i];
      from.erase(from.begin() + static_cast<long>(i));
      return f;
    };
    for (int step = 0; ended < kFibers; step++) {
      ASSERT_LT(step, 100000) << "somebody was forgotten, seed " << seed;
      now += static_cast<int64_t>(random() % 400) * kMilli;
      switch (random() % 6) {
        case 0:
          if (started == kFibers) break;
          if (admission_enter(fibers[started++].get()) == 0) running.push_back(fibers[started - 1].get());
          break;
        case 1:
          if (running.empty()) break;
          admission_leave(take(running));
          ended++;
          break;
        case 2:
        case 3:
          if (running.empty()) break;
          parked.push_back(take(running));
          parks(parked.back(), random() % 3 == 0 ? Reason::recv : Reason::mutex, now);
          break;
        case 4:
          if (!parked.empty()) unparks(take(parked));
          break;
        default:
          admission_scan(now);
      }
      while (Fiber* f = next_ready()) running.push_back(f);
      ASSERT_LE(running.size(), static_cast<size_t>(kCap)) << "seed " << seed;
    }
    EXPECT_EQ(admission_queued(), 0u);
  }
}

}  // namespace
}  // namespace vthr
