#include "diag/file.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/stat.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace vthr {

Target log_target, report_target;

namespace {

constexpr int kHigh = 900;                 // descriptors in the program's table are moved to here or above
constexpr unsigned kPidfdThread = O_EXCL;  // PIDFD_THREAD, since Linux 6.9

struct Identity {
  bool known = false;
  dev_t dev = 0;
  ino_t ino = 0;
};
Identity stderr_at_start;
char log_name[kNameMax], report_name[kNameMax];  // absolute, %p not yet replaced
size_t log_user_part, report_user_part;          // where the user's text begins in them

bool may_unshare;
std::atomic<int> table_owner{0};  // tid of the thread with its own table
int pidfd = -1;                   // in that table
std::atomic<bool> hurry{false};

// Every signal but those that the kernel raises for a fault, and glibc's own two.
constexpr uint64_t kBlocked =
    ~(1ull << (SIGSEGV - 1) | 1ull << (SIGBUS - 1) | 1ull << (SIGFPE - 1) | 1ull << (SIGILL - 1) |
      1ull << (SIGTRAP - 1) | 1ull << (SIGSYS - 1) | 1ull << (kSigRuntime - 1) | 1ull << (kSigSetxid - 1));

// A write to a pipe without a reader, past a file size limit or from a background job must not send the program a
// signal that it would not have got without us.
class NoSignals {
 public:
  NoSignals() : old_(sys_block_signals(kBlocked)), pending_(pending()) {}
  ~NoSignals() {
    uint64_t ours = pending() & ~pending_;
    timespec zero{};
    if (ours != 0) sys_call(SYS_rt_sigtimedwait, sys_arg(&ours), 0, sys_arg(&zero), sizeof ours);
    sys_set_sigmask(old_);
  }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  static uint64_t pending() {
    uint64_t set = 0;
    sys_call(SYS_rt_sigpending, sys_arg(&set), sizeof set);
    return set & (sig_bit(SIGPIPE) | sig_bit(SIGXFSZ));
  }
  uint64_t old_, pending_;
};

Identity identity_of(int fd) {
  Identity id;
  struct stat st {};
  if (sys_call(SYS_fstat, fd, sys_arg(&st)) != 0) return id;
  id.known = true;
  id.dev = st.st_dev;
  id.ino = st.st_ino;
  return id;
}

bool is_stderr_still(int fd) {
  Identity now = identity_of(fd);
  return now.known && stderr_at_start.known && now.dev == stderr_at_start.dev &&
         now.ino == stderr_at_start.ino;
}

// Name `from` of the environment as an absolute one; returns where the user's text begins.
size_t make_absolute(const char* from, char* to) {
  size_t n = 0;
  if (from[0] != '/') {
    long r = sys_call(SYS_getcwd, sys_arg(to), 4096);
    if (r > 1 && to[0] == '/') {
      n = static_cast<size_t>(r) - 1;
      if (to[n - 1] != '/') to[n++] = '/';
    }
  }
  snprintf(to + n, kNameMax - n, "%s", from);
  return n;
}

bool names_stderr(const char* s) {
  return strcmp(s, "stderr") == 0 || strcmp(s, "/dev/stderr") == 0 || strcmp(s, "/proc/self/fd/2") == 0;
}

// Copies name with %p as pid; true when there was one.
bool expand(const char* name, size_t user_part, int pid, char* to) {
  bool found = false;
  size_t n = 0;
  for (size_t i = 0; name[i] != 0 && n + 16 < kNameMax; i++) {
    if (i >= user_part && name[i] == '%' && name[i + 1] == 'p') {
      n += static_cast<size_t>(snprintf(to + n, 16, "%d", pid));
      found = true;
      i++;
    } else {
      to[n++] = name[i];
    }
  }
  to[n] = 0;
  return found;
}

bool ends_with(const char* s, const char* end) {
  size_t n = strlen(s), m = strlen(end);
  return n >= m && strcmp(s + n - m, end) == 0;
}

void open_folder(Target* t) {
  if (t->off || t->to_stderr) return;
  char folder[kNameMax];
  snprintf(folder, sizeof folder, "%s", t->path);
  char* slash = strrchr(folder, '/');
  if (slash == nullptr) return;
  slash[slash == folder ? 1 : 0] = 0;
  t->dir = static_cast<int>(file_open(AT_FDCWD, folder, O_PATH | O_DIRECTORY));
}

// The program's descriptor 2, for a moment, in the diagnostics thread's table. -errno.
long borrow_stderr() {
  long fd = sys_call(SYS_pidfd_getfd, pidfd, 2, 0);
  if (fd != -ESRCH) return fd;
  // The initial thread has ended, and with it its descriptor table: any worker has the same one.
  for (Worker* w = all_workers(); w != nullptr; w = w->all_next) {
    if (w->state.load(std::memory_order_acquire) == kRetired || w->tid == 0) continue;
    long other = sys_call(SYS_pidfd_open, w->tid, kPidfdThread);
    if (other < 0) continue;
    sys_call(SYS_close, pidfd);
    pidfd = static_cast<int>(other);
    fd = sys_call(SYS_pidfd_getfd, pidfd, 2, 0);
    if (fd != -ESRCH) return fd;
  }
  return fd;
}

}  // namespace

