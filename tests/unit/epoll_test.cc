// The epoll engine alone: what epoll cannot tell, calls without a non-blocking form, files that lose their number, and
// the steady registrations of connections.
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <ucontext.h>

#include "runtime/brief.h"
#include "tests/unit/ring_fixture.h"

namespace vthr {
namespace {

// The handler that the library installs for the runtime's signal. glibc's sigaction refuses the number.
void handle_brief_calls() {
  struct {
    void (*handler)(int, siginfo_t*, void*);
    unsigned long flags;
    void* restorer;
    uint64_t mask;
  } action{}, model{};
  struct sigaction any {};
  any.sa_handler = [](int) {};
  sigaction(SIGUSR2, &any, nullptr);
  sys_call(SYS_rt_sigaction, SIGUSR2, 0, sys_arg(&model), 8);
  action.handler = [](int, siginfo_t* info, void* context) { EXPECT_TRUE(brief_interrupt(info, context)); };
  action.flags = SA_SIGINFO | SA_RESTART | 0x04000000;  // SA_RESTORER
  action.restorer = model.restorer;
  ASSERT_EQ(sys_call(SYS_rt_sigaction, kSigRuntime, sys_arg(&action), 0, 8), 0);
  brief_handled = true;
}

class EpollTcp : public Epoll {
 protected:
  void SetUp() override {
    Epoll::SetUp();
    handle_brief_calls();
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t len = sizeof address_;
    ASSERT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address_), len), 0);
    ASSERT_EQ(listen(listener_, 64), 0);
    ASSERT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address_), &len), 0);
    connect_pair(tcp_);
  }
  void TearDown() override {
    for (int fd : {listener_, tcp_[0], tcp_[1]}) close(fd);
    Epoll::TearDown();
  }
  int connected() {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address_), sizeof address_), 0);
    return fd;
  }
  void connect_pair(int* pair) {
    pair[0] = connected();
    pair[1] = accept(listener_, nullptr, nullptr);
    fd_new_file(pair[1]);
  }
  Request accept_request() { return request(IORING_OP_ACCEPT, listener_); }
  static Request poll_request(int fd, uint32_t events) {
    Request r = request(IORING_OP_POLL_ADD, fd);
    r.flags = events;
    return r;
  }
  // It is waiting, and goes on to.
  bool waits(const Op& op) {
    for (int i = 0; i < 20; i++) ring->sleep(now_ns() + kMilli);
    return !op.done;
  }
  int listener_ = -1, tcp_[2] = {-1, -1};
  sockaddr_in address_{};
};

TEST_F(EpollTcp, OneAcceptorAConnection) {
  constexpr int kMany = 200;
  static Op ops[kMany];
  for (auto& op : ops) ring->queue(accept_request(), &(op = Op{}));
  EXPECT_TRUE(waits(ops[0]));
  for (int i = 0; i < 3; i++) {
    int c = connected();
    ASSERT_TRUE(done(ops[i])) << "the first come is served first";
    EXPECT_GE(ops[i].res, 0);
    EXPECT_TRUE(waits(ops[i + 1]));
    close(ops[i].res);
    close(c);
  }
  EXPECT_EQ(finished.load(), 3);
  shutdown(listener_, SHUT_RD);
  for (int i = 3; i < kMany; i++) {
    ASSERT_TRUE(done(ops[i]));
    EXPECT_EQ(ops[i].res, -EINVAL);
  }
}

// Another thread takes every connection: the call that comes too late must not block the engine.
TEST_F(EpollTcp, AnAcceptThatComesTooLate) {
  std::atomic<bool> stop{false};
  std::atomic<int> elsewhere{0};
  std::thread other([&] {
    while (!stop.load()) {
      int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) break;
      elsewhere.fetch_add(1);
      close(fd);
    }
  });
  int here = 0;
  for (int i = 0; i < rounds(500); i++) {
    Op op;
    ring->queue(accept_request(), &op);
    int before = elsewhere.load();
    int c = connected();
    for (int64_t end = now_ns() + 5 * kSecond; !op.done && now_ns() < end;) {
      int64_t begun = now_ns();
      ring->sleep(begun + 5 * kMilli);
      ASSERT_LT(now_ns() - begun, kSecond);
      if (elsewhere.load() != before) ring->queue_cancel(&op);
    }
    ASSERT_TRUE(op.done);
    if (op.res >= 0) {
      here++;
      close(op.res);
    }
    close(c);
  }
  stop.store(true);
  shutdown(listener_, SHUT_RD);
  other.join();
  EXPECT_GE(here + elsewhere.load(), rounds(500));
}

