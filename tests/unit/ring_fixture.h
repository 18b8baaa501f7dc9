// The fixture of the units of the engines: an engine, a pipe, a socket pair, and an op_finish of its own.
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "runtime/engine.h"
#include "runtime/sys.h"
#include "tests/unit/support.h"

namespace vthr {

inline std::atomic<int> finished{0};
void op_finish(Op* op, int32_t res) {
  EXPECT_FALSE(op->done) << "one completion for a request";
  op->res = res;
  op->done = true;
  finished.fetch_add(1);
}

using Maker = Engine* (*)(int*);

class EngineFixture : public testing::Test {
 protected:
  virtual Maker maker() const = 0;
  void SetUp() override {
    int err = 0;
    ring = maker()(&err);
    if (ring == nullptr) GTEST_SKIP() << "refused: " << strerror(err);
    ASSERT_EQ(pipe2(pipe_, O_CLOEXEC), 0);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair_), 0);
    finished = 0;
  }
  void TearDown() override {
    if (ring == nullptr) return;
    for (int fd : {pipe_[0], pipe_[1], pair_[0], pair_[1]}) close(fd);
    ring->abandon();
  }
  static Request request(uint8_t code, int fd, void* p = nullptr, uint32_t len = 0) {
    Request r;
    r.code = code;
    r.fd = fd;
    r.off = code == IORING_OP_READ || code == IORING_OP_WRITE ? static_cast<uint64_t>(-1) : 0;
    r.addr = reinterpret_cast<uint64_t>(p);
    r.len = len;
    return r;
  }
  Request recv(int fd, void* p, uint32_t len) {
    Request r = request(IORING_OP_RECV, fd, p, len);
    if (engine_features.poll_first) r.ioprio = IORING_RECVSEND_POLL_FIRST;
    return r;
  }
  static Request nop() { return request(IORING_OP_NOP, -1); }
  // Rounds until `op` is done; false after 5 s.
  bool done(const Op& op) {
    for (int64_t end = now_ns() + 5 * kSecond; !op.done && now_ns() < end;)
      ring->sleep(now_ns() + 20 * kMilli);
    return op.done;
  }
  Engine* ring = nullptr;
  int pipe_[2], pair_[2];
};

class Ring : public EngineFixture {
  Maker maker() const override { return ring_make; }
};
class Epoll : public EngineFixture {
  Maker maker() const override { return epoll_make; }
};

// For TEST_P: what both do.
class Engines : public EngineFixture, public testing::WithParamInterface<Maker> {
  Maker maker() const override { return GetParam(); }
};
inline std::string engine_of(const testing::TestParamInfo<Maker>& info) {
  return info.param == ring_make ? "uring" : "epoll";
}

}  // namespace vthr
