// read and write, on whatever a descriptor is.
#include <cerrno>
#include <climits>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "interpose/blocking.h"
#include "interpose/socket.h"

extern "C" void __chk_fail() __attribute__((noreturn));

namespace vthr {

namespace {

// What is it? One fstat when the hint is missing.
FdKind kind_of(int fd) {
  FdKind k = fd_hint(fd);
  if (VTHR_LIKELY(k != FdKind::unknown)) return k;
  struct stat st;
  if (sys_call(SYS_fstat, fd, sys_arg(&st)) != 0) return FdKind::unknown;
  k = S_ISSOCK(st.st_mode) ? FdKind::socket : S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) || S_ISBLK(st.st_mode)
                                                  ? FdKind::file
                                                  : FdKind::stream;
  fd_set_hint(fd, k);
  return k;
}

constexpr uint64_t kHere = ~0ull;  // offset -1: the file's own position

Request vector_request(uint8_t code, int fd, const iovec* iov, int n) {
  Request r;
  r.code = code;
  r.fd = fd;
  r.off = kHere;
  r.addr = reinterpret_cast<uint64_t>(iov);
  r.len = static_cast<uint32_t>(n);
  return r;
}

// Pipes, terminals, eventfds and their like. The kernel's READ waits for the file itself, not for its number.
long read_stream(Fiber* f, int fd, const iovec* iov, int n) {
  long r = sys_call(SYS_preadv2, fd, sys_arg(iov), n, -1, -1, RWF_NOWAIT);
  if (r != -EAGAIN && r != -EOPNOTSUPP) return r;
  if (fd_nonblocking(fd)) return r == -EAGAIN ? r : sys_call(SYS_readv, fd, sys_arg(iov), n);
  for (;;) {
    r = wait_request(f, vector_request(IORING_OP_READV, fd, iov, n), Reason::read, kNever);
    if (r != -EAGAIN) return r;
    // O_NONBLOCK was set meanwhile, or the kernel gave up retrying a contended file
    if (fd_nonblocking(fd)) return sys_call(SYS_readv, fd, sys_arg(iov), n);
  }
}

// A blocking write ends when everything is written. Pipes split what is larger than PIPE_BUF, as the kernel's own loop
// does; what is not larger goes in one piece: RWF_NOWAIT refuses a partial one, and the ring's WRITE keeps the rule.
long write_stream(Fiber* f, int fd, const iovec* iov, int n) {
  long r = sys_call(SYS_pwritev2, fd, sys_arg(iov), n, -1, -1, RWF_NOWAIT);
  size_t total = 0, done = 0;
  if (r >= 0) {
    total = vector_bytes(iov, static_cast<size_t>(n));
    done = static_cast<size_t>(r);
    if (done >= total) return r;
  } else if (r == -EPIPE) {
    sigpipe(f, true);
    return r;
  } else if (r != -EAGAIN && r != -EOPNOTSUPP) {
    return r;
  }
  if (fd_nonblocking(fd)) {
    if (r >= 0) return r;
    r = r == -EAGAIN ? r : sys_call(SYS_writev, fd, sys_arg(iov), n);
    if (r == -EPIPE) sigpipe(f, true);
    return r;
  }
  total = vector_bytes(iov, static_cast<size_t>(n));
  do {
    iovec rest[kVectorChunk];
    int m = vector_rest(iov, static_cast<size_t>(n), done, rest);
    r = wait_request(f, vector_request(IORING_OP_WRITEV, fd, rest, m), Reason::write, kNever);
    if (r == -EAGAIN) {
      if (!fd_nonblocking(fd)) continue;
      r = sys_call(SYS_writev, fd, sys_arg(rest), m);
    }
    if (r == -EPIPE) sigpipe(f, true);
    if (r < 0) return done != 0 ? static_cast<long>(done) : r;
    if (r == 0) break;
    done += static_cast<size_t>(r);
  } while (done < total);
  return static_cast<long>(done);
}

long read_any(Fiber* f, int fd, const iovec* iov, int n) {
  switch (kind_of(fd)) {
    case FdKind::socket: {
      long r = socket_readv(f, fd, iov, n);
      if (r != -ENOTSOCK) return r;
      fd_forget(fd);
      return read_any(f, fd, iov, n);
    }
    case FdKind::stream:
      return read_stream(f, fd, iov, n);
    default: {
      // regular files: a page-cache hit is a plain call. A stale hint must not block a carrier unseen: sysmon sees it.
      NativeCall native(f, "read");
      return sys_call(SYS_readv, fd, sys_arg(iov), n);
    }
  }
}

long write_any(Fiber* f, int fd, const iovec* iov, int n) {
  switch (kind_of(fd)) {
    case FdKind::socket: {
      long r = socket_writev(f, fd, iov, n);
      if (r != -ENOTSOCK) return r;
      fd_forget(fd);
      return write_any(f, fd, iov, n);
    }
    case FdKind::stream:
      return write_stream(f, fd, iov, n);
    default: {
      NativeCall native(f, "write");
      long r = sys_call(SYS_writev, fd, sys_arg(iov), n);
      if (r == -EPIPE) sigpipe(f, true);
      return r;
    }
  }
}

// Counts above what a vector may carry are the kernel's to judge.
bool plain(size_t n) { return n == 0 || n > 0x7ffff000; }

}  // namespace

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT ssize_t read(int fd, void* buf, size_t n) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(read)(fd, buf, n);
  if (plain(n)) n = n == 0 ? 0 : 0x7ffff000;
  if (n == 0) return libc_result(sys_call(SYS_read, fd, sys_arg(buf), 0));
  iovec iov{buf, n};
  return libc_result(read_any(f, fd, &iov, 1));
}

