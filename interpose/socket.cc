// Sockets: try without blocking, then one request on the ring that holds the socket itself.
#include "interpose/socket.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cerrno>
#include <climits>

#include "interpose/blocking.h"
#include "interpose/entries.h"

extern "C" void __chk_fail() __attribute__((noreturn));

namespace vthr {

namespace {

uint16_t poll_first() { return engine_features.poll_first ? IORING_RECVSEND_POLL_FIRST : 0; }

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
  return sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, sys_arg(&type), sys_arg(&len)) == 0 &&
         type == SOCK_STREAM;
}

long try_recv(int fd, void* buf, size_t n, int flags) {
  return sys_call(SYS_recvfrom, fd, sys_arg(buf), static_cast<long>(n), flags | MSG_DONTWAIT);
}

// The wait of a receive; the descriptor was looked at and is not O_NONBLOCK. `again` does the same call without
// blocking: -EAGAIN from the ring means that the kernel gave up retrying, or that O_NONBLOCK was set meanwhile.
template <class Try>
long wait_recv(Fiber* f, const Request& r, Reason reason, int64_t deadline, Try again) {
  uint32_t generation = fd_generation(r.fd);
  for (;;) {
    long res = wait_request(f, r, reason, deadline);
    if (res == -ETIMEDOUT) return -EAGAIN;
    if (res != -EAGAIN) return res;
    if (fd_generation(r.fd) != generation) return -EBADF;
    res = again();
    if (res != -EAGAIN || fd_nonblocking(r.fd)) return res;
  }
}

constexpr int kNeverWaits = MSG_DONTWAIT | MSG_ERRQUEUE | MSG_OOB;
constexpr size_t kMost = 0x7ffff000;  // the kernel's MAX_RW_COUNT

// flags without MSG_WAITALL: the ring's own loop does not know MSG_PEEK, descriptors on their way, or O_NONBLOCK.
long recv_once(Fiber* f, int fd, void* buf, size_t n, int flags, int64_t deadline) {
  // The last read on this descriptor found it empty, or emptied it: then trying first is a wasted call. Whether it may
  // wait must be asked, for a socket's request waits on the ring with O_NONBLOCK too.
  if (f->drained_fd != fd || poll_first() == 0) {
    long r = try_recv(fd, buf, n, flags);
    if (r != -EAGAIN) {
      if (r > 0 && static_cast<size_t>(r) < n) f->drained_fd = fd;
      return r;
    }
    if (fd_nonblocking(fd)) return r;
  } else if (fd_nonblocking(fd)) {
    return try_recv(fd, buf, n, flags);
  }
  Request req = message_request(IORING_OP_RECV, fd, buf, n, flags);
  long r = wait_recv(f, req, Reason::recv, deadline, [&] { return try_recv(fd, buf, n, flags); });
  f->drained_fd = r > 0 && static_cast<size_t>(r) < n ? fd : -1;
  return r;
}

// MSG_PEEK with MSG_WAITALL: when it ends with less than `n` is the kernel's own affair (the end of the stream, urgent
// data, any unix socket). So after the first byte the worker waits for the rest. Others' completions cut it short too;
// what is really all comes again and again without waiting.
template <class Call>
long peek_all(Fiber* f, long got, size_t n, int64_t deadline, Call call) {
  constexpr int64_t kAtOnce = 20 * kMicro;
  constexpr int kSure = 32;
  uint32_t taken = handlers_run(f);
  for (int at_once = 0;;) {
    int64_t begun = now_ns();
    long r = native_point(f, "recv", [&] { return now_ns() >= deadline ? got : call(); });
    if (r <= 0 || static_cast<size_t>(r) >= n || handlers_run(f) != taken || now_ns() >= deadline) return r;
    got = r;
    at_once = now_ns() - begun < kAtOnce ? at_once + 1 : 0;
    if (at_once == kSure) return r;
  }
}

bool all_wanted(int fd, int flags) { return (flags & MSG_WAITALL) != 0 && is_stream(fd); }

