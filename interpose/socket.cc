// Sockets: try without blocking, then one request on the ring that holds the socket itself.
#include "interpose/socket.h"

#include <cerrno>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "interpose/blocking.h"

extern "C" void __chk_fail() __attribute__((noreturn));

namespace vthr {

namespace {

uint16_t poll_first() { return ring_features().poll_first ? IORING_RECVSEND_POLL_FIRST : 0; }

Request message_request(uint8_t code, int fd, const void* addr, size_t len, int flags) {
  Request r;
  r.code = code;
  r.fd = fd;
  r.addr = reinterpret_cast<uint64_t>(addr);
  r.len = static_cast<uint32_t>(len);
  r.flags = static_cast<uint32_t>(flags);
  r.ioprio = poll_first();
  return r;
}

bool is_stream(int fd) {
  int type = 0;
  socklen_t len = sizeof type;
  return sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, sys_arg(&type), sys_arg(&len)) == 0 && type == SOCK_STREAM;
}

long try_recv(int fd, void* buf, size_t n, int flags) {
  return sys_call(SYS_recvfrom, fd, sys_arg(buf), static_cast<long>(n), flags | MSG_DONTWAIT);
}

// The wait of a receive: `again` does the same call without blocking. O_NONBLOCK makes the ring answer -EAGAIN.
template <class Try>
long wait_recv(Fiber* f, const Request& r, Reason reason, int64_t deadline, Try again) {
  for (;;) {
    long res = wait_request(f, r, reason, deadline);
    if (res == -ETIMEDOUT) return -EAGAIN;
    if (res != -EAGAIN) return res;
    res = again();
    if (res != -EAGAIN || fd_nonblocking(r.fd)) return res;
  }
}

long recv_once(Fiber* f, int fd, void* buf, size_t n, int flags, int64_t deadline) {
  // The last read on this descriptor found it empty, or emptied it: then trying first is a wasted call.
  if (f->drained_fd != fd || poll_first() == 0) {
    long r = try_recv(fd, buf, n, flags);
    if (r != -EAGAIN) {
      if (r > 0 && static_cast<size_t>(r) < n) f->drained_fd = fd;
      return r;
    }
    if (fd_nonblocking(fd)) return r;
  }
  Request req = message_request(IORING_OP_RECV, fd, buf, n, flags);
  long r = wait_recv(f, req, Reason::recv, deadline, [&] { return try_recv(fd, buf, n, flags); });
  f->drained_fd = r > 0 && static_cast<size_t>(r) < n ? fd : -1;
  return r;
}

constexpr size_t kMost = 0x7ffff000;  // the kernel's MAX_RW_COUNT

long recv_any(Fiber* f, int fd, void* buf, size_t n, int flags) {
  if ((flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) != 0)
    return sys_call(SYS_recvfrom, fd, sys_arg(buf), static_cast<long>(n), flags);
  if (n > kMost) n = kMost;
  int64_t deadline = socket_deadline(fd, SO_RCVTIMEO);
  bool all = (flags & MSG_WAITALL) != 0 && (flags & MSG_PEEK) == 0 && n > 0 && is_stream(fd);
  if (!all) return recv_once(f, fd, buf, n, flags, deadline);
  size_t done = 0;
  while (done < n) {
    long r = recv_once(f, fd, static_cast<char*>(buf) + done, n - done, flags & ~MSG_WAITALL, deadline);
    if (r < 0) return done != 0 ? static_cast<long>(done) : r;
    if (r == 0) break;
    done += static_cast<size_t>(r);
  }
  return static_cast<long>(done);
}

long recvmsg_once(Fiber* f, int fd, msghdr* m, int flags, int64_t deadline) {
  // the kernel writes these on success only, but a try must not spoil them for the next
  msghdr fresh = *m;
  auto attempt = [&] {
    *m = fresh;
    return sys_call(SYS_recvmsg, fd, sys_arg(m), flags | MSG_DONTWAIT);
  };
  long r = attempt();
  if (r == -EAGAIN && !fd_nonblocking(fd)) {
    *m = fresh;
    r = wait_recv(f, message_request(IORING_OP_RECVMSG, fd, m, 1, flags), Reason::recv, deadline, attempt);
  }
  return r;
}

long recvmsg_any(Fiber* f, int fd, msghdr* m, int flags) {
  if ((flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) != 0) return sys_call(SYS_recvmsg, fd, sys_arg(m), flags);
  bool control = m->msg_control != nullptr && m->msg_controllen != 0;
  int64_t deadline = socket_deadline(fd, SO_RCVTIMEO);
  long r = recvmsg_once(f, fd, m, flags, deadline);
  if (control && r >= 0 && m->msg_controllen != 0) note_socket_timeouts();  // a passed socket may have one
  if (r <= 0 || (flags & MSG_WAITALL) == 0 || (flags & MSG_PEEK) != 0) return r;
  size_t total = vector_bytes(m->msg_iov, m->msg_iovlen), done = static_cast<size_t>(r);
  if (done >= total || !is_stream(fd)) return r;
  while (done < total) {
    iovec rest[kVectorChunk];
    msghdr more{};
    more.msg_iov = rest;
    more.msg_iovlen = static_cast<size_t>(vector_rest(m->msg_iov, m->msg_iovlen, done, rest));
    r = recvmsg_once(f, fd, &more, flags & ~MSG_WAITALL, deadline);
    if (r <= 0) break;
    done += static_cast<size_t>(r);
  }
  return static_cast<long>(done);
}

long finish_send(Fiber* f, long r, size_t done, int flags) {
  if (r == -EPIPE && (flags & MSG_NOSIGNAL) == 0 && done == 0) sigpipe(f, false);
  return done != 0 ? static_cast<long>(done) : r;
}

// What the first, non-blocking send left over. A stream socket takes it in pieces; others take all or nothing.
long send_rest(Fiber* f, int fd, const msghdr& m, size_t done, size_t total, int flags) {
  int64_t deadline = socket_deadline(fd, SO_SNDTIMEO);
  for (;;) {
    iovec rest[kVectorChunk];
    msghdr more = m;
    if (done != 0) more.msg_control = nullptr, more.msg_controllen = 0;
    if (m.msg_iovlen <= static_cast<size_t>(kVectorChunk) || done != 0) {
      more.msg_iov = rest;
      more.msg_iovlen = static_cast<size_t>(vector_rest(m.msg_iov, m.msg_iovlen, done, rest));
    }
    Request req = message_request(IORING_OP_SENDMSG, fd, &more, 1, flags | MSG_NOSIGNAL);
    long r = wait_request(f, req, Reason::send, deadline);
    if (r == -EAGAIN) {
      r = sys_call(SYS_sendmsg, fd, sys_arg(&more), flags | MSG_NOSIGNAL | MSG_DONTWAIT);
      if (r == -EAGAIN && !fd_nonblocking(fd)) continue;
    }
    if (r == -ETIMEDOUT && deadline != kNever) r = -EAGAIN;
    if (r < 0) return finish_send(f, r, done, flags);
    done += static_cast<size_t>(r);
    if (done >= total || r == 0) return static_cast<long>(done);
  }
}

long sendmsg_any(Fiber* f, int fd, const msghdr* m, int flags) {
  long r = sys_call(SYS_sendmsg, fd, sys_arg(m), flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  if ((flags & MSG_DONTWAIT) != 0 || (r < 0 && r != -EAGAIN)) return finish_send(f, r, 0, flags);
  size_t total = vector_bytes(m->msg_iov, m->msg_iovlen), done = r > 0 ? static_cast<size_t>(r) : 0;
  if (r >= 0 && done >= total) return r;
  if (fd_nonblocking(fd)) return r;
  return send_rest(f, fd, *m, done, total, flags);
}

long send_any(Fiber* f, int fd, const void* buf, size_t n, int flags, const sockaddr* to, socklen_t to_len) {
  long r = sys_call(SYS_sendto, fd, sys_arg(buf), static_cast<long>(n), flags | MSG_DONTWAIT | MSG_NOSIGNAL, sys_arg(to),
                    to_len);
  if (VTHR_LIKELY(r == static_cast<long>(n))) return r;
  if ((flags & MSG_DONTWAIT) != 0 || (r < 0 && r != -EAGAIN)) return finish_send(f, r, 0, flags);
  if (fd_nonblocking(fd)) return r;
  iovec iov{const_cast<void*>(buf), n > kMost ? kMost : n};
  msghdr m{};
  m.msg_name = const_cast<sockaddr*>(to);
  m.msg_namelen = to_len;
  m.msg_iov = &iov;
  m.msg_iovlen = 1;
  return send_rest(f, fd, m, r > 0 ? static_cast<size_t>(r) : 0, iov.iov_len, flags);
}

long accept_any(Fiber* f, int fd, sockaddr* addr, socklen_t* len, int flags) {
  if (fd_nonblocking(fd)) return sys_call(SYS_accept4, fd, sys_arg(addr), sys_arg(len), flags);
  Request r;
  r.code = IORING_OP_ACCEPT;
  r.fd = fd;
  r.addr = reinterpret_cast<uint64_t>(addr);
  r.off = reinterpret_cast<uint64_t>(len);
  r.flags = static_cast<uint32_t>(flags);
  long got = wait_recv(f, r, Reason::accept, socket_deadline(fd, SO_RCVTIMEO), [&]() -> long {
    return fd_nonblocking(fd) ? sys_call(SYS_accept4, fd, sys_arg(addr), sys_arg(len), flags) : -EAGAIN;
  });
  if (got >= 0) fd_set_hint(static_cast<int>(got), FdKind::socket);
  return got;
}

// A connect that a signal interrupted goes on by itself; with SA_RESTART it is waited for as the kernel would.
long await_connect(Fiber* f, int fd, int64_t deadline) {
  Request r;
  r.code = IORING_OP_POLL_ADD;
  r.fd = fd;
  r.flags = POLLOUT;
  long res = wait_request(f, r, Reason::connect, deadline);
  if (res < 0) return res;
  int err = 0;
  socklen_t len = sizeof err;
  sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, sys_arg(&err), sys_arg(&len));
  return -err;
}

long connect_any(Fiber* f, int fd, const sockaddr* addr, socklen_t len) {
  if (fd_nonblocking(fd)) return sys_call(SYS_connect, fd, sys_arg(addr), len);
  int64_t deadline = socket_deadline(fd, SO_SNDTIMEO);
  Request r;
  r.code = IORING_OP_CONNECT;
  r.fd = fd;
  r.addr = reinterpret_cast<uint64_t>(addr);
  r.off = len;
  long res = op_wait(f, r, Reason::connect, deadline);
  if (res == -EINTR && deadline == kNever && signal_restarts(f)) res = await_connect(f, fd, deadline);
  if (res == -ECANCELED) {
    cancel_here();
    return -EINTR;
  }
  // the kernel's own ETIMEDOUT (no answer to SYN) looks like ours
  if (res == -ETIMEDOUT && deadline != kNever && now_ns() >= deadline) return -EINPROGRESS;
  return res;
}

}  // namespace

