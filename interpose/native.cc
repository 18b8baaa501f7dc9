// Calls that block in the kernel, for which no engine has an operation: the worker makes them itself, and the carrier is
// handed off meanwhile. They are here because they end early on a worker: the completion of another fiber's request makes
// the kernel return -EINTR, or less than was asked for (DESIGN D3, "But"). Each is repeated with what is left, of time or
// bytes, unless a handler of this fiber ran.
#include "interpose/native.h"

#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/random.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <termios.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "interpose/blocking.h"

namespace vthr {

namespace {

// The relative time limit of a call that is repeated. The first time the kernel sees the program's own.
class Limit {
 public:
  explicit Limit(const timespec* asked) : asked_(asked), next_(asked), begun_(now_ns()) {}
  const timespec* next() {
    const timespec* now = next_;
    if (asked_ != nullptr) next_ = &left_;
    if (now != &left_) return now;
    bool long_time = asked_->tv_sec >= kNever / kSecond;
    int64_t asked = long_time ? kNever : asked_->tv_sec * kSecond + asked_->tv_nsec;
    int64_t left = deadline_after(begun_, asked) - now_ns();
    if (left < 0) left = 0;
    left_ = {left / kSecond, left % kSecond};
    return now;
  }

 private:
  const timespec* asked_;
  const timespec* next_;
  int64_t begun_;
  timespec left_{};
};

// --- transfers -----------------------------------------------------------------------------------------

// Everything, or up to the end of the source or an error. step(n) transfers up to n bytes.
template <class Step>
long whole(Fiber* f, const char* name, size_t n, Step step) {
  uint32_t taken = handlers_run(f);
  size_t done = 0;
  do {
    long r = native_call(f, name, [&] { return step(done, n - done); });
    if (r < 0) return done != 0 ? static_cast<long>(done) : r;
    if (r == 0) break;
    done += static_cast<size_t>(r);
  } while (done < n && handlers_run(f) == taken);
  return static_cast<long>(done);
}

long sendfile_fiber(Fiber* f, int out, int in, off_t* offset, size_t n) {
  constexpr size_t kMost = 0x7ffff000;
  bool piecewise =
      fd_kind(out) == FdKind::stream || fd_nonblocking(out);  // into a pipe as much as there is room for
  auto step = [=](size_t, size_t part) {
    return sys_call(SYS_sendfile, out, in, sys_arg(offset), static_cast<long>(part));
  };
  long r = piecewise ? native_call(f, "sendfile", [=] { return step(0, n); })
                     : whole(f, "sendfile", n < kMost ? n : kMost, step);
  if (r == -EPIPE) sigpipe(f, true);
  return r;
}

}  // namespace

long native_io_getevents(Fiber* f, long nr, long context, long least, long most, long events, long timeout,
                         long set) {
  Limit limit(reinterpret_cast<const timespec*>(timeout));
  return native_call(f, "io_getevents",
                     [&] { return sys_call(nr, context, least, most, events, sys_arg(limit.next()), set); });
}

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT int semop(int id, sembuf* ops, size_t n) noexcept {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(semop)(id, ops, n);
  return static_cast<int>(libc_result(
      native_call(f, "semop", [=] { return sys_call(SYS_semop, id, sys_arg(ops), static_cast<long>(n)); })));
}

VTHR_EXPORT int semtimedop(int id, sembuf* ops, size_t n, const timespec* timeout) noexcept {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(semtimedop)(id, ops, n, timeout);
  Limit limit(timeout);
  return static_cast<int>(libc_result(native_call(f, "semtimedop", [&] {
    return sys_call(SYS_semtimedop, id, sys_arg(ops), static_cast<long>(n), sys_arg(limit.next()));
  })));
}

VTHR_EXPORT ssize_t sendfile(int out, int in, off_t* offset, size_t n) noexcept {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(sendfile)(out, in, offset, n);
  return libc_result(sendfile_fiber(f, out, in, offset, n));
}

VTHR_EXPORT ssize_t sendfile64(int out, int in, off64_t* offset, size_t n) noexcept {
  return sendfile(out, in, offset, n);
}

VTHR_EXPORT ssize_t getrandom(void* buf, size_t n, unsigned flags) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(getrandom)(buf, n, flags);
  return libc_result(whole(f, "getrandom", n, [=](size_t done, size_t part) {
    return sys_call(SYS_getrandom, sys_arg(static_cast<char*>(buf) + done), static_cast<long>(part), flags);
  }));
}

VTHR_EXPORT int tcdrain(int fd) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(tcdrain)(fd);
  // TCSBRK with an argument other than 0
  return static_cast<int>(
      libc_result(native_point(f, "tcdrain", [=] { return sys_call(SYS_ioctl, fd, TCSBRK, 1); })));
}