long recv_any(Fiber* f, int fd, void* buf, size_t n, int flags) {
  if ((flags & kNeverWaits) != 0)
    return sys_call(SYS_recvfrom, fd, sys_arg(buf), static_cast<long>(n), flags);
  if (n > kMost) n = kMost;
  int64_t deadline = socket_deadline(fd, SO_RCVTIMEO);
  if (VTHR_LIKELY((flags & MSG_WAITALL) == 0)) return recv_once(f, fd, buf, n, flags, deadline);
  bool all = all_wanted(fd, flags);
  int once = flags & ~MSG_WAITALL;
  if (!all) return recv_once(f, fd, buf, n, once, deadline);
  if ((flags & MSG_PEEK) != 0) {
    long r = recv_once(f, fd, buf, n, once, deadline);
    if (r <= 0 || static_cast<size_t>(r) >= n || fd_nonblocking(fd)) return r;
    return peek_all(f, r, n, deadline,
                    [=] { return sys_call(SYS_recvfrom, fd, sys_arg(buf), static_cast<long>(n), flags); });
  }
  size_t done = 0;
  uint32_t generation = fd_generation(fd);
  do {
    long r = recv_once(f, fd, static_cast<char*>(buf) + done, n - done, once, deadline);
    if (r < 0) return done != 0 ? static_cast<long>(done) : r;
    if (r == 0) break;
    done += static_cast<size_t>(r);
  } while (done < n && fd_generation(fd) == generation);
  return static_cast<long>(done);
}

long try_recvmsg(int fd, msghdr* m, int flags) {
  return sys_call(SYS_recvmsg, fd, sys_arg(m), flags | MSG_DONTWAIT);
}

// After a try that gave `r`. The kernel writes to *m on success only.
long recvmsg_after(Fiber* f, int fd, msghdr* m, int flags, int64_t deadline, long r) {
  if (r != -EAGAIN || fd_nonblocking(fd)) return r;
  return wait_recv(f, message_request(IORING_OP_RECVMSG, fd, m, 1, flags), Reason::recv, deadline,
                   [=] { return try_recvmsg(fd, m, flags); });
}

bool has_descriptors(msghdr* m) {
  if (m->msg_controllen == 0) return false;
  for (cmsghdr* c = CMSG_FIRSTHDR(m); c != nullptr; c = CMSG_NXTHDR(m, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) return true;
  }
  return false;
}

// `tried`: the result of a try with the same flags. The header was not looked at before the kernel did.
long recvmsg_after_try(Fiber* f, int fd, msghdr* m, int flags, const msghdr& asked, long tried) {
  int64_t deadline = socket_deadline(fd, SO_RCVTIMEO);
  int once = flags & ~MSG_WAITALL;
  bool all = all_wanted(fd, flags);
  uint32_t generation = fd_generation(fd);
  long r = recvmsg_after(f, fd, m, once, deadline, tried);
  if (r <= 0) return r;
  bool passed = has_descriptors(m);
  if (passed) note_socket_timeouts();  // a socket among them may have one
  if (!all) return r;
  size_t total = vector_bytes(m->msg_iov, m->msg_iovlen), done = static_cast<size_t>(r);
  if (done >= total) return r;
  if ((flags & MSG_PEEK) != 0) {
    if (fd_nonblocking(fd)) return r;
    return peek_all(f, r, total, deadline, [&] {
      *m = asked;
      return sys_call(SYS_recvmsg, fd, sys_arg(m), flags);
    });
  }
  while (done < total && !passed &&
         fd_generation(fd) == generation) {  // descriptors end it, as in the kernel
    iovec rest[kVectorChunk];
    msghdr more = asked;
    more.msg_name = nullptr;
    more.msg_namelen = 0;
    more.msg_iov = rest;
    more.msg_iovlen = static_cast<size_t>(vector_rest(m->msg_iov, m->msg_iovlen, done, rest));
    r = recvmsg_after(f, fd, &more, once, deadline, try_recvmsg(fd, &more, once));
    if (r <= 0) break;
    done += static_cast<size_t>(r);
    m->msg_controllen = more.msg_controllen;
    m->msg_flags |= more.msg_flags;
    passed = has_descriptors(&more);
    if (passed) note_socket_timeouts();
  }
  return static_cast<long>(done);
}

