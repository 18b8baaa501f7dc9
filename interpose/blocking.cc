#include "interpose/blocking.h"

#include "interpose/signal.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <cerrno>
#include <csignal>
#include <cstdio>

namespace vthr {

namespace {

// Generation << 3 | kind. Zero pages until used. Relaxed: who closes a descriptor that others use races with them anyway.
std::atomic<uint32_t> descriptors[kHints];
constexpr uint32_t kKind = 7, kNextGeneration = 8;
std::atomic<bool> timeouts_exist{false};

}  // namespace

FdKind fd_hint(int fd) {
  if (fd < 0 || fd >= kHints) return FdKind::unknown;
  return static_cast<FdKind>(descriptors[fd].load(std::memory_order_relaxed) & kKind);
}
void fd_set_hint(int fd, FdKind kind) {
  if (fd < 0 || fd >= kHints) return;
  uint32_t old = descriptors[fd].load(std::memory_order_relaxed), now;
  do {
    now = (old & ~kKind) | static_cast<uint32_t>(kind);
  } while (old != now && !descriptors[fd].compare_exchange_weak(old, now, std::memory_order_relaxed));
}
void fd_forget(int fd) {
  if (fd < 0 || fd >= kHints) return;
  uint32_t old = descriptors[fd].load(std::memory_order_relaxed);
  while (!descriptors[fd].compare_exchange_weak(old, (old & ~kKind) + kNextGeneration,
                                                std::memory_order_relaxed)) {
  }
}
uint32_t fd_generation(int fd) {
  return fd < 0 || fd >= kHints ? 0 : descriptors[fd].load(std::memory_order_relaxed) / kNextGeneration;
}

namespace {
// Of the memory devices: null, zero, full, random, urandom. Not kmsg, which gives one record a read and waits for it.
bool is_endless(dev_t d) {
  return major(d) == 1 && (minor(d) == 3 || minor(d) == 5 || (minor(d) >= 7 && minor(d) <= 9));
}
}  // namespace

FdKind fd_kind(int fd) {
  struct stat st {};
  FdKind k = FdKind::unknown;
  if (sys_call(SYS_fstat, fd, sys_arg(&st)) == 0) {
    k = S_ISSOCK(st.st_mode)  ? FdKind::socket
        : S_ISCHR(st.st_mode) ? (is_endless(st.st_rdev) ? FdKind::endless : FdKind::device)
        : S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) || S_ISBLK(st.st_mode) ? FdKind::file
                                                                            : FdKind::stream;
  }
  fd_set_hint(fd, k);
  return k;
}

bool fd_nonblocking(int fd) {
  long flags = sys_call(SYS_fcntl, fd, F_GETFL);
  return flags >= 0 && (flags & O_NONBLOCK) != 0;
}

namespace {
int64_t timeout_of(int fd, int optname) {
  timeval tv{};
  socklen_t len = sizeof tv;
  if (sys_call(SYS_getsockopt, fd, SOL_SOCKET, optname, sys_arg(&tv), sys_arg(&len)) != 0) return 0;
  return tv.tv_sec * kSecond + tv.tv_usec * kMicro;
}
}  // namespace

int64_t socket_deadline(int fd, int optname) {
  if (VTHR_LIKELY(!timeouts_exist.load(std::memory_order_relaxed))) return kNever;
  int64_t ns = timeout_of(fd, optname);
  return ns == 0 ? kNever : deadline_after(now_ns(), ns);
}

void note_socket_timeouts() { timeouts_exist.store(true, std::memory_order_relaxed); }