TEST_F(EpollTcp, Connect) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Request r = request(IORING_OP_CONNECT, fd, &address_);
  r.off = sizeof address_;
  Op op, refused;
  ring->queue(r, &op);
  ASSERT_TRUE(done(op));
  EXPECT_EQ(op.res, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address_), sizeof address_), -1);
  EXPECT_EQ(errno, EISCONN) << "the kernel knows that it is connected";
  EXPECT_EQ(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
  close(fd);
  close(listener_);
  r.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ring->queue(r, &refused);
  ASSERT_TRUE(done(refused));
  EXPECT_EQ(refused.res, -ECONNREFUSED);
  close(r.fd);
}

// A full queue of a unix listener: no event says when there is room.
TEST_F(EpollTcp, ConnectWaitsForRoom) {
  int l = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  ASSERT_EQ(bind(l, reinterpret_cast<sockaddr*>(&a), sizeof a.sun_family),
            0);  // an abstract name of the kernel's choice
  socklen_t len = sizeof a;
  ASSERT_EQ(getsockname(l, reinterpret_cast<sockaddr*>(&a), &len), 0);
  ASSERT_EQ(listen(l, 0), 0);
  int first = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
      second = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(first, reinterpret_cast<sockaddr*>(&a), len), 0);
  Request r = request(IORING_OP_CONNECT, second, &a);
  r.off = len;
  Op op;
  ring->queue(r, &op);
  EXPECT_TRUE(waits(op));
  int s = accept(l, nullptr, nullptr);
  ASSERT_TRUE(done(op));
  EXPECT_EQ(op.res, 0);
  for (int fd : {l, first, second, s}) close(fd);
}

TEST_F(EpollTcp, BothDirectionsOfOneDescriptor) {
  char full[65536] = {}, text[8] = {};
  while (send(tcp_[0], full, sizeof full, MSG_DONTWAIT) > 0) {
  }
  Op reader, writer, poller;
  ring->queue(recv(tcp_[0], text, sizeof text), &reader);
  ring->queue(request(IORING_OP_SEND, tcp_[0], full, 1), &writer);
  ring->queue(poll_request(tcp_[0], POLLIN), &poller);
  EXPECT_TRUE(waits(reader) && waits(writer) && waits(poller));
  ASSERT_EQ(write(tcp_[1], "abc", 3), 3);
  ASSERT_TRUE(done(reader));
  EXPECT_EQ(reader.res, 3);
  ASSERT_TRUE(done(poller)) << "all that look are told";
  EXPECT_FALSE(writer.done);
  while (!writer.done && ::recv(tcp_[1], full, sizeof full, MSG_DONTWAIT) > 0) ring->sleep(now_ns() + kMilli);
  ASSERT_TRUE(done(writer));
  EXPECT_EQ(writer.res, 1);
}

TEST_F(EpollTcp, FilesThatEpollRefusesAreReady) {
  int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  Op op;
  ring->queue(poll_request(fd, POLLIN | POLLPRI), &op);
  ASSERT_TRUE(done(op));
  EXPECT_EQ(op.res, POLLIN);
  close(fd);
}

// epoll descriptors nested as deeply as the kernel allows: one more of ours is one too many.
TEST_F(EpollTcp, NestedEpollDescriptors) {
  int inner = pipe_[0];
  std::vector<int> nested;
  for (int i = 0; i < 5; i++) {
    int outer = epoll_create1(EPOLL_CLOEXEC);
    epoll_event e{};
    e.events = EPOLLIN;
    ASSERT_EQ(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &e), 0) << i;
    nested.push_back(outer);
    inner = outer;
  }
  std::vector<Op> ops(nested.size());
  for (size_t i = 0; i < ops.size(); i++) ring->queue(poll_request(nested[i], POLLIN), &ops[i]);
  for (auto& op : ops) EXPECT_TRUE(waits(op));
  ASSERT_EQ(write(pipe_[1], "x", 1), 1);
  for (auto& op : ops) EXPECT_TRUE(done(op));
  for (int fd : nested) close(fd);
}