long socket_readv(Fiber* f, int fd, const iovec* iov, int n) {
  if (VTHR_LIKELY(n == 1)) return recv_any(f, fd, iov->iov_base, iov->iov_len, 0);
  msghdr m{};
  m.msg_iov = const_cast<iovec*>(iov);
  m.msg_iovlen = static_cast<size_t>(n);
  return recvmsg_any(f, fd, &m, 0);
}

long socket_writev(Fiber* f, int fd, const iovec* iov, int n) {
  if (VTHR_LIKELY(n == 1)) return send_any(f, fd, iov->iov_base, iov->iov_len, 0, nullptr, 0);
  msghdr m{};
  m.msg_iov = const_cast<iovec*>(iov);
  m.msg_iovlen = static_cast<size_t>(n);
  return sendmsg_any(f, fd, &m, 0);
}

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT ssize_t recv(int fd, void* buf, size_t n, int flags) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(recv)(fd, buf, n, flags);
  return libc_result(recv_any(f, fd, buf, n, flags));
}

VTHR_EXPORT ssize_t recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* from, socklen_t* from_len) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(recvfrom)(fd, buf, n, flags, from, from_len);
  if (from == nullptr) return libc_result(recv_any(f, fd, buf, n, flags));
  iovec iov{buf, n};
  msghdr m{};
  m.msg_name = from;
  m.msg_namelen = from_len != nullptr ? *from_len : 0;
  m.msg_iov = &iov;
  m.msg_iovlen = 1;
  long r = recvmsg_any(f, fd, &m, flags);
  if (r >= 0 && from_len != nullptr) *from_len = m.msg_namelen;
  return libc_result(r);
}

