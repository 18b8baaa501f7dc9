// The wait word: one winner per wait, whoever is late. The park word: one owner per park.
#include "runtime/wait.h"

#include <string.h>

#include <set>
#include <string>

#include "tests/unit/support.h"

namespace vthr {
namespace {

using State = WaitWord::State;
constexpr State kOutcomes[4] = {WaitWord::woken, WaitWord::timed_out, WaitWord::interrupted,
                                WaitWord::cancelled};

TEST(WaitWord, ReturnsTheOutcomeThatEndedIt) {
  WaitWord w;
  for (State outcome : kOutcomes) {
    for (State kind : {WaitWord::waiting, WaitWord::waiting_deaf}) {
      uint64_t ticket = w.begin(kind);
      EXPECT_EQ(WaitWord::state_of(ticket), kind);
      EXPECT_EQ(w.load(), ticket);
      EXPECT_TRUE(w.end(ticket, outcome));
      EXPECT_NE(w.load(), ticket) << "a sleeper that compares the word must see the end";
      EXPECT_EQ(w.finish(), outcome);
    }
  }
}

TEST(WaitWord, OnlyTheFirstWins) {
  WaitWord w;
  uint64_t ticket = w.begin(WaitWord::waiting);
  EXPECT_TRUE(w.end(ticket, WaitWord::timed_out));
  EXPECT_FALSE(w.end(ticket, WaitWord::woken));
  EXPECT_FALSE(w.end(ticket, WaitWord::timed_out));
  EXPECT_EQ(w.finish(), WaitWord::timed_out);
}

TEST(WaitWord, AnOldTicketNeverEndsALaterWait) {
  WaitWord w;
  std::vector<uint64_t> old;
  for (int i = 0; i < 300; i++) {
    uint64_t ticket = w.begin(i % 3 == 0 ? WaitWord::requesting : WaitWord::waiting);
    for (uint64_t t : old) {
      ASSERT_NE(t, ticket);
      for (State s : kOutcomes) ASSERT_FALSE(w.end(t, s));
      ASSERT_FALSE(w.end_request(t));
      ASSERT_FALSE(w.is_request(t));
    }
    ASSERT_EQ(w.load(), ticket);
    // ends in every possible way, also not at all (a validation that failed)
    if (i % 3 == 0) {
      if (i % 2 == 0) {
        ASSERT_TRUE(w.end(ticket, WaitWord::nudged));
      }
      ASSERT_TRUE(w.end_request(ticket));
    } else if (i % 3 == 1) {
      ASSERT_TRUE(w.end(ticket, WaitWord::interrupted));
    }
    w.finish();
    ASSERT_FALSE(w.end(ticket, WaitWord::woken)) << "not even while idle";
    old.push_back(ticket);
  }
}

TEST(WaitWord, RequestWithoutANudge) {
  WaitWord w;
  uint64_t ticket = w.begin(WaitWord::requesting);
  EXPECT_EQ(WaitWord::state_of(ticket), WaitWord::requesting);
  EXPECT_TRUE(w.is_request(ticket));
  EXPECT_TRUE(w.end_request(ticket));
  EXPECT_FALSE(w.is_request(ticket));
  EXPECT_FALSE(w.end_request(ticket));
  EXPECT_FALSE(w.end(ticket, WaitWord::nudged)) << "the end of an operation that is over cannot be asked for";
  bool nudged = true;
  EXPECT_EQ(w.finish(&nudged), WaitWord::woken);
  EXPECT_FALSE(nudged);
}

TEST(WaitWord, RequestWithANudge) {
  WaitWord w;
  uint64_t ticket = w.begin(WaitWord::requesting);
  EXPECT_TRUE(w.end(ticket, WaitWord::nudged));
  EXPECT_FALSE(w.end(ticket, WaitWord::nudged)) << "one nudge a wait";
  EXPECT_TRUE(w.is_request(ticket)) << "a nudge only asks: the operation is still under way";
  EXPECT_TRUE(w.end_request(ticket));
  EXPECT_FALSE(w.is_request(ticket));
  EXPECT_FALSE(w.end_request(ticket));
  bool nudged = false;
  EXPECT_EQ(w.finish(&nudged), WaitWord::woken);
  EXPECT_TRUE(nudged);
  // the mark is gone
  ticket = w.begin(WaitWord::requesting);
  EXPECT_EQ(WaitWord::state_of(ticket), WaitWord::requesting);
  EXPECT_TRUE(w.end_request(ticket));
  EXPECT_EQ(w.finish(&nudged), WaitWord::woken);
  EXPECT_FALSE(nudged);
  ticket = w.begin(WaitWord::waiting);
  EXPECT_TRUE(w.end(ticket, WaitWord::timed_out));
  EXPECT_EQ(w.finish(&nudged), WaitWord::timed_out);
  EXPECT_FALSE(nudged);
}

// One waiter and four threads that want to end each of its waits, with an outcome of their own and never in step with
// it, so that many of their tickets are old ones.
TEST(WaitWord, OneWinnerAmongFourThreads) {
  const int n = rounds(100000);
  WaitWord w;
  std::vector<uint64_t> tickets(n);
  std::vector<std::atomic<int>> winners(n);  // by round: how many, and in the tens who
  std::atomic<int> published{0};
  std::atomic<bool> stop{false};
  int done = 0;
  int says[4] = {};  // plain: what the winner wrote before it won is seen by the waiter
  int wrong = 0, unseen = 0;
  together(5, [&](int me) {
    if (me < 4) {
      Spin spin;
      for (int seen = 0; !stop.load(); spin()) {
        int now = published.load(std::memory_order_acquire);
        if (now == seen) continue;
        seen = now;
        says[me] = seen;
        if (w.end(tickets[seen - 1], kOutcomes[me])) winners[seen - 1].fetch_add(10 * me + 1);
      }
      return;
    }
    for (Budget budget(n); budget.has(done); done++) {
      int i = done;
      uint64_t ticket = tickets[i] = w.begin(WaitWord::waiting);
      published.store(i + 1, std::memory_order_release);
      for (Spin spin; w.load() == ticket;) spin();
      State s = w.finish();
      int who = 0;
      while (who < 4 && kOutcomes[who] != s) who++;
      if (who == 4 || !eventually([&] { return winners[i].load() != 0; })) {
        wrong++;
        continue;
      }
      if (winners[i].load() / 10 != who) wrong++;
      if (says[who] != i + 1) unseen++;
    }
    stop.store(true);
  });
  EXPECT_EQ(wrong, 0) << "the outcome was not the winner's";
  EXPECT_EQ(unseen, 0) << "the winner's writes were not seen";
  EXPECT_GT(done, 100);
  for (int i = 0; i < done; i++) ASSERT_EQ(winners[i].load() % 10, 1) << "round " << i;
}

// A reaper and somebody who asks for the end: the reaper always wins, and the waiter hears of the nudge if there was one.
TEST(WaitWord, ANudgeRacesWithTheCompletion) {
  const int n = rounds(30000);
  WaitWord w;
  std::vector<uint64_t> tickets(n);
  std::atomic<int> published{0}, nudger_at{0}, reaper_at{0};
  std::atomic<bool> stop{false};
  int done = 0;
  std::vector<char> nudged(n), reaped(n);
  int lost = 0, mark_wrong = 0, nudges = 0;
  together(3, [&](int me) {
    if (me < 2) {
      auto& at = me == 0 ? nudger_at : reaper_at;
      for (int i = 0; i < n; i++) {
        for (Spin spin; published.load(std::memory_order_acquire) <= i; spin()) {
          if (stop.load()) return;
        }
        // now one is late, now the other; in one round of eight each for certain, whatever the machine does
        std::atomic<int>* before_me = me == 0 && i % 8 == 0   ? &reaper_at
                                      : me == 1 && i % 8 == 4 ? &nudger_at
                                                              : nullptr;
        if (before_me != nullptr) {
          for (Spin spin; before_me->load(std::memory_order_acquire) <= i; spin()) {
          }
        }
        for (int k = (me == 0) == (i % 4 < 2) ? 200 : 0; k > 0; k--) __builtin_ia32_pause();
        if (me == 0) {
          nudged[i] = w.end(tickets[i], WaitWord::nudged);
        } else {
          reaped[i] = w.end_request(tickets[i]);
        }
        at.store(i + 1, std::memory_order_release);
      }
      return;
    }
    for (Budget budget(n); budget.has(done); done++) {
      int i = done;
      tickets[i] = w.begin(WaitWord::requesting);
      published.store(i + 1, std::memory_order_release);
      Spin spin;
      // half of the rounds end before the nudger came
      while (reaper_at.load(std::memory_order_acquire) <= i) spin();
      if (i % 2 == 0) {
        while (nudger_at.load(std::memory_order_acquire) <= i) spin();
      }
      bool mark = false;
      if (w.finish(&mark) != WaitWord::woken || !reaped[i]) lost++;
      while (nudger_at.load(std::memory_order_acquire) <= i) spin();
      if (mark != (nudged[i] != 0)) mark_wrong++;
      nudges += nudged[i];
    }
    stop.store(true);
  });
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(mark_wrong, 0);
  ASSERT_GT(done, 16);
  EXPECT_GT(nudges, 0) << "the nudger was never first";
  EXPECT_LT(nudges, done) << "the reaper was never first";
}

TEST(ParkWord, ParksUntilUnparked) {
  ParkWord p;
  EXPECT_FALSE(p.is_parked());
  EXPECT_TRUE(p.commit());
  EXPECT_TRUE(p.is_parked());
  EXPECT_TRUE(p.unpark()) << "the caller owns the fiber";
  EXPECT_FALSE(p.is_parked());
}

TEST(ParkWord, UnparkBeforeTheCommit) {
  ParkWord p;
  for (int i = 0; i < 3; i++) {
    EXPECT_FALSE(p.unpark()) << "the scheduler still owns it";
    EXPECT_FALSE(p.is_parked());
    EXPECT_FALSE(p.commit()) << "it runs on";
    EXPECT_FALSE(p.is_parked());
    EXPECT_TRUE(p.commit()) << "an unpark serves one park";
    EXPECT_TRUE(p.unpark());
  }
}

// Commit against unpark: exactly one side owns the fiber afterwards, and sees what the other wrote.
TEST(ParkWord, ExactlyOneOwner) {
  const int n = rounds(60000);
  ParkWord p;
  std::atomic<int> begun{0}, over{0}, unparked{0}, committed{0};
  std::atomic<bool> stop{false};
  int done = 0;
  int fiber = 0;  // plain: the state that moves with the ownership
  int both = 0, nobody = 0, by_unpark = 0;
  std::vector<char> theirs(n);
  together(2, [&](int me) {
    Budget budget(n);
    for (int i = 0; me == 0 ? budget.has(i) : i < n; i++) {
      Spin spin;
      if (me == 0) {
        done = i + 1;
        begun.store(i + 1, std::memory_order_release);
        fiber++;
        for (int k = i % 64; k > 0; k--) __builtin_ia32_pause();
        // in one round of eight each is first for certain, whatever the machine does
        while (i % 8 == 0 && unparked.load(std::memory_order_acquire) <= i) spin();
        bool parked = p.commit();
        committed.store(i + 1, std::memory_order_relaxed);
        if (!parked) fiber++;
        while (unparked.load(std::memory_order_acquire) <= i) spin();
        if (!parked && theirs[i]) both++;
        if (parked && !theirs[i]) nobody++;
        by_unpark += parked;
        over.store(i + 1, std::memory_order_release);
      } else {
        for (; begun.load(std::memory_order_acquire) <= i; spin()) {
          if (stop.load()) return;
        }
        for (int k = i % 32; k > 0; k--) __builtin_ia32_pause();
        while (i % 8 == 4 && committed.load(std::memory_order_relaxed) <= i) spin();
        theirs[i] = p.unpark();
        if (theirs[i]) fiber++;
        unparked.store(i + 1, std::memory_order_release);
        while (over.load(std::memory_order_acquire) <= i) spin();
      }
    }
    stop.store(true);
  });
  EXPECT_EQ(both, 0) << "two owners";
  EXPECT_EQ(nobody, 0) << "a lost wake";
  EXPECT_EQ(fiber, 2 * done);
  if (done < n) return;
  EXPECT_GT(by_unpark, 0) << "one-sided: the test is blind";
  EXPECT_LT(by_unpark, done);
}

TEST(WaitReasons, EachHasANameOfItsOwn) {
  std::set<std::string> names;
  int n = 0;
#define WAIT_REASON(name, own)             \
  n++;                                     \
  names.insert(reason_name(Reason::name)); \
  EXPECT_STREQ(reason_name(Reason::name), #name);
#include "runtime/wait_reasons.def"
#undef WAIT_REASON
  EXPECT_EQ(names.size(), static_cast<size_t>(n));
}

// DESIGN section 5: who keeps the admission slot while it waits.
TEST(WaitReasons, OwnRequests) {
  for (Reason r : {Reason::sleep, Reason::read, Reason::write, Reason::recv, Reason::send, Reason::connect,
                   Reason::poll, Reason::select, Reason::epoll}) {
    EXPECT_TRUE(reason_is_own_request(r)) << reason_name(r);
  }
  for (Reason r : {Reason::mutex, Reason::cond, Reason::rwlock, Reason::sem, Reason::barrier, Reason::futex,
                   Reason::join, Reason::accept, Reason::create}) {
    EXPECT_FALSE(reason_is_own_request(r)) << reason_name(r);
  }
}

}  // namespace
}  // namespace vthr