long recvmsg_any(Fiber* f, int fd, msghdr* m, int flags) {
  if ((flags & kNeverWaits) != 0) return sys_call(SYS_recvmsg, fd, sys_arg(m), flags);
  bool in_full = (flags & MSG_WAITALL) != 0;
  // a wrong address must be the kernel's to find
  if (in_full && !readable(m)) return -EFAULT;
  msghdr asked{};
  if (in_full) asked = *m;
  long r = try_recvmsg(fd, m, flags);
  if (r < 0 && r != -EAGAIN) return r;
  return recvmsg_after_try(f, fd, m, flags, asked, r);
}

long recvfrom_any(Fiber* f, int fd, void* buf, size_t n, int flags, sockaddr* from, socklen_t* from_len) {
  if (from == nullptr) return recv_any(f, fd, buf, n, flags);
  int now = (flags & kNeverWaits) != 0 ? flags : flags | MSG_DONTWAIT;
  long r =
      sys_call(SYS_recvfrom, fd, sys_arg(buf), static_cast<long>(n), now, sys_arg(from), sys_arg(from_len));
  if (now == flags || (r < 0 && r != -EAGAIN) || (r >= 0 && (flags & MSG_WAITALL) == 0)) return r;
  if (r == -EAGAIN && fd_nonblocking(fd)) return r;
  if (!readable(from_len))  // it looks at the length when something has come
    return native_point(f, "recvfrom", [=] {
      return sys_call(SYS_recvfrom, fd, sys_arg(buf), static_cast<long>(n), flags, sys_arg(from),
                      sys_arg(from_len));
    });
  iovec iov{buf, n > kMost ? kMost : n};
  msghdr m{};
  m.msg_name = from;
  m.msg_namelen = *from_len;
  m.msg_iov = &iov;
  m.msg_iovlen = 1;
  bool first = r == -EAGAIN;
  msghdr asked = m;
  r = recvmsg_after_try(f, fd, &m, flags, asked, r);
  if (r >= 0 && first) *from_len = m.msg_namelen;
  return r;
}

// The kernel looks at the time limit after each message only.
long recvmmsg_any(Fiber* f, int fd, mmsghdr* v, unsigned n, int flags, timespec* limit) {
  if ((flags & kNeverWaits) != 0 || n == 0)
    return sys_call(SYS_recvmmsg, fd, sys_arg(v), n, flags, sys_arg(limit));
  if (limit != nullptr && !readable(limit)) return -EFAULT;
  if (limit != nullptr && (limit->tv_sec < 0 || !valid_nsec(limit))) return -EINVAL;
  if (n > IOV_MAX) n = IOV_MAX;
  int64_t end = deadline_in(limit), deadline = socket_deadline(fd, SO_RCVTIMEO);
  int once = flags & ~(MSG_WAITFORONE | MSG_WAITALL);
  unsigned done = 0;
  uint32_t generation = fd_generation(fd);
  long r = 0;
  for (;;) {
    r = sys_call(SYS_recvmmsg, fd, sys_arg(v + done), n - done, once | MSG_DONTWAIT, 0);
    if (r > 0) done += static_cast<unsigned>(r);
    if (r < 0 && r != -EAGAIN) break;
    if (done == n || (done != 0 && ((flags & MSG_WAITFORONE) != 0 || now_ns() >= end))) break;
    r = recvmsg_after(f, fd, &v[done].msg_hdr, once, deadline, -EAGAIN);
    if (r < 0) break;
    v[done++].msg_len = static_cast<unsigned>(r);
    if (done == n || now_ns() >= end || fd_generation(fd) != generation) break;
  }
  for (unsigned i = 0; i < done; i++) {
    if (has_descriptors(&v[i].msg_hdr)) note_socket_timeouts();
  }
  if (done != 0 && limit != nullptr) {
    int64_t left = end - now_ns();
    if (left < 0) left = 0;
    limit->tv_sec = left / kSecond;
    limit->tv_nsec = left % kSecond;
  }
  return done != 0 ? static_cast<long>(done) : r;
}