VTHR_EXPORT ssize_t recvmsg(int fd, msghdr* m, int flags) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(recvmsg)(fd, m, flags);
  return libc_result(recvmsg_any(f, fd, m, flags));
}

VTHR_EXPORT ssize_t send(int fd, const void* buf, size_t n, int flags) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(send)(fd, buf, n, flags);
  return libc_result(send_any(f, fd, buf, n, flags, nullptr, 0));
}

VTHR_EXPORT ssize_t sendto(int fd, const void* buf, size_t n, int flags, const sockaddr* to, socklen_t to_len) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(sendto)(fd, buf, n, flags, to, to_len);
  return libc_result(send_any(f, fd, buf, n, flags, to, to_len));
}

VTHR_EXPORT ssize_t sendmsg(int fd, const msghdr* m, int flags) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(sendmsg)(fd, m, flags);
  return libc_result(sendmsg_any(f, fd, m, flags));
}

VTHR_EXPORT int accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(accept4)(fd, addr, len, flags);
  return static_cast<int>(libc_result(accept_any(f, fd, addr, len, flags)));
}

VTHR_EXPORT int accept(int fd, sockaddr* addr, socklen_t* len) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(accept)(fd, addr, len);
  return static_cast<int>(libc_result(accept_any(f, fd, addr, len, 0)));
}

