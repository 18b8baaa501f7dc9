// read and write, on whatever a descriptor is.
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cerrno>
#include <climits>

#include "interpose/blocking.h"
#include "interpose/entries.h"
#include "interpose/socket.h"

extern "C" void __chk_fail() __attribute__((noreturn));

namespace vthr {

namespace {

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

// How often a request may come back with -EAGAIN before the worker makes the call itself: O_NONBLOCK was set and taken
// back meanwhile, or the kernel gave up retrying a contended file.
constexpr int kPatience = 3;

size_t bytes_of(const iovec* iov, int n) {
  return n == 1 ? iov->iov_len : vector_bytes(iov, static_cast<size_t>(n));
}

bool ready_for(int fd, short events) {
  pollfd p{fd, events, 0};
  return sys_call(SYS_poll, sys_arg(&p), 1, 0) > 0;
}

// The call by the worker itself. What was read or written of a file is all that was asked for, except at its end or on
// an error; other fibers' completions cut writes to pipes short, hence the loop.
long all_of(Fiber* f, long nr, const char* name, int fd, const iovec* iov, int n, size_t done, size_t total) {
  while (done < total) {
    iovec rest[kVectorChunk];
    int m = vector_rest(iov, static_cast<size_t>(n), done, rest);
    uint32_t taken = handlers_run(f);
    long r = native_point(f, name, [&] { return sys_call(nr, fd, sys_arg(rest), m); });
    if (r == -EPIPE && nr == SYS_writev) sigpipe(f, true);
    if (r < 0) return done != 0 ? static_cast<long>(done) : r;
    done += static_cast<size_t>(r);
    if (r == 0 || (nr == SYS_writev && handlers_run(f) != taken)) break;
  }
  return static_cast<long>(done);
}

bool never_waits(FdKind k) { return k == FdKind::file || k == FdKind::endless; }

long read_natively(Fiber* f, int fd, const iovec* iov, int n) {
  return native_point(f, "read", [&] { return sys_call(SYS_readv, fd, sys_arg(iov), n); });
}

// Pipes, eventfds, terminals and their like, or what the hint takes for one. The kernel's READ waits for the file
// itself, not for its number.
long read_stream(Fiber* f, int fd, const iovec* iov, int n) {
  long r = sys_call(SYS_preadv2, fd, sys_arg(iov), n, -1, -1, RWF_NOWAIT);
  if (r == 0 || (r < 0 && r != -EAGAIN && r != -EOPNOTSUPP)) return r;
  if (r > 0) {
    size_t total = bytes_of(iov, n);
    // of a file without waiting: only what was in memory
    if (static_cast<size_t>(r) < total && never_waits(fd_kind(fd)))
      return all_of(f, SYS_readv, "read", fd, iov, n, static_cast<size_t>(r), total);
    return r;
  }
  if (never_waits(fd_kind(fd))) return read_natively(f, fd, iov, n);
  if (fd_nonblocking(fd)) return r == -EAGAIN ? r : sys_call(SYS_readv, fd, sys_arg(iov), n);
  if (r == -EOPNOTSUPP && ready_for(fd, POLLIN)) return read_natively(f, fd, iov, n);
  uint32_t generation = fd_generation(fd);
  for (int i = 0; i < kPatience; i++) {
    r = wait_request(f, vector_request(IORING_OP_READV, fd, iov, n), Reason::read, kNever);
    if (r != -EAGAIN) return r;
    if (fd_generation(fd) != generation) return -EBADF;
    if (fd_nonblocking(fd)) return sys_call(SYS_readv, fd, sys_arg(iov), n);
    if (!engine_features.holds_files && ready_for(fd, POLLIN)) break;  // what that engine leaves to us
  }
  return read_natively(f, fd, iov, n);
}

// What a write without waiting left over. A blocking write ends when everything is written. Pipes split what is larger
// than PIPE_BUF, as the kernel's own loop does; what is not larger goes in one piece: RWF_NOWAIT refuses a partial one,
// and the ring's WRITE keeps the rule.
long write_rest(Fiber* f, int fd, const iovec* iov, int n, size_t done, size_t total, uint32_t generation) {
  for (int again = 0; done < total && again < kPatience;) {
    if (fd_generation(fd) != generation) return done != 0 ? static_cast<long>(done) : -EBADF;
    iovec rest[kVectorChunk];
    int m = vector_rest(iov, static_cast<size_t>(n), done, rest);
    long r = wait_request(f, vector_request(IORING_OP_WRITEV, fd, rest, m), Reason::write, kNever);
    if (r == -EAGAIN && fd_generation(fd) == generation) {
      if (!fd_nonblocking(fd)) {
        again++;
        continue;
      }
      r = sys_call(SYS_writev, fd, sys_arg(rest), m);
    }
    if (r == -EPIPE) sigpipe(f, true);
    if (r < 0) return done != 0 ? static_cast<long>(done) : r;
    if (r == 0) return static_cast<long>(done);
    done += static_cast<size_t>(r);
    again = 0;
  }
  if (done >= total || fd_generation(fd) != generation) return static_cast<long>(done);
  return all_of(f, SYS_writev, "write", fd, iov, n, done, total);
}

long write_stream(Fiber* f, int fd, const iovec* iov, int n) {
  uint32_t generation = fd_generation(fd);
  long r = sys_call(SYS_pwritev2, fd, sys_arg(iov), n, -1, -1, RWF_NOWAIT);
  if (r == -EPIPE) sigpipe(f, true);
  if (r < 0 && r != -EAGAIN && r != -EOPNOTSUPP) return r;
  size_t total = bytes_of(iov, n), done = r > 0 ? static_cast<size_t>(r) : 0;
  if (r >= 0 && done >= total) return r;
  FdKind kind = fd_kind(fd);
  if (never_waits(kind)) return all_of(f, SYS_writev, "write", fd, iov, n, done, total);
  if (fd_nonblocking(fd)) {
    if (r == -EOPNOTSUPP) r = sys_call(SYS_writev, fd, sys_arg(iov), n);
    if (r == -EPIPE) sigpipe(f, true);
    return r;
  }
  if (r == -EOPNOTSUPP && (kind == FdKind::device || total <= PIPE_BUF) && ready_for(fd, POLLOUT))
    return all_of(f, SYS_writev, "write", fd, iov, n, 0, total);
  return write_rest(f, fd, iov, n, done, total, generation);
}

// A file's hint is looked up again: a pipe that got the number of a file would block the worker.
FdKind kind_of(int fd) {
  FdKind k = fd_hint(fd);
  return VTHR_LIKELY(k == FdKind::socket || k == FdKind::stream) ? k : fd_kind(fd);
}

// What the hint takes for a file: all that was asked for from memory, or the end, is the right answer whatever it is now, at
// the price of one call; stdio reads files so. False: *got bytes of it came, or none.
std::atomic<bool> files_refuse{false};  // to be asked like this: not every file system knows how
bool read_at_once(int fd, const iovec* iov, int n, long* got) {
  *got = 0;
  if (!never_waits(fd_hint(fd)) || files_refuse.load(std::memory_order_relaxed)) return false;
  long r = sys_call(SYS_preadv2, fd, sys_arg(iov), n, -1, -1, RWF_NOWAIT);
  if (r == -EOPNOTSUPP) files_refuse.store(true, std::memory_order_relaxed);
  if (r < 0) return false;
  *got = r;
  return r == 0 || static_cast<size_t>(r) == bytes_of(iov, n);
}

long read_any(Fiber* f, int fd, const iovec* iov, int n, bool own) {
  long got;
  if (read_at_once(fd, iov, n, &got)) return got;
  if (VTHR_UNLIKELY(got != 0)) {
    if (!never_waits(fd_kind(fd))) return got;
    return all_of(f, SYS_readv, "read", fd, iov, n, static_cast<size_t>(got), bytes_of(iov, n));
  }
  switch (kind_of(fd)) {
    case FdKind::socket: {
      long r = socket_readv(f, fd, iov, n, own);
      if (r != -ENOTSOCK) return r;
      fd_set_hint(fd, FdKind::unknown);
      return read_any(f, fd, iov, n, own);
    }
    case FdKind::stream:
    case FdKind::device:
      return read_stream(f, fd, iov, n);
    case FdKind::endless: {  // others' completions cut it short; the kernel has looked at the vector by then
      long r = read_natively(f, fd, iov, n);
      return r <= 0 ? r : all_of(f, SYS_readv, "read", fd, iov, n, static_cast<size_t>(r), bytes_of(iov, n));
    }
    default:
      return read_natively(f, fd, iov, n);
  }
}

long write_any(Fiber* f, int fd, const iovec* iov, int n, bool own) {
  switch (kind_of(fd)) {
    case FdKind::socket: {
      long r = socket_writev(f, fd, iov, n, own);
      if (r != -ENOTSOCK) return r;
      fd_set_hint(fd, FdKind::unknown);
      return write_any(f, fd, iov, n, own);
    }
    case FdKind::stream:
    case FdKind::device:
      return write_stream(f, fd, iov, n);
    default: {
      long r = native_point(f, "write", [&] { return sys_call(SYS_writev, fd, sys_arg(iov), n); });
      if (r == -EPIPE) sigpipe(f, true);
      return r;
    }
  }
}

constexpr size_t kMost = 0x7ffff000;  // the kernel's MAX_RW_COUNT

}  // namespace

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT ssize_t read(int fd, void* buf, size_t n) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(read)(fd, buf, n);
  if (static_cast<ssize_t>(n) <= 0)
    return libc_result(sys_call(SYS_read, fd, sys_arg(buf), static_cast<long>(n)));
  iovec iov{buf, n < kMost ? n : kMost};
  return libc_result(read_any(f, fd, &iov, 1, true));
}