long finish_send(Fiber* f, long r, size_t done, int flags) {
  if (r == -EPIPE && (flags & MSG_NOSIGNAL) == 0 && done == 0) sigpipe(f, false);
  return done != 0 ? static_cast<long>(done) : r;
}

// What the first, non-blocking send left over. A stream socket takes it in pieces; others take all or nothing.
long send_rest(Fiber* f, int fd, const msghdr& m, size_t done, size_t total, int flags, uint32_t generation) {
  if (done != 0 && done >= total) return static_cast<long>(done);
  int64_t deadline = socket_deadline(fd, SO_SNDTIMEO);
  for (;;) {
    if (fd_generation(fd) != generation) return done != 0 ? static_cast<long>(done) : -EBADF;
    iovec rest[kVectorChunk];
    msghdr more = m;
    if (done != 0) more.msg_control = nullptr, more.msg_controllen = 0;
    if (m.msg_iovlen <= static_cast<size_t>(kVectorChunk) || done != 0) {
      more.msg_iov = rest;
      more.msg_iovlen = static_cast<size_t>(vector_rest(m.msg_iov, m.msg_iovlen, done, rest));
    }
    Request req = message_request(IORING_OP_SENDMSG, fd, &more, 1, flags | MSG_NOSIGNAL);
    long r = wait_request(f, req, Reason::send, deadline);
    if (r == -EAGAIN && fd_generation(fd) == generation) {
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
  uint32_t generation = fd_generation(fd);
  long r = sys_call(SYS_sendmsg, fd, sys_arg(m), flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  if ((flags & MSG_DONTWAIT) != 0 || (r < 0 && r != -EAGAIN)) return finish_send(f, r, 0, flags);
  size_t total = vector_bytes(m->msg_iov, m->msg_iovlen), done = r > 0 ? static_cast<size_t>(r) : 0;
  if (r >= 0 && done >= total) return r;
  if (fd_nonblocking(fd)) return r;
  return send_rest(f, fd, *m, done, total, flags, generation);
}

// As the kernel's own loop: it ends at the first error, which is the result if nothing was sent.
long sendmmsg_any(Fiber* f, int fd, mmsghdr* v, unsigned n, int flags) {
  if (n > IOV_MAX) n = IOV_MAX;
  unsigned done = 0;
  long r = 0;
  uint32_t generation = fd_generation(fd);
  do {
    r = sys_call(SYS_sendmmsg, fd, sys_arg(v + done), n - done, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
    if ((flags & MSG_DONTWAIT) != 0 || (r < 0 && r != -EAGAIN) || n == 0) {
      return finish_send(f, r, done, flags);
    }
    if (r > 0) {
      done += static_cast<unsigned>(r);
      mmsghdr& last = v[done - 1];  // a stream takes a part of one, which ends the kernel's loop
      size_t total = vector_bytes(last.msg_hdr.msg_iov, last.msg_hdr.msg_iovlen);
      if (last.msg_len < total && !fd_nonblocking(fd)) {
        r = send_rest(f, fd, last.msg_hdr, last.msg_len, total, flags, generation);
        if (r > 0) last.msg_len = static_cast<unsigned>(r);
      }
      if (last.msg_len < total || done == n) break;
    }
    r = sendmsg_any(f, fd, &v[done].msg_hdr, flags);
    if (r < 0) break;
    v[done++].msg_len = static_cast<unsigned>(r);
  } while (done < n && fd_generation(fd) == generation);
  return done != 0 ? static_cast<long>(done) : r;
}

long send_any(Fiber* f, int fd, const void* buf, size_t n, int flags, const sockaddr* to, socklen_t to_len) {
  uint32_t generation = fd_generation(fd);
  long r = sys_call(SYS_sendto, fd, sys_arg(buf), static_cast<long>(n), flags | MSG_DONTWAIT | MSG_NOSIGNAL,
                    sys_arg(to), to_len);
  if (VTHR_LIKELY(r == static_cast<long>(n))) return r;
  if ((flags & MSG_DONTWAIT) != 0 || (r < 0 && r != -EAGAIN)) return finish_send(f, r, 0, flags);
  if (fd_nonblocking(fd)) return r;
  iovec iov{const_cast<void*>(buf), n > kMost ? kMost : n};
  msghdr m{};
  m.msg_name = const_cast<sockaddr*>(to);
  m.msg_namelen = to_len;
  m.msg_iov = &iov;
  m.msg_iovlen = 1;
  return send_rest(f, fd, m, r > 0 ? static_cast<size_t>(r) : 0, iov.iov_len, flags, generation);
}

// A descriptor that the caller has just got.
long note_new(long fd) {
  fd_new_file(static_cast<int>(fd));
  return fd;
}

long accept_any(Fiber* f, int fd, sockaddr* addr, socklen_t* len, int flags) {
  if (fd_nonblocking(fd)) return note_new(sys_call(SYS_accept4, fd, sys_arg(addr), sys_arg(len), flags));
  Request r;
  r.code = IORING_OP_ACCEPT;
  r.fd = fd;
  r.addr = reinterpret_cast<uint64_t>(addr);
  r.off = reinterpret_cast<uint64_t>(len);
  r.flags = static_cast<uint32_t>(flags);
  long got = wait_recv(f, r, Reason::accept, socket_deadline(fd, SO_RCVTIMEO), [&]() -> long {
    if (fd_nonblocking(fd)) return sys_call(SYS_accept4, fd, sys_arg(addr), sys_arg(len), flags);
    if (engine_features.holds_files) return -EAGAIN;
    return native_point(f, "accept",
                        [=] { return sys_call(SYS_accept4, fd, sys_arg(addr), sys_arg(len), flags); });
  });
  if (got >= 0) {
    fd_set_hint(static_cast<int>(got), FdKind::socket);
    fd_new_file(static_cast<int>(got));
  }
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

// What a connect says whose SO_SNDTIMEO is over. A unix socket waited for room in the listener's queue; others are on
// their way.
long connect_late(int fd) {
  int domain = 0;
  socklen_t len = sizeof domain;
  sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, sys_arg(&domain), sys_arg(&len));
  return domain == AF_UNIX ? -EAGAIN : -EINPROGRESS;
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
  if (res == -EAGAIN && !engine_features.holds_files && (deadline == kNever || now_ns() < deadline))
    res = native_point(f, "connect", [=] { return sys_call(SYS_connect, fd, sys_arg(addr), len); });
  if (res == -ECANCELED) {
    cancel_here();
    res = await_connect(f, fd, deadline);  // it may not act here: the connection goes on
  }
  if (res == -EINTR && deadline == kNever && signal_restarts(f)) res = await_connect(f, fd, deadline);
  // the kernel's own ETIMEDOUT (no answer to SYN) looks like ours
  if (res == -ETIMEDOUT && deadline != kNever && now_ns() >= deadline) return connect_late(fd);
  return res;
}

}  // namespace

// A vector without bytes is nothing to read or write, whatever the socket; and the vector must be the kernel's to judge.
// So the program's are tried by the calls that take vectors.
long socket_readv(Fiber* f, int fd, const iovec* iov, int n, bool own) {
  if (VTHR_LIKELY(own)) return recv_any(f, fd, iov->iov_base, iov->iov_len, 0);
  long r = sys_call(SYS_preadv2, fd, sys_arg(iov), n, -1, -1, RWF_NOWAIT);
  if (r != -EAGAIN && r != -EOPNOTSUPP) return r;
  msghdr m{};
  m.msg_iov = const_cast<iovec*>(iov);
  m.msg_iovlen = static_cast<size_t>(n);
  if (r == -EOPNOTSUPP) return vector_bytes(iov, m.msg_iovlen) == 0 ? 0 : recvmsg_any(f, fd, &m, 0);
  return recvmsg_after_try(f, fd, &m, 0, m, r);
}

long socket_writev(Fiber* f, int fd, const iovec* iov, int n, bool own) {
  if (VTHR_LIKELY(own)) return send_any(f, fd, iov->iov_base, iov->iov_len, 0, nullptr, 0);
  uint32_t generation = fd_generation(fd);
  long r = sys_call(SYS_pwritev2, fd, sys_arg(iov), n, -1, -1, RWF_NOWAIT);
  if (r == -EPIPE) sigpipe(f, true);
  if (r < 0 && r != -EAGAIN && r != -EOPNOTSUPP) return r;
  msghdr m{};
  m.msg_iov = const_cast<iovec*>(iov);
  m.msg_iovlen = static_cast<size_t>(n);
  size_t total = vector_bytes(iov, m.msg_iovlen), done = r > 0 ? static_cast<size_t>(r) : 0;
  if (total == 0) return 0;
  if (r == -EOPNOTSUPP) return sendmsg_any(f, fd, &m, 0);
  if (r >= 0 && done >= total) return r;
  if (fd_nonblocking(fd)) return r;
  return send_rest(f, fd, m, done, total, 0, generation);
}

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT ssize_t recv(int fd, void* buf, size_t n, int flags) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(recv)(fd, buf, n, flags);
  return libc_result(recv_any(f, fd, buf, n, flags));
}

VTHR_EXPORT ssize_t recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* from, socklen_t* from_len) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(recvfrom)(fd, buf, n, flags, from, from_len);
  return libc_result(recvfrom_any(f, fd, buf, n, flags, from, from_len));
}

