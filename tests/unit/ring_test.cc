// The engines alone: requests and their completions, cancels, the bell, deadlines, and a new owner while the
// old one is blocked. Completions come to an op_finish of the test's own.
#include "runtime/engine.h"

#include <dirent.h>

#include <set>

#include "tests/unit/ring_fixture.h"

#include <vector>

namespace vthr {

namespace {

std::set<int> open_fds() {
  std::set<int> fds;
  DIR* d = opendir("/proc/self/fd");
  while (dirent* e = readdir(d)) {
    if (e->d_name[0] != '.' && atoi(e->d_name) != dirfd(d)) fds.insert(atoi(e->d_name));
  }
  closedir(d);
  return fds;
}

TEST_F(Ring, ReadOfWhatIsThere) {
  ASSERT_EQ(write(pipe_[1], "hello", 5), 5);
  char text[16] = {};
  Op op;
  EXPECT_FALSE(ring->has_work());
  ring->queue(request(IORING_OP_READ, pipe_[0], text, sizeof text), &op);
  EXPECT_TRUE(ring->has_work()) << "a request that is not yet in the kernel";
  EXPECT_TRUE(ring->has_unsubmitted(pipe_[0]));
  EXPECT_FALSE(op.done) << "nothing is submitted before the end of the round";
  EXPECT_EQ(ring->in_flight(), 1u);
  uint32_t before = ring->submissions();
  EXPECT_EQ(ring->round(), 1u);
  EXPECT_NE(ring->submissions(), before);
  EXPECT_TRUE(op.done);
  EXPECT_EQ(op.res, 5);
  EXPECT_STREQ(text, "hello");
  EXPECT_EQ(ring->in_flight(), 0u);
  EXPECT_FALSE(ring->has_work());
  EXPECT_FALSE(ring->has_unsubmitted(pipe_[0]));
  EXPECT_EQ(ring->round(), 0u);
}

TEST_P(Engines, WaitsForData) {
  char text[16] = {}, other[16] = {};
  Op r, v, p, w;
  ring->queue(request(IORING_OP_READ, pipe_[0], text, sizeof text), &r);
  ring->queue(recv(pair_[0], other, sizeof other), &v);
  EXPECT_EQ(ring->round(), 0u);
  EXPECT_FALSE(ring->has_work());
  EXPECT_EQ(ring->in_flight(), 2u);
  ASSERT_EQ(write(pair_[1], "abc", 3), 3);
  ASSERT_TRUE(done(v));
  EXPECT_EQ(v.res, 3);
  EXPECT_STREQ(other, "abc");
  EXPECT_FALSE(r.done);
  ring->queue(request(IORING_OP_WRITE, pipe_[1], other, 3), &w);
  ASSERT_TRUE(done(r));
  ASSERT_TRUE(done(w));
  EXPECT_EQ(w.res, 3);
  EXPECT_EQ(r.res, 3);
  EXPECT_STREQ(text, "abc");
  Request poll = request(IORING_OP_POLL_ADD, pair_[0]);
  poll.flags = POLLIN;
  ring->queue(poll, &p);
  EXPECT_EQ(ring->round(), 0u);
  ASSERT_EQ(write(pair_[1], "d", 1), 1);
  ASSERT_TRUE(done(p));
  EXPECT_NE(p.res & POLLIN, 0);
  Op closed;
  ring->queue(recv(pair_[1], other, sizeof other), &closed);
  ring->round();
  shutdown(pair_[0], SHUT_WR);
  ASSERT_TRUE(done(closed));
  EXPECT_EQ(closed.res, 0);
}

TEST_F(Ring, ErrorsAreResults) {
  char text[4];
  Op bad, not_socket;
  ring->queue(request(IORING_OP_READ, 9999, text, sizeof text), &bad);
  ring->queue(request(IORING_OP_RECV, pipe_[0], text, sizeof text), &not_socket);
  ASSERT_TRUE(done(bad));
  ASSERT_TRUE(done(not_socket));
  EXPECT_EQ(bad.res, -EBADF);
  EXPECT_EQ(not_socket.res, -ENOTSOCK);
}

// The kernel stops taking requests at one that it cannot prepare: those behind it may not be forgotten.
TEST_F(Ring, AMalformedRequestDoesNotHoldUpOthers) {
  Op ops[5];
  for (int i = 0; i < 5; i++) {
    Request r = nop();
    if (i == 2) r.code = 250;
    r.fd = pipe_[0];
    ring->queue(r, &ops[i]);
  }
  for (int i = 0; i < 3; i++) {
    ring->round();
    EXPECT_TRUE(ops[4].done || ring->has_work());
    EXPECT_TRUE(ops[4].done || ring->has_unsubmitted(pipe_[0])) << "close() must know of it";
  }
  for (int i = 0; i < 5; i++) EXPECT_TRUE(ops[i].done) << i;
  EXPECT_EQ(ops[2].res, -EINVAL);
}

TEST_P(Engines, Cancel) {
  char text[4];
  Op running, queued, second;
  ring->queue(request(IORING_OP_READ, pipe_[0], text, sizeof text), &running);
  ring->queue(recv(pair_[0], text, sizeof text), &second);
  ring->round();
  ring->queue_cancel(&running);
  ASSERT_TRUE(done(running));
  EXPECT_EQ(running.res, -ECANCELED);
  EXPECT_FALSE(second.done) << "only the one that was named";
  // still in the queue
  ring->queue(request(IORING_OP_READ, pipe_[0], text, sizeof text), &queued);
  ring->queue_cancel(&queued);
  ASSERT_TRUE(done(queued));
  EXPECT_EQ(queued.res, -ECANCELED);
  // one that is over: nothing happens
  Op over;
  ring->queue(nop(), &over);
  ASSERT_TRUE(done(over));
  ring->queue_cancel(&over);
  ring->round();
  EXPECT_EQ(over.res, 0);
  // data that came before the cancel is not lost
  ASSERT_EQ(write(pair_[1], "x", 1), 1);
  ring->queue_cancel(&second);
  ASSERT_TRUE(done(second));
  EXPECT_TRUE(second.res == 1 || second.res == -ECANCELED);
  EXPECT_EQ(::recv(pair_[0], text, 1, MSG_DONTWAIT), second.res == 1 ? -1 : 1);
  EXPECT_EQ(finished.load(), 4);
}

TEST_P(Engines, MoreRequestsThanPlaces) {
  std::vector<Op> ops(5000);
  for (auto& op : ops) ring->queue(nop(), &op);
  for (int i = 0; i < 100 && finished.load() < 5000; i++) ring->round();
  EXPECT_EQ(finished.load(), 5000);
  // and all waiting at once: more than the completion queue holds
  std::vector<Op> polls(20000);
  Request poll = request(IORING_OP_POLL_ADD, pipe_[0]);
  poll.flags = POLLIN;
  for (auto& op : polls) ring->queue(poll, &op);
  ring->round();
  EXPECT_EQ(ring->in_flight(), 20000u);
  ASSERT_EQ(write(pipe_[1], "x", 1), 1);
  for (auto& op : polls) ASSERT_TRUE(done(op));
  EXPECT_EQ(finished.load(), 25000);
  EXPECT_EQ(ring->in_flight(), 0u);
}

TEST_P(Engines, DeadlineEndsSleep) {
  for (int64_t ms : {1, 20, 60}) {
    int64_t begun = now_ns();
    EXPECT_EQ(ring->sleep(begun + ms * kMilli), 0u);
    EXPECT_GE(now_ns() - begun, ms * kMilli - 100 * kMicro);
    EXPECT_LT(now_ns() - begun, ms * kMilli + 500 * kMilli);
  }
  int64_t begun = now_ns();
  EXPECT_EQ(ring->sleep(begun - kSecond), 0u);
  EXPECT_LT(now_ns() - begun, 100 * kMilli);
}

TEST_P(Engines, SleepSubmitsAndEndsWithACompletion) {
  Op op;
  ring->queue(nop(), &op);
  EXPECT_EQ(ring->sleep(kNever), 1u);
  EXPECT_TRUE(op.done);
}

TEST_P(Engines, BellEndsSleep) {
  for (int i = 0; i < 20; i++) {
    std::thread ringer([&] {
      if (i % 2 == 0) usleep(5000);
      ring->ring_bell();
    });
    // also when it is rung before the sleep
    if (i % 2 == 1) ringer.join();
    int64_t begun = now_ns();
    EXPECT_EQ(ring->sleep(begun + 5 * kSecond), 0u);
    EXPECT_LT(now_ns() - begun, 2 * kSecond) << "round " << i;
    if (ringer.joinable()) ringer.join();
  }
  // it rings once: the next sleep lasts
  int64_t begun = now_ns();
  ring->sleep(begun + 30 * kMilli);
  EXPECT_GE(now_ns() - begun, 29 * kMilli);
}

TEST_P(Engines, BellsAreNotLostUnderStress) {
  const int n = rounds(20000);
  std::atomic<int> asked{0}, seen{0};
  together(2, [&](int me) {
    Spin spin;
    for (int i = 1; i <= n; i++) {
      if (me == 0) {
        while (seen.load() != i - 1) spin();
        asked.store(i);
        ring->ring_bell();
      } else {
        while (asked.load() < i) {
          int64_t begun = now_ns();
          ring->sleep(begun + 5 * kSecond);
          ASSERT_LT(now_ns() - begun, 4 * kSecond) << "round " << i;
        }
        seen.store(i);
      }
    }
  });
}

TEST_P(Engines, ItsDescriptorsAreHighAndHidden) {
  auto before = open_fds();
  int err = 0;
  Engine* another = GetParam()(&err);
  ASSERT_NE(another, nullptr);
  int mine = 0;
  for (int fd : open_fds()) {
    if (before.count(fd) != 0) continue;
    mine++;
    EXPECT_GT(fd, 500) << "the program gets the lowest free number, and would close ours";
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_TRUE(fd_is_ours(fd));
  }
  EXPECT_EQ(mine, 2) << "a ring or an epoll instance, and a bell";
  for (int fd : {0, 1, 2, pipe_[0], pipe_[1], pair_[0], -1, 100000}) EXPECT_FALSE(fd_is_ours(fd)) << fd;
  int low = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_LT(low, 100);
  close(low);
  another->abandon();
  EXPECT_EQ(open_fds(), before);
}

TEST_P(Engines, ItsDescriptorsGiveWay) {
  std::vector<int> numbers;
  for (int fd = fd_next_own(0); fd >= 0; fd = fd_next_own(fd + 1)) numbers.push_back(fd);
  ASSERT_GE(numbers.size(), 2u) << "a ring or an epoll instance, and a bell";
  EXPECT_LT(numbers.back(), 1008) << "a larger table of descriptors is seen by select()";
  EXPECT_TRUE(fd_make_room(pipe_[0])) << "not ours: nothing to do";
  for (int fd : numbers) {
    ASSERT_TRUE(fd_make_room(fd));
    EXPECT_FALSE(fd_is_ours(fd));
    EXPECT_EQ(dup2(pipe_[1], fd), fd);
  }
  Op op;
  ring->queue(nop(), &op);
  EXPECT_TRUE(done(op)) << "it goes on under its new number";
  ring->ring_bell();
  int64_t begun = now_ns();
  ring->sleep(begun + 5 * kSecond);
  EXPECT_LT(now_ns() - begun, 4 * kSecond) << "so does its bell";
  for (int fd : numbers) close(fd);
}

INSTANTIATE_TEST_SUITE_P(Both, Engines, testing::Values(ring_make, epoll_make), engine_of);

}  // namespace
}  // namespace vthr
