// A fiber's waits on the I/O engine: results, time-outs, interrupts and cancels, several requests at once, hand-offs.
// run: name=uring env=VTHR_IO=uring
// run: name=epoll env=VTHR_IO=epoll
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/socket.h>

#include <random>

#include "tests/unit/fibers.h"

namespace vthr {
namespace {

class OpTest : public RuntimeTest<2> {
 protected:
  static Request read_request(int fd, void* p, uint32_t len) {
    Request r;
    r.code = IORING_OP_READ;
    r.fd = fd;
    r.off = static_cast<uint64_t>(-1);
    r.addr = reinterpret_cast<uint64_t>(p);
    r.len = len;
    return r;
  }
  static Request poll_request(int fd) {
    Request r;
    r.code = IORING_OP_POLL_ADD;
    r.fd = fd;
    r.flags = POLLIN;
    return r;
  }
  static long read_one(Fiber* f, int fd, char* c, int64_t deadline = kNever) {
    return op_wait(f, read_request(fd, c, 1), Reason::read, deadline);
  }
};

struct Pipe {
  int in, out;
  Pipe() {
    int p[2] = {-1, -1};
    EXPECT_EQ(pipe2(p, O_CLOEXEC), 0);
    out = p[0];
    in = p[1];
  }
  ~Pipe() {
    close(in);
    close(out);
  }
  void put(char c) { EXPECT_EQ(write(in, &c, 1), 1); }
};

// A token goes around 100 fibers, each waiting for the pipe of the one before it.
TEST_F(OpTest, ATokenGoesAroundPipes) {
  constexpr int kFibers = 100, kRounds = 50;
  std::vector<Pipe> pipes(kFibers);
  std::atomic<int> hops{0}, bad{0};
  uint64_t parks = value(counters.io_parks);
  Fibers all;
  for (int i = 0; i < kFibers; i++) {
    all.add([&, i](Fiber* f) {
      for (int k = 0; k < kRounds; k++) {
        char c = 0;
        if (read_one(f, pipes[i].out, &c) != 1 || c != static_cast<char>('a' + k % 26)) bad.fetch_add(1);
        hops.fetch_add(1);
        if (i == kFibers - 1) c = static_cast<char>('a' + (k + 1) % 26);
        pipes[(i + 1) % kFibers].put(c);
      }
    });
  }
  usleep(20000);
  pipes[0].put('a');
  all.join_all();
  EXPECT_EQ(hops.load(), kFibers * kRounds);
  EXPECT_EQ(bad.load(), 0);
  EXPECT_GE(value(counters.io_parks) - parks, static_cast<uint64_t>(kFibers * kRounds));
}

TEST_F(OpTest, ADeadlineEndsARequest) {
  Pipe p;
  Fibers all;
  all.add([&](Fiber* f) {
    char c = 0;
    int64_t begun = now_ns();
    EXPECT_EQ(read_one(f, p.out, &c, begun + 20 * kMilli), -ETIMEDOUT);
    EXPECT_GE(now_ns() - begun, 20 * kMilli);
    EXPECT_EQ(read_one(f, p.out, &c, begun), -ETIMEDOUT) << "in the past";
    p.put('x');
    EXPECT_EQ(read_one(f, p.out, &c, begun + 10 * kSecond), 1);
    EXPECT_EQ(c, 'x');
    EXPECT_EQ(op_wait(f, read_request(9999, &c, 1), Reason::read, kNever), -EBADF);
  });
}

TEST_F(OpTest, InterruptAndCancel) {
  Pipe p;
  for (bool cancel : {false, true}) {
    long result = 1;
    char c = 0;
    Fiber* f = spawn([&](Fiber* self) { result = read_one(self, p.out, &c); });
    ASSERT_TRUE(eventually([&] { return f->park.is_parked() && f->reason.load() == Reason::read; }));
    EXPECT_EQ(f->wait_on.load(), reinterpret_cast<const void*>(static_cast<intptr_t>(p.out)));
    interrupt_wait(f, cancel);
    join(f);
    EXPECT_EQ(result, cancel ? -ECANCELED : -EINTR);
  }
  Fibers all;
  all.add([&](Fiber* f) {
    char c = 0;
    f->pending.store(sig_bit(SIGUSR1));
    EXPECT_EQ(read_one(f, p.out, &c), -EINTR) << "a signal that came before the wait";
    f->pending.store(0);
    p.put('z');
    EXPECT_EQ(read_one(f, p.out, &c), 1) << "nothing of the old waits is left";
  });
}

// Completion, deadline and interrupts race; a byte that was read is never lost, whatever the answer.
TEST_F(OpTest, NoByteIsLostInRaces) {
  const int n = 3000;
  Pipe p;
  std::atomic<int> sent{0}, got{0}, timed_out{0}, interrupted{0}, odd{0};
  std::atomic<bool> stop{false};
  std::atomic<Fiber*> reader{nullptr};
  Fiber* f = spawn([&](Fiber* self) {
    reader.store(self);
    std::mt19937 random(1);
    while (got.load() < n) {
      char c = 0;
      long r = read_one(self, p.out, &c, now_ns() + static_cast<int64_t>(random() % 60) * kMicro);
      (r == 1 ? got : r == -ETIMEDOUT ? timed_out : r == -EINTR ? interrupted : odd).fetch_add(1);
    }
    stop.store(true);
  });
  Fibers writer;
  writer.add([&](Fiber* w) {
    std::mt19937 random(2);
    for (int i = 0; i < n; i++) {
      p.put('x');
      sent.fetch_add(1);
      if (random() % 4 == 0) sleep_for(w, static_cast<int64_t>(random() % 100) * kMicro);
    }
  });
  while (!stop.load()) {
    if (Fiber* r = reader.load()) interrupt_wait(r, false);
    usleep(50);
  }
  join(f);
  writer.join_all();
  EXPECT_EQ(got.load(), sent.load());
  EXPECT_EQ(odd.load(), 0);
  char c;
  fcntl(p.out, F_SETFL, O_NONBLOCK);
  EXPECT_EQ(read(p.out, &c, 1), -1) << "a byte was left: one was counted twice";
  EXPECT_GT(timed_out.load(), 0);
  if (!kTsan) {  // under it the reader is so slow that the pipe is never empty
    EXPECT_GT(interrupted.load(), 0);
  }
}

TEST_F(OpTest, WaitsForTheFirstOfSeveral) {
  std::vector<Pipe> pipes(8);
  Fibers all;
  for (int which = 0; which < 8; which++) {
    std::atomic<bool> waiting{false};
    Fiber* f = spawn([&](Fiber* self) {
      Request r[8];
      Op ops[8];
      for (int i = 0; i < 8; i++) r[i] = poll_request(pipes[i].out);
      waiting.store(true);
      EXPECT_EQ(op_wait_any(self, r, ops, 8, Reason::poll, now_ns() + 10 * kSecond), 0);
      for (int i = 0; i < 8; i++) EXPECT_EQ(ops[i].done, i == which) << "of " << which << " and " << i;
    });
    ASSERT_TRUE(eventually([&] { return waiting.load() && f->park.is_parked(); }));
    pipes[which].put('x');
    join(f);
    char c;
    ASSERT_EQ(read(pipes[which].out, &c, 1), 1);
  }
  all.add([&](Fiber* f) {
    Pipe a, b;
    Request r[2] = {poll_request(a.out), poll_request(b.out)};
    Op ops[2];
    EXPECT_EQ(op_wait_any(f, r, ops, 2, Reason::poll, now_ns() + 20 * kMilli), -ETIMEDOUT);
    EXPECT_FALSE(ops[0].done || ops[1].done);
    b.put('y');
    Op second[2];
    EXPECT_EQ(op_wait_any(f, r, second, 2, Reason::poll, kNever), 0);
    EXPECT_TRUE(second[1].done);
    EXPECT_FALSE(second[0].done);
    a.put('y');
    Op both[2];
    EXPECT_EQ(op_wait_any(f, r, both, 2, Reason::poll, kNever), 0);
    EXPECT_TRUE(both[0].done || both[1].done);
  });
}

// The worker that submitted is pinned while the fiber's requests are collected elsewhere: many fibers wait on several pipes
// beside others that block natively.
TEST_F(OpTest, SeveralRequestsAcrossHandoffs) {
  std::vector<Pipe> pipes(32);
  std::atomic<bool> stop{false};
  std::atomic<int> wakes{0}, odd{0};
  uint64_t handoffs = value(counters.handoffs);
  Fibers all, pins;
  for (int i = 0; i < 16; i++) {
    all.add([&, i](Fiber* f) {
      for (int k = 0; k < 60; k++) {
        Request r[2] = {read_request(pipes[2 * i].out, nullptr, 1), poll_request(pipes[2 * i + 1].out)};
        char c = 0;
        r[0].addr = reinterpret_cast<uint64_t>(&c);
        Op ops[2];
        long e = op_wait_any(f, r, ops, 2, Reason::poll, now_ns() + 3 * kMilli);
        if (e != 0 && e != -ETIMEDOUT) odd.fetch_add(1);
        if (ops[0].done) (ops[0].res == 1 && c == 'q' ? wakes : odd).fetch_add(1);
      }
    });
  }
  for (int i = 0; i < 3; i++) {
    pins.add([&](Fiber* f) {
      while (!stop.load()) {
        block_raw(25 * kMilli);
        yield_now(f);
      }
    });
  }
  int sent = 0;
  std::mt19937 random(3);
  for (; sent < 300; sent++) {
    pipes[random() % 16 * 2].put('q');
    usleep(200);
  }
  all.join_all();
  stop.store(true);
  pins.join_all();
  int left = 0;
  for (auto& p : pipes) {
    char c;
    fcntl(p.out, F_SETFL, O_NONBLOCK);
    while (read(p.out, &c, 1) == 1) left++;
  }
  EXPECT_EQ(odd.load(), 0);
  EXPECT_EQ(wakes.load() + left, sent);
  EXPECT_GT(wakes.load(), 50);
  EXPECT_GT(value(counters.handoffs), handoffs);
}

}  // namespace
}  // namespace vthr