VTHR_EXPORT ssize_t recvmsg(int fd, msghdr* m, int flags) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(recvmsg)(fd, m, flags);
  return libc_result(recvmsg_any(f, fd, m, flags));
}

VTHR_EXPORT ssize_t send(int fd, const void* buf, size_t n, int flags) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(send)(fd, buf, n, flags);
  return libc_result(send_any(f, fd, buf, n, flags, nullptr, 0));
}

VTHR_EXPORT ssize_t sendto(int fd, const void* buf, size_t n, int flags, const sockaddr* to,
                           socklen_t to_len) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(sendto)(fd, buf, n, flags, to, to_len);
  return libc_result(send_any(f, fd, buf, n, flags, to, to_len));
}

VTHR_EXPORT ssize_t sendmsg(int fd, const msghdr* m, int flags) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(sendmsg)(fd, m, flags);
  return libc_result(sendmsg_any(f, fd, m, flags));
}

VTHR_EXPORT int recvmmsg(int fd, mmsghdr* v, unsigned n, int flags, timespec* limit) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(recvmmsg)(fd, v, n, flags, limit);
  return static_cast<int>(libc_result(recvmmsg_any(f, fd, v, n, flags, limit)));
}

VTHR_EXPORT int sendmmsg(int fd, mmsghdr* v, unsigned n, int flags) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(sendmmsg)(fd, v, n, flags);
  return static_cast<int>(libc_result(sendmmsg_any(f, fd, v, n, flags)));
}