VTHR_EXPORT ssize_t write(int fd, const void* buf, size_t n) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(write)(fd, buf, n);
  if (static_cast<ssize_t>(n) <= 0) {  // a datagram without contents, or nothing
    long r = sys_call(SYS_write, fd, sys_arg(buf), static_cast<long>(n));
    if (r == -EPIPE) sigpipe(f, true);
    return libc_result(r);
  }
  iovec iov{const_cast<void*>(buf), n < kMost ? n : kMost};
  return libc_result(write_any(f, fd, &iov, 1, true));
}

VTHR_EXPORT ssize_t readv(int fd, const iovec* iov, int n) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(readv)(fd, iov, n);
  if (n <= 0 || n > IOV_MAX) return libc_result(sys_call(SYS_readv, fd, sys_arg(iov), n));
  return libc_result(read_any(f, fd, iov, n, false));
}

VTHR_EXPORT ssize_t writev(int fd, const iovec* iov, int n) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(writev)(fd, iov, n);
  if (n <= 0 || n > IOV_MAX) return libc_result(sys_call(SYS_writev, fd, sys_arg(iov), n));
  return libc_result(write_any(f, fd, iov, n, false));
}

VTHR_EXPORT int close(int fd) {
  Fiber* f = fiber_at_point();
  if (!shares_descriptors()) return REAL(close)(fd);
  if (VTHR_UNLIKELY(fd_is_ours(fd))) return static_cast<int>(libc_result(-EBADF));
  Closing closing(fd, fd);
  if (f == nullptr) return REAL(close)(fd);
  return static_cast<int>(libc_result(sys_call(SYS_close, fd)));
}