void blocking_scan_inherited() {
  long dir = sys_call(SYS_openat, AT_FDCWD, sys_arg("/proc/self/fd"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) {
    note_socket_timeouts();  // cannot know: ask each time
    return;
  }
  struct Entry {  // linux_dirent64
    uint64_t ino;
    int64_t off;
    unsigned short reclen;
    unsigned char type;
    char name[];
  };
  alignas(8) char buffer[2048] = {};
  for (;;) {
    long n = sys_call(SYS_getdents64, dir, sys_arg(buffer), sizeof buffer);
    if (n <= 0) break;
    for (long at = 0; at < n;) {
      auto* e = reinterpret_cast<Entry*>(buffer + at);
      at += e->reclen;
      int fd = 0;
      if (sscanf(e->name, "%d", &fd) != 1) continue;
      if (timeout_of(fd, SO_RCVTIMEO) != 0 || timeout_of(fd, SO_SNDTIMEO) != 0) note_socket_timeouts();
    }
  }
  sys_call(SYS_close, dir);
}

long wait_request(Fiber* f, const Request& r, Reason reason, int64_t deadline) {
  uint32_t taken = handlers_run(f);
  for (;;) {
    long res = op_wait(f, r, reason, deadline);
    if (res == -ECANCELED) {  // and if it may not act here, it was meant for a wait before
      cancel_here();
      continue;
    }
    if (res != -EINTR) return res;
    // no handler ran: a signal that is ignored, or the kernel's own thread for this request was interrupted
    if (handlers_run(f) != taken && (deadline != kNever || !signal_restarts(f))) return res;
    taken = handlers_run(f);
  }
}

bool shares_descriptors() {
  Fiber* f = current;
  return runtime_alive() && (f == nullptr || f->native_only == 0);
}

namespace {

constexpr int64_t kSettleWithin = 100 * kMilli;

bool names_one_of(const Engine* e, int first, int last) {
  for (int fd = first; fd <= last && fd - first < 64; fd++) {  // it knows numbers modulo 64
    if (e->has_unsubmitted(fd)) return true;
  }
  return false;
}

// A foreign thread must not hand over requests in the owner's place (it may end, and completions would interrupt its
// calls): it wakes the owner and waits until it came by. The fiber that the owner runs parks soon, or sysmon hands the
// carrier to one who does the round.
void settle_on(Fiber* f, Carrier* c, int first, int last) {
  if (f != nullptr) {
    c->engine->submit_for_owner();
    return;
  }
  uint32_t seen = c->engine->submissions();
  int64_t give_up = now_ns() + kSettleWithin;
  while (names_one_of(c->engine, first, last) && c->engine->submissions() == seen && now_ns() < give_up)
    sys_call(SYS_sched_yield);
}

}  // namespace

void settle_requests(Fiber* f, int first, int last) {
  for (int i = 0; i < carrier_count; i++) {
    if (VTHR_UNLIKELY(names_one_of(carriers[i]->engine, first, last))) settle_on(f, carriers[i], first, last);
  }
}

Closing::Closing(int first, int last) : first_(first), last_(last) {
  settle_requests(fiber_here(), first, last);
  if (first == last) {
    fd_forget(first);
  } else {
    for (int fd = first; fd <= last && fd < kHints; fd++) fd_forget(fd);
  }
  if (VTHR_LIKELY(engine_features.holds_files)) return;
  Hushed hushed;
  engine_close_begins(first, last);
}

Closing::~Closing() {
  if (VTHR_LIKELY(engine_features.holds_files)) return;
  engine_close_ends(first_, last_);
  Fiber* f = fiber_here();
  if (f != nullptr) deliver_due(f);
}

bool readable(const void* p) {
  // it reads the signal set before it finds that it was not told what to do with it
  return p != nullptr && sys_call(SYS_rt_sigprocmask, -1, sys_arg(p), 0, 8) != -EFAULT;
}

int vector_rest(const iovec* iov, size_t n, size_t skip, iovec* out) {
  int m = 0;
  for (size_t i = 0; i < n && m < kVectorChunk; i++) {
    if (skip >= iov[i].iov_len) {
      skip -= iov[i].iov_len;
      continue;
    }
    out[m].iov_base = static_cast<char*>(iov[i].iov_base) + skip;
    out[m++].iov_len = iov[i].iov_len - skip;
    skip = 0;
  }
  return m;
}

size_t vector_bytes(const iovec* iov, size_t n) {
  size_t sum = 0;
  for (size_t i = 0; i < n; i++) sum += iov[i].iov_len;
  return sum;
}

void sigpipe(Fiber* f, bool consume) {
  if (consume) {
    uint64_t only = sig_bit(SIGPIPE);
    timespec zero{};
    sys_call(SYS_rt_sigtimedwait, sys_arg(&only), 0, sys_arg(&zero), 8);
  }
  raise_in_fiber(f, SIGPIPE);
}

}  // namespace vthr