VTHR_EXPORT int accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return static_cast<int>(note_new(REAL(accept4)(fd, addr, len, flags)));
  return static_cast<int>(libc_result(accept_any(f, fd, addr, len, flags)));
}

VTHR_EXPORT int accept(int fd, sockaddr* addr, socklen_t* len) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return static_cast<int>(note_new(REAL(accept)(fd, addr, len)));
  return static_cast<int>(libc_result(accept_any(f, fd, addr, len, 0)));
}

VTHR_EXPORT int connect(int fd, const sockaddr* addr, socklen_t len) {
  Fiber* f = fiber_at_point();
  fd_new_file(fd);  // what socket() gave
  if (f == nullptr) return REAL(connect)(fd, addr, len);
  return static_cast<int>(libc_result(connect_any(f, fd, addr, len)));
}

VTHR_EXPORT int shutdown(int fd, int how) noexcept {
  if (shares_descriptors()) settle_requests(fiber_here(), fd, fd);
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

VTHR_HOOK_NAME(recv);
VTHR_HOOK_NAME(recvfrom);
VTHR_HOOK_NAME(recvmsg);
VTHR_HOOK_NAME(recvmmsg);
VTHR_HOOK_NAME(send);
VTHR_HOOK_NAME(sendto);
VTHR_HOOK_NAME(sendmsg);
VTHR_HOOK_NAME(sendmmsg);
VTHR_HOOK_NAME(connect);
VTHR_HOOK_NAME(accept);
VTHR_HOOK_NAME(accept4);