// A state that lasts, and is none that the request waits for, must not keep the engine busy.
TEST_F(EpollTcp, AnErrorQueueThatNobodyReads) {
  int one = 1;
  ASSERT_EQ(setsockopt(tcp_[0], SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one), 0);
  static char page[kPage];
  if (send(tcp_[0], page, sizeof page, MSG_ZEROCOPY) < 0)
    GTEST_SKIP() << "no MSG_ZEROCOPY: " << strerror(errno);
  ASSERT_EQ(::recv(tcp_[1], page, sizeof page, MSG_WAITALL), static_cast<ssize_t>(sizeof page));
  ASSERT_TRUE(eventually([&] {
    pollfd p{tcp_[0], 0, 0};
    return ::poll(&p, 1, 0) == 1 && (p.revents & POLLERR) != 0;
  }));
  msghdr m{};
  iovec iov{page, sizeof page};
  m.msg_iov = &iov;
  m.msg_iovlen = 1;
  Op op;
  ring->queue(request(IORING_OP_RECVMSG, tcp_[0], &m, 1), &op);
  int looks = 0;
  for (int64_t end = now_ns() + 200 * kMilli; now_ns() < end; looks++) ring->sleep(end);
  EXPECT_FALSE(op.done);
  EXPECT_LT(looks, 100);
  ASSERT_EQ(write(tcp_[1], "abc", 3), 3);
  ASSERT_TRUE(done(op));
  EXPECT_EQ(op.res, 3);
}

// ---- files that lose their number ----

TEST_F(EpollTcp, ARequestKeepsAFileThatIsClosed) {
  char old[8] = {}, more[8] = {};
  for (int* pair : {tcp_, pair_}) {
    Op op, another;
    ring->queue(recv(pair[0], old, sizeof old), &op);
    ring->queue(recv(pair[0], more, sizeof more), &another);
    ring->round();
    int number = pair[0];
    engine_close_begins(number, number);
    close(number);
    engine_close_ends(number, number);
    ASSERT_EQ(fcntl(pipe_[0], F_DUPFD, number), number) << "the number is free";
    pollfd end{pair[1], POLLIN, 0};
    EXPECT_EQ(::poll(&end, 1, 0), 0) << "the other end was told of a close";
    ASSERT_EQ(write(pipe_[1], "new", 3), 3);
    EXPECT_TRUE(waits(op));
    ASSERT_EQ(write(pair[1], "old", 3), 3);
    ASSERT_TRUE(done(op));
    EXPECT_EQ(op.res, 3);
    EXPECT_STREQ(old, "old");
    EXPECT_EQ(op.keeps, nullptr) << "there is another that waits";
    ring->queue_cancel(&another);
    ASSERT_TRUE(done(another));
    EXPECT_EQ(another.res, -ECANCELED);
    ASSERT_NE(another.keeps, nullptr);
    EXPECT_TRUE(fd_is_ours(*another.keeps));
    int kept = *another.keeps;
    engine_kept_release(another.keeps);
    EXPECT_FALSE(fd_is_ours(kept));
    EXPECT_EQ(::poll(&end, 1, 5000), 1) << "closed now";
    ASSERT_EQ(read(pipe_[0], more, sizeof more), 3) << "nobody read of the new file";
  }
}

TEST_F(EpollTcp, ARequestThatComesDuringAClose) {
  char text[8] = {};
  Op op;
  int number = pair_[0];
  engine_close_begins(number, number);
  ring->queue(recv(number, text, sizeof text), &op);
  close(number);
  engine_close_ends(number, number);
  ASSERT_EQ(fcntl(pipe_[0], F_DUPFD, number), number);
  ASSERT_EQ(write(pipe_[1], "new", 3), 3);
  ASSERT_EQ(write(pair_[1], "old", 3), 3);
  ASSERT_TRUE(done(op));
  EXPECT_STREQ(text, "old");
  ASSERT_NE(op.keeps, nullptr);
  engine_kept_release(op.keeps);
}

TEST_F(EpollTcp, ARangeIsClosed) {
  char text[8] = {};
  Op op, other;
  ring->queue(recv(pair_[0], text, sizeof text), &op);
  ring->queue(recv(tcp_[0], text, sizeof text), &other);
  engine_close_begins(3, INT32_MAX);
  engine_close_ends(3, INT32_MAX);
  for (Op* o : {&op, &other}) {
    ring->queue_cancel(o);
    ASSERT_TRUE(done(*o));
    ASSERT_NE(o->keeps, nullptr);
    engine_kept_release(o->keeps);
  }
}

// ---- steady registrations ----