// The program cannot know which numbers are ours: closing one is an error, as if it were free; putting a file there
// moves ours.
static long replace(long nr, int from, int to, int flags) {
  if (from == to || !shares_descriptors()) return sys_call(nr, from, to, flags);
  if (VTHR_UNLIKELY(fd_is_ours(from))) return -EBADF;
  if (VTHR_UNLIKELY(fd_is_ours(to)) && sys_call(SYS_fcntl, from, F_GETFD) >= 0 && !fd_make_room(to))
    return -EBUSY;
  Closing closing(to, to);
  return sys_call(nr, from, to, flags);
}

VTHR_EXPORT int dup2(int from, int to) noexcept {
  return static_cast<int>(libc_result(replace(SYS_dup2, from, to, 0)));
}

VTHR_EXPORT int dup3(int from, int to, int flags) noexcept {
  return static_cast<int>(libc_result(replace(SYS_dup3, from, to, flags)));
}

// Closes in pieces, around the descriptors of the runtime.
VTHR_EXPORT int close_range(unsigned first, unsigned last, int flags) noexcept {
  constexpr unsigned kLast = INT_MAX;
  bool whole = first > last || first > kLast || (flags & CLOSE_RANGE_CLOEXEC) != 0 || !shares_descriptors();
  if (whole) return static_cast<int>(libc_result(sys_call(SYS_close_range, first, last, flags)));
  int from = static_cast<int>(first), to = static_cast<int>(last < kLast ? last : kLast);
  Closing closing(from, to);
  long r = 0;
  for (int skip; r == 0 && (skip = fd_next_own(from)) >= 0 && skip <= to; from = skip + 1) {
    if (skip > from) r = sys_call(SYS_close_range, from, skip - 1, flags);
  }
  if (r == 0 && from <= to) r = sys_call(SYS_close_range, from, last, flags);
  return static_cast<int>(libc_result(r));
}

VTHR_EXPORT void closefrom(int first) noexcept {
  if (first < 0) first = 0;
  if (!shares_descriptors()) return REAL(closefrom)(first);
  int saved = errno;
  if (close_range(static_cast<unsigned>(first), ~0u, 0) != 0) {  // refused: one by one
    rlimit lim{};
    sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, sys_arg(&lim));
    for (int fd = first; fd < static_cast<int>(lim.rlim_max < 1u << 20 ? lim.rlim_max : 1u << 20); fd++)
      close(fd);
  }
  errno = saved;
}

VTHR_EXPORT ssize_t __read_chk(int fd, void* buf, size_t n, size_t room) {
  if (n > room) __chk_fail();
  return read(fd, buf, n);
}
VTHR_EXPORT ssize_t __read(int fd, void* buf, size_t n) { return read(fd, buf, n); }
VTHR_EXPORT ssize_t __write(int fd, const void* buf, size_t n) { return write(fd, buf, n); }
VTHR_EXPORT int __close(int fd) { return close(fd); }

VTHR_HOOK_NAME(read);
VTHR_HOOK_NAME(write);
VTHR_HOOK_NAME(readv);
VTHR_HOOK_NAME(writev);
