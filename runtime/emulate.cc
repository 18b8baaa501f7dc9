#include "runtime/emulate.h"

#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <cerrno>
#include <csignal>

#include "runtime/lock.h"
#include "runtime/sys.h"

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif

namespace vthr {

namespace {

// Long enough for what does not wait at all, even where a timer's signal comes late; a connect that has to wait for an
// answer from elsewhere costs its carrier this much.
constexpr int64_t kBriefly = 50 * kMicro, kBrieflyConnecting = 20 * kMicro;

// Two carriers may see the same connection. The number is only a hint of which listeners are the same.
constexpr unsigned kAcceptLocks = 16;
Lock accept_locks[kAcceptLocks];

long interrupted_is_not_ready(long r) { return r == -EINTR ? -EAGAIN : r; }

// 0 also when it is no socket.
int socket_option(int fd, int name) {
  int value = 0;
  socklen_t len = sizeof value;
  return sys_call(SYS_getsockopt, fd, SOL_SOCKET, name, sys_arg(&value), sys_arg(&len)) == 0 ? value : 0;
}

bool listens(int fd) { return socket_option(fd, SO_ACCEPTCONN) != 0; }

long accept_briefly(const Request& r, int fd, BriefTimer* timer, bool* native) {
  Locked hold(accept_locks[static_cast<unsigned>(fd) % kAcceptLocks]);
  // another process or a thread of the program may be faster: hence the timer
  if (poll_now(fd, POLLIN) == 0 && !begins_with_a_try(r)) return -EAGAIN;
  long r1 = timer->call(kBriefly, SYS_accept4, fd, static_cast<long>(r.addr), static_cast<long>(r.off),
                        static_cast<long>(r.flags));
  *native = r1 == -ENOSYS;
  return r1 == -ENOSYS ? -EAGAIN : interrupted_is_not_ready(r1);
}

// The first call begins it. A later one finds it established or refused, and says so as the kernel's own wait would.
long connect_briefly(const Request& r, int fd, BriefTimer* timer, bool* native) {
  long r1 =
      timer->call(kBrieflyConnecting, SYS_connect, fd, static_cast<long>(r.addr), static_cast<long>(r.off));
  *native = r1 == -ENOSYS;
  if (r1 == -ENOSYS || r1 == -EINPROGRESS || r1 == -EALREADY) return -EAGAIN;
  return interrupted_is_not_ready(r1);
}

void take_back_sigpipe() {
  uint64_t only = sig_bit(SIGPIPE);
  timespec zero{};
  sys_call(SYS_rt_sigtimedwait, sys_arg(&only), 0, sys_arg(&zero), 8);
}

long try_vector(bool writes, int fd, const iovec* iov, uint32_t n, bool own_fd, BriefTimer* timer,
                bool* native) {
  long r = sys_call(writes ? SYS_pwritev2 : SYS_preadv2, fd, sys_arg(iov), n, -1, -1, RWF_NOWAIT);
  if (r == -EOPNOTSUPP) {
    if (poll_now(fd, writes ? POLLOUT : POLLIN) == 0) return -EAGAIN;
    // what a brief call has read of a terminal may be less than VTIME asks for
    if (!writes && !own_fd) {
      *native = true;
      return -EAGAIN;
    }
    r = timer->call(kBriefly, writes ? SYS_writev : SYS_readv, fd, sys_arg(iov), n);
    *native = r == -ENOSYS;
    r = *native ? -EAGAIN : interrupted_is_not_ready(r);
  }
  if (writes && r == -EPIPE)
    take_back_sigpipe();  // it was sent to this thread, and the fiber gets one from its hook
  return r;
}

}  // namespace

bool is_tcp(int fd) {
  return socket_option(fd, SO_PROTOCOL) == IPPROTO_TCP && socket_option(fd, SO_TYPE) == SOCK_STREAM;
}

uint32_t poll_now(int fd, uint32_t events) {
  pollfd p{fd, static_cast<short>(events), 0};
  return sys_call(SYS_poll, sys_arg(&p), 1, 0) > 0 ? static_cast<uint16_t>(p.revents) : 0;
}

Waits waits_for(const Request& r) {
  switch (r.code) {
    case IORING_OP_RECV:
    case IORING_OP_RECVMSG:
    case IORING_OP_READ:
    case IORING_OP_READV:
    case IORING_OP_ACCEPT:
      return Waits::readable;
    case IORING_OP_SEND:
    case IORING_OP_SENDMSG:
    case IORING_OP_WRITE:
    case IORING_OP_WRITEV:
    case IORING_OP_CONNECT:
      return Waits::writable;
    case IORING_OP_POLL_ADD:
      return Waits::polls;
    case IORING_OP_NOP:
      return Waits::nothing;
    default:
      return Waits::unknown;
  }
}

bool begins_with_a_try(const Request& r) {
  if (r.code == IORING_OP_CONNECT) return true;
  return r.code == IORING_OP_ACCEPT &&
         ((r.flags & ~static_cast<uint32_t>(SOCK_CLOEXEC | SOCK_NONBLOCK)) != 0 || !listens(r.fd));
}

bool is_blind(const Request& r) {
  return r.code == IORING_OP_CONNECT && r.off >= sizeof(sa_family_t) &&
         reinterpret_cast<const sockaddr*>(r.addr)->sa_family == AF_UNIX;
}

long try_request(const Request& r, int fd, bool own_fd, BriefTimer* timer, bool* native) {
  auto addr = static_cast<long>(r.addr);
  long flags = static_cast<long>(r.flags) | MSG_DONTWAIT;
  iovec one{reinterpret_cast<void*>(r.addr), r.len};
  switch (r.code) {
    case IORING_OP_RECV:
      return sys_call(SYS_recvfrom, fd, addr, r.len, flags);
    case IORING_OP_SEND:
      return sys_call(SYS_sendto, fd, addr, r.len, flags);
    case IORING_OP_RECVMSG:
      return sys_call(SYS_recvmsg, fd, addr, flags);
    case IORING_OP_SENDMSG:
      return sys_call(SYS_sendmsg, fd, addr, flags);
    case IORING_OP_READ:
    case IORING_OP_WRITE:
      return try_vector(r.code == IORING_OP_WRITE, fd, &one, 1, own_fd, timer, native);
    case IORING_OP_READV:
    case IORING_OP_WRITEV:
      return try_vector(r.code == IORING_OP_WRITEV, fd, reinterpret_cast<const iovec*>(r.addr), r.len, own_fd,
                        timer, native);
    case IORING_OP_ACCEPT:
      return accept_briefly(r, fd, timer, native);
    case IORING_OP_CONNECT:
      return connect_briefly(r, fd, timer, native);
    default:
      return -EINVAL;
  }
}

}  // namespace vthr