VTHR_EXPORT int connect(int fd, const sockaddr* addr, socklen_t len) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(connect)(fd, addr, len);
  return static_cast<int>(libc_result(connect_any(f, fd, addr, len)));
}

VTHR_EXPORT int shutdown(int fd, int how) noexcept {
  if (sched_running()) settle_requests(fiber_here(), fd);
  return static_cast<int>(libc_result(sys_call(SYS_shutdown, fd, how)));
}

VTHR_EXPORT int setsockopt(int fd, int level, int name, const void* value, socklen_t len) noexcept {
  // SO_RCVTIMEO_NEW and SO_SNDTIMEO_NEW are 66 and 67 (asm-generic/socket.h)
  if (level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO || name == 66 || name == 67))
    note_socket_timeouts();
  return static_cast<int>(libc_result(sys_call(SYS_setsockopt, fd, level, name, sys_arg(value), len)));
}

VTHR_EXPORT ssize_t __recv_chk(int fd, void* buf, size_t n, size_t room, int flags) {
  if (n > room) __chk_fail();
  return recv(fd, buf, n, flags);
}

VTHR_EXPORT ssize_t __recvfrom_chk(int fd, void* buf, size_t n, size_t room, int flags, sockaddr* from,
                                   socklen_t* from_len) {
  if (n > room) __chk_fail();
  return recvfrom(fd, buf, n, flags, from, from_len);
}

VTHR_EXPORT ssize_t __send(int fd, const void* buf, size_t n, int flags) { return send(fd, buf, n, flags); }
VTHR_EXPORT int __connect(int fd, const sockaddr* addr, socklen_t len) { return connect(fd, addr, len); }
