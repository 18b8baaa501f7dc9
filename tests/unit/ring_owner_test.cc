// A carrier changes hands: the new worker must get the completions of requests that the old one submitted, at once,
// although the old one is blocked in the kernel or spins (DESIGN D3).
#include <dirent.h>

#include "tests/unit/ring_fixture.h"

namespace vthr {
namespace {

int count_fds() {
  int n = 0;
  DIR* d = opendir("/proc/self/fd");
  while (readdir(d) != nullptr) n++;
  closedir(d);
  return n;
}

class RingOwner : public Engines {
 protected:
  // The first owner submits `queue`d requests, has slept once (its bell is armed), and then blocks in `block`. The test's
  // thread takes the ring over.
  template <class Q, class B>
  void first_owner(Q queue, B block) {
    std::atomic<bool> gone{false};
    first_ = std::thread([&, queue, block] {
      queue();
      ring->round();
      ring->sleep(now_ns() + kMilli);
      gone.store(true);
      block();
      blocked_until_ = now_ns();
    });
    while (!gone.load()) sched_yield();
    usleep(20000);
    ring->new_owner();
  }
  void TearDown() override {
    if (first_.joinable()) first_.join();
    Engines::TearDown();
  }
  // Until `op` is done, as the loop of a worker waits; the time it took.
  int64_t wait_for(Op* op) {
    int64_t begun = now_ns();
    while (!op->done && now_ns() - begun < 5 * kSecond) ring->sleep(begun + 5 * kSecond);
    return now_ns() - begun;
  }
  std::thread first_;
  int64_t blocked_until_ = 0;
};

void raw_sleep(int64_t ns, long* result) {
  timespec ts{ns / kSecond, ns % kSecond};
  *result = sys_call(SYS_nanosleep, sys_arg(&ts));
}

TEST_P(RingOwner, CompletionsOfABlockedPredecessor) {
  static Op reading, receiving, polling;
  static char text[8], more[8];
  reading = receiving = polling = Op{};
  long slept = -1;
  int64_t begun = now_ns();
  first_owner(
      [&] {
        ring->queue(request(IORING_OP_READ, pipe_[0], text, sizeof text), &reading);
        ring->queue(recv(pair_[0], more, sizeof more), &receiving);
        Request poll = request(IORING_OP_POLL_ADD, pair_[1]);
        poll.flags = POLLIN;
        ring->queue(poll, &polling);
      },
      [&] { raw_sleep(800 * kMilli, &slept); });
  ASSERT_EQ(write(pipe_[1], "abc", 3), 3);
  wait_for(&reading);
  EXPECT_EQ(reading.res, 3);
  ASSERT_EQ(write(pair_[1], "de", 2), 2);
  wait_for(&receiving);
  EXPECT_EQ(receiving.res, 2);
  ASSERT_EQ(write(pair_[0], "f", 1), 1);
  wait_for(&polling);
  EXPECT_NE(polling.res & POLLIN, 0);
  EXPECT_LT(now_ns() - begun, 700 * kMilli) << "completions waited for the end of the predecessor's sleep";
  first_.join();
  EXPECT_EQ(slept, 0) << "a completion interrupted the predecessor's sleep";
  EXPECT_GE(blocked_until_ - begun, 800 * kMilli);
}

// It spins in user code: its completions come with the next tick.
TEST_P(RingOwner, CompletionsOfASpinningPredecessor) {
  static Op receiving;
  static char text[8];
  receiving = Op{};
  std::atomic<bool> stop{false};
  first_owner([&] { ring->queue(recv(pair_[0], text, sizeof text), &receiving); },
              [&] {
                while (!stop.load(std::memory_order_relaxed)) __builtin_ia32_pause();
              });
  ASSERT_EQ(write(pair_[1], "abc", 3), 3);
  EXPECT_LT(wait_for(&receiving), 500 * kMilli);
  stop.store(true);
  first_.join();  // it reads `stop`, which ends here
  EXPECT_EQ(receiving.res, 3);
}

TEST_P(RingOwner, CancelOfWhatAPredecessorSubmitted) {
  static Op reading;
  static char text[8];
  reading = Op{};
  long slept = -1;
  first_owner([&] { ring->queue(request(IORING_OP_READ, pipe_[0], text, sizeof text), &reading); },
              [&] { raw_sleep(500 * kMilli, &slept); });
  ring->queue_cancel(&reading);
  EXPECT_LT(wait_for(&reading), 400 * kMilli);
  EXPECT_EQ(reading.res, -ECANCELED);
  first_.join();
  EXPECT_EQ(slept, 0);
}

// The bell of the new owner rings at once, again and again; the old one's is given back.
TEST_P(RingOwner, TheBellIsTheNewOwners) {
  long slept = -1;
  first_owner([] {}, [&] { raw_sleep(600 * kMilli, &slept); });
  for (int i = 0; i < 10; i++) {
    std::atomic<bool> rung{false};
    std::thread ringer([&] {
      usleep(2000);
      rung.store(true);
      ring->ring_bell();
    });
    int64_t begun = now_ns();
    while (!rung.load() && now_ns() - begun < 2 * kSecond) ring->sleep(begun + 2 * kSecond);
    EXPECT_LT(now_ns() - begun, 500 * kMilli) << i;
    ringer.join();
  }
  first_.join();
  EXPECT_EQ(slept, 0);
}

// Hundreds of hand-offs among three threads, of which two are blocked at any time: every owner gets its completions, and
// the number of descriptors stays what it was.
TEST_P(RingOwner, ManyOwnersLeakNoDescriptors) {
  constexpr int kThreads = 3, kTurns = 600;
  std::atomic<uint32_t> turn{0};
  int before = 0, after = 0, slow = 0;
  together(kThreads, [&](int me) {
    for (uint32_t mine = static_cast<uint32_t>(me); mine < kTurns; mine += kThreads) {
      for (uint32_t t; (t = turn.load()) != mine;) sys_futex_wait(&turn, t);
      ring->new_owner();
      Op op;
      char c = 0;
      ring->queue(recv(pair_[0], &c, 1), &op);
      ring->round();
      ring->sleep(now_ns() + 10 * kMicro);
      EXPECT_EQ(write(pair_[1], "x", 1), 1);
      if (wait_for(&op) > kSecond || op.res != 1) slow++;
      if (mine == 100) before = count_fds();
      if (mine == kTurns - 1) after = count_fds();
      turn.store(mine + 1);
      sys_futex_wake(&turn, kThreads);
    }
  });
  EXPECT_EQ(slow, 0);
  EXPECT_LE(after, before + 3);
}

INSTANTIATE_TEST_SUITE_P(Both, RingOwner, testing::Values(ring_make, epoll_make), engine_of);

}  // namespace
}  // namespace vthr