TEST_F(EpollTcp, ConversationsWithOneRegistration) {
  char text[16] = {};
  for (int i = 0; i < 200; i++) {
    Op op;
    if (i % 3 == 0) {  // it is there before anybody waits
      ASSERT_EQ(write(tcp_[1], "abc", 3), 3);
      if (i % 2 == 0) ring->round();
    }
    ring->queue(recv(tcp_[0], text, i % 5 == 0 ? 2 : sizeof text), &op);
    if (i % 3 != 0) {
      ASSERT_EQ(write(tcp_[1], "abc", 3), 3);
    }
    ASSERT_TRUE(done(op)) << i;
    if (i % 5 != 0) {
      EXPECT_EQ(op.res, 3);
      continue;
    }
    EXPECT_EQ(op.res, 2);
    Op rest;
    ring->queue(recv(tcp_[0], text, sizeof text), &rest);
    ASSERT_TRUE(done(rest)) << i;
    EXPECT_EQ(rest.res, 1);
  }
}

TEST_F(EpollTcp, TheEndComesWithTheLastBytes) {
  for (int turn = 0; turn < 20; turn++) {
    int pair[2];
    char text[16];
    connect_pair(pair);
    Op first, last, end;
    ring->queue(recv(pair[1], text, sizeof text), &first);
    ring->round();
    ASSERT_EQ(write(pair[0], "a", 1), 1);
    ASSERT_TRUE(done(first));
    ring->queue(recv(pair[1], text, sizeof text), &last);
    ASSERT_EQ(write(pair[0], "bye", 3), 3);
    close(pair[0]);
    ASSERT_TRUE(done(last));
    EXPECT_EQ(last.res, 3);
    int64_t begun = now_ns();
    ring->queue(recv(pair[1], text, sizeof text), &end);
    ASSERT_TRUE(done(end));
    EXPECT_EQ(end.res, 0);
    EXPECT_LT(now_ns() - begun, 5 * kSecond);
    close(pair[1]);
  }
}

// Nobody waits here any more: its events stop, and a later wait is not missed.
TEST_F(EpollTcp, AConnectionThatWentElsewhere) {
  char text[16];
  Op first, later;
  ring->queue(recv(tcp_[0], text, sizeof text), &first);
  ASSERT_EQ(write(tcp_[1], "a", 1), 1);
  ASSERT_TRUE(done(first));
  for (int i = 0; i < 10; i++) {
    ASSERT_EQ(write(tcp_[1], "b", 1), 1);
    ASSERT_EQ(::recv(tcp_[0], text, 1, 0), 1);
    ring->sleep(now_ns() + kMilli);
  }
  int ends = 0;
  for (int i = 0; i < 5; i++) {
    ASSERT_EQ(write(tcp_[1], "c", 1), 1);
    int64_t begun = now_ns();
    ring->sleep(begun + 20 * kMilli);
    ends += now_ns() - begun < 20 * kMilli - 100 * kMicro;
    ASSERT_EQ(::recv(tcp_[0], text, 1, 0), 1);
  }
  EXPECT_LE(ends, 2) << "the engine is woken for what nobody waits for";
  ring->queue(recv(tcp_[0], text, sizeof text), &later);
  ASSERT_EQ(write(tcp_[1], "d", 1), 1);
  ASSERT_TRUE(done(later));
}

// Closed where no hook sees it, and the number given away: the new file's reader is told all the same.
TEST_F(EpollTcp, ANumberThatChangedUnseen) {
  char text[16];
  for (int turn = 0; turn < 3; turn++) {
    Op first, second;
    ring->queue(recv(tcp_[0], text, sizeof text), &first);
    ASSERT_EQ(write(tcp_[1], "a", 1), 1);
    ASSERT_TRUE(done(first));
    int other[2];
    connect_pair(other);
    int alive = turn == 1 ? dup(tcp_[0]) : -1;
    ASSERT_EQ(dup2(other[0], tcp_[0]), tcp_[0]);
    ring->queue(recv(tcp_[0], text, sizeof text), &second);
    EXPECT_TRUE(waits(second));
    ASSERT_EQ(write(other[1], "bc", 2), 2);
    ASSERT_TRUE(done(second)) << turn;
    EXPECT_EQ(second.res, 2);
    if (alive >= 0) close(alive);
    close(tcp_[1]);
    close(other[0]);
    tcp_[1] = other[1];
  }
}

}  // namespace
}  // namespace vthr