void files_init() {
  stderr_at_start = identity_of(2);
  log_user_part = make_absolute(options.log, log_name);
  report_user_part = make_absolute(options.report, report_name);
  log_target.off = false;
  log_target.to_stderr = names_stderr(options.log);
  report_target.off = strcmp(options.report, "off") == 0;
  report_target.to_stderr = names_stderr(options.report);
  log_target.json = options.log_format == kLogJson;
  report_target.json = ends_with(options.report, ".json");
}

void files_started(int pid, bool forked) {
  expand(log_name, log_user_part, pid, log_target.path);
  bool own = expand(report_name, report_user_part, pid, report_target.path);
  if (forked && !own) {
    size_t n = strlen(report_target.path);
    snprintf(report_target.path + n, kNameMax - n, ".%d", pid);
  }
}

void files_probe() {
  may_unshare = false;
  long self = sys_call(SYS_pidfd_open, sys_call(SYS_getpid), 0);
  if (self < 0) return;
  // EBADF: allowed, but there is no descriptor 2. ESRCH: the initial thread has ended; seen to when it matters.
  long fd = sys_call(SYS_pidfd_getfd, self, 2, 0);
  may_unshare = fd >= 0 || fd == -EBADF || fd == -ESRCH;
  if (fd >= 0) sys_call(SYS_close, fd);
  sys_call(SYS_close, self);
}

void files_take_table() {
  if (!may_unshare || sys_call(SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE) != 0) return;
  sys_own_descriptors = true;
  table_owner.store(sys_gettid(), std::memory_order_release);
  pidfd = static_cast<int>(sys_call(SYS_pidfd_open, sys_call(SYS_getpid), 0));
  open_folder(&log_target);
  open_folder(&report_target);
}

bool files_own_table() {
  int owner = table_owner.load(std::memory_order_acquire);
  return owner != 0 && owner == sys_gettid();
}

void files_after_fork() {
  // The parent's table stayed with the parent's thread.
  table_owner.store(0, std::memory_order_relaxed);
  hurry.store(false, std::memory_order_relaxed);
  pidfd = -1;
  log_target.dir = report_target.dir = -1;
}

long file_open(int dir, const char* path, int flags, int mode) {
  long fd = sys_call(SYS_openat, dir, sys_arg(path), flags | O_CLOEXEC, mode);
  if (fd < 0 || files_own_table()) return fd;
  long high = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, kHigh);
  if (high < 0) return fd;
  sys_call(SYS_close, fd);
  return high;
}

const char* target_base(const Target& t) {
  const char* slash = strrchr(t.path, '/');
  return slash == nullptr ? t.path : slash + 1;
}

int target_folder(const Target& t, const char* name, char* text, size_t size) {
  if (t.dir >= 0 && files_own_table()) {
    snprintf(text, size, "%s", name);
    return t.dir;
  }
  snprintf(text, size, "%.*s%s", static_cast<int>(target_base(t) - t.path), t.path, name);
  return AT_FDCWD;
}

long target_open(const Target& t, int flags, const char* name) {
  char text[kNameMax];
  int dir = target_folder(t, name != nullptr ? name : target_base(t), text, sizeof text);
  return file_open(dir, text, flags | O_NOCTTY | O_NONBLOCK, 0666);
}

bool write_all(int fd, const char* data, size_t n, int64_t patience, int* err) {
  NoSignals block;
  int64_t waited = 0;
  while (n > 0) {
    // A slice at a time, to notice that the process ends.
    int64_t limit =
        hurry.load(std::memory_order_relaxed) && patience > 100 * kMilli ? 100 * kMilli : patience;
    pollfd p{fd, POLLOUT, 0};
    int64_t slice = limit - waited > 20 * kMilli ? 20 * kMilli : limit > waited ? limit - waited : 0;
    long r = sys_call(SYS_poll, sys_arg(&p), 1, slice / kMilli);
    if (r == 0) {
      if (waited >= limit) return *err = EAGAIN, false;
      waited += slice;
      continue;
    }
    r = sys_call(SYS_write, fd, sys_arg(data), static_cast<long>(n));
    if (r == -EINTR) continue;
    if (r == -EAGAIN) {
      if (waited >= limit) return *err = EAGAIN, false;
      timespec pause{0, kMilli};
      sys_call(SYS_nanosleep, sys_arg(&pause));
      waited += kMilli;
      continue;
    }
    if (r <= 0) return *err = r == 0 ? ENOSPC : static_cast<int>(-r), false;
    data += r;
    n -= static_cast<size_t>(r);
  }
  return true;
}

bool write_stderr(const char* data, size_t n, int64_t patience) {
  bool borrowed = files_own_table();
  long fd = borrowed ? borrow_stderr() : sys_call(SYS_fcntl, 2, F_DUPFD_CLOEXEC, kHigh);
  // EINVAL: the limit is below kHigh.
  bool copy = fd >= 0;
  if (!copy && (borrowed || fd != -EINVAL)) return false;
  if (!copy) fd = 2;
  int err = 0;
  bool ok = is_stderr_still(static_cast<int>(fd)) && write_all(static_cast<int>(fd), data, n, patience, &err);
  if (copy) sys_call(SYS_close, fd);
  return ok;
}

void files_hurry() { hurry.store(true, std::memory_order_relaxed); }

}  // namespace vthr