VTHR_EXPORT ssize_t write(int fd, const void* buf, size_t n) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(write)(fd, buf, n);
  if (plain(n)) n = n == 0 ? 0 : 0x7ffff000;
  if (n == 0) return libc_result(sys_call(SYS_write, fd, sys_arg(buf), 0));
  iovec iov{const_cast<void*>(buf), n};
  return libc_result(write_any(f, fd, &iov, 1));
}

VTHR_EXPORT ssize_t readv(int fd, const iovec* iov, int n) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(readv)(fd, iov, n);
  if (n <= 0 || n > IOV_MAX) return libc_result(sys_call(SYS_readv, fd, sys_arg(iov), n));
  return libc_result(read_any(f, fd, iov, n));
}

VTHR_EXPORT ssize_t writev(int fd, const iovec* iov, int n) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(writev)(fd, iov, n);
  if (n <= 0 || n > IOV_MAX) return libc_result(sys_call(SYS_writev, fd, sys_arg(iov), n));
  return libc_result(write_any(f, fd, iov, n));
}

VTHR_EXPORT int close(int fd) {
  if (VTHR_UNLIKELY(fd_is_ours(fd))) {
    errno = EBADF;
    return -1;
  }
  Fiber* f = fiber_here();
  if (sched_running()) settle_requests(f, fd);
  fd_forget(fd);
  if (f == nullptr) return REAL(close)(fd);
  return static_cast<int>(libc_result(sys_call(SYS_close, fd)));
}

VTHR_EXPORT int dup2(int from, int to) noexcept {
  if (VTHR_UNLIKELY(fd_is_ours(to) || fd_is_ours(from))) {
    errno = EBADF;
    return -1;
  }
  if (sched_running()) settle_requests(fiber_here(), to);
  fd_forget(to);
  return static_cast<int>(libc_result(sys_call(SYS_dup2, from, to)));
}

VTHR_EXPORT int dup3(int from, int to, int flags) noexcept {
  if (VTHR_UNLIKELY(fd_is_ours(to) || fd_is_ours(from))) {
    errno = EBADF;
    return -1;
  }
  if (sched_running()) settle_requests(fiber_here(), to);
  fd_forget(to);
  return static_cast<int>(libc_result(sys_call(SYS_dup3, from, to, flags)));
}

VTHR_EXPORT ssize_t __read_chk(int fd, void* buf, size_t n, size_t room) {
  if (n > room) __chk_fail();
  return read(fd, buf, n);
}
VTHR_EXPORT ssize_t __read(int fd, void* buf, size_t n) { return read(fd, buf, n); }
VTHR_EXPORT ssize_t __write(int fd, const void* buf, size_t n) { return write(fd, buf, n); }
VTHR_EXPORT int __close(int fd) { return close(fd); }
