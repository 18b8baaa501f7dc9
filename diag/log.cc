#include "diag/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <cerrno>
#include <cstdarg>

#include "diag/diag.h"
#include "diag/json.h"

namespace vthr {

namespace {

constexpr size_t kLineText = 480;

int process_id;
std::atomic<int> log_thread{0};
std::atomic<uint64_t> lost{0};
std::atomic<bool> failed_said{false};
int log_fd = -1;  // the diagnostics thread's
dev_t log_dev;
ino_t log_ino;

// Lines from other threads: a bounded queue with many producers and one consumer (Vyukov's). A slot's turn says whose
// it is: == position: free for the producer of that position; == position + 1: filled (release), the consumer's;
// the consumer frees it for the next round (release). A producer that was interrupted in between holds its slot up,
// never another producer.
constexpr size_t kQueued = 64;
struct Queued {
  std::atomic<uint64_t> turn{0};
  int level = 0;
  int64_t wall = 0, mono = 0;
  char text[kLineText] = {};
};
Queued queue[kQueued];
std::atomic<uint64_t> queue_tail{0};
uint64_t queue_head;                // the consumer's
std::atomic<bool> draining{false};  // there is a consumer
std::atomic<bool> queue_made{false};

void queue_reset() {
  for (size_t i = 0; i < kQueued; i++) queue[i].turn.store(i, std::memory_order_relaxed);
  queue_tail.store(0, std::memory_order_relaxed);
  queue_head = 0;
  draining.store(false, std::memory_order_relaxed);
  queue_made.store(true, std::memory_order_release);
}

bool enqueue(int level, const char* text) {
  if (!queue_made.load(std::memory_order_acquire)) return false;
  uint64_t at = queue_tail.load(std::memory_order_relaxed);
  for (;;) {
    Queued& q = queue[at % kQueued];
    uint64_t turn = q.turn.load(std::memory_order_acquire);
    if (turn < at) return false;  // full
    if (turn == at && queue_tail.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
      q.level = level;
      q.wall = wall_ns();
      q.mono = now_ns();
      snprintf(q.text, sizeof q.text, "%s", text);
      q.turn.store(at + 1, std::memory_order_release);
      return true;
    }
    if (turn != at) at = queue_tail.load(std::memory_order_relaxed);
  }
}

const char* level_name(int level) {
  return level == kLogError ? "error" : level == kLogWarn ? "warn" : "info";
}

// The event of a plain line.
bool put_line(int level, const char* text, int64_t wall, int64_t mono, int64_t patience) {
  char line[kEventSize];
  Text out(line, sizeof line);
  out.put(kPrefix);
  if (log_as_json()) {
    Json j(&out);
    json_head(&j, "line", wall, mono);
    j.string("level", level_name(level));
    j.string("text", text);
    j.end_object();
  } else {
    out.put_line(text);
  }
  out.end_line();
  return log_event(out.data(), out.size(), patience);
}

// A line that must not go to the log, since that is what does not work.
void say_log_failed(int err) {
  if (failed_said.exchange(true, std::memory_order_relaxed)) return;
  char line[kEventSize];
  Text out(line, sizeof line);
  out.format("%sVTHR_LOG=", kPrefix);
  out.put_name(log_target.path);
  out.format(" cannot be written (%s); events go to stderr", strerrordesc_np(err));
  out.end_line();
  write_stderr(out.data(), out.size(), 100 * kMilli);
}

bool is_log(int fd) {
  struct stat st {};
  return sys_call(SYS_fstat, fd, sys_arg(&st)) == 0 && st.st_dev == log_dev && st.st_ino == log_ino;
}

constexpr int kLogFlags = O_WRONLY | O_APPEND | O_CREAT;

// Keeps only regular files open: a kept pipe would look like a writer to its reader.
bool open_log(int* err) {
  long fd = target_open(log_target, kLogFlags);
  if (fd < 0) return *err = static_cast<int>(-fd), false;
  struct stat st {};
  if (sys_call(SYS_fstat, fd, sys_arg(&st)) != 0 || !S_ISREG(st.st_mode)) {
    sys_call(SYS_close, fd);
    return true;
  }
  log_fd = static_cast<int>(fd);
  log_dev = st.st_dev;
  log_ino = st.st_ino;
  return true;
}

bool write_log(const char* data, size_t n, int64_t patience, int* err) {
  bool owner = log_thread.load(std::memory_order_relaxed) != 0 && log_thread == sys_gettid();
  if (owner && log_fd >= 0) {
    // In a shared table the program may have closed it, and the number may be another file by now.
    if (is_log(log_fd)) return write_all(log_fd, data, n, patience, err);
    log_fd = -1;
    if (!open_log(err)) return false;
    if (log_fd >= 0) return write_all(log_fd, data, n, patience, err);
  }
  long fd = target_open(log_target, kLogFlags);
  if (fd < 0) return *err = static_cast<int>(-fd), false;
  bool ok = write_all(static_cast<int>(fd), data, n, patience, err);
  sys_call(SYS_close, fd);
  return ok;
}

}  // namespace

void log_started(int pid) {
  process_id = pid;
  queue_reset();
}

void log_set_thread(int tid) { log_thread.store(tid, std::memory_order_release); }

void log_after_fork() {
  log_thread.store(0, std::memory_order_relaxed);
  lost.store(0, std::memory_order_relaxed);
  failed_said.store(false, std::memory_order_relaxed);
  queue_made.store(false, std::memory_order_relaxed);
  log_fd = -1;
}

int log_pid() { return process_id; }
uint64_t log_lost() { return lost.load(std::memory_order_relaxed); }

bool log_event(const char* data, size_t n, int64_t patience) {
  bool ok = false;
  if (!log_target.to_stderr) {
    size_t skip = log_as_json() ? kPrefixSize : 0;
    int err = 0;
    ok = write_log(data + skip, n - skip, patience, &err);
    if (!ok) say_log_failed(err);
  }
  if (!ok) ok = write_stderr(data, n, patience);
  if (!ok) lost.fetch_add(1, std::memory_order_relaxed);
  return ok;
}

void log_open() {
  if (log_target.to_stderr) return;
  int err = 0;
  if (!open_log(&err)) say_log_failed(err);
}

void log_reopen_if_moved() {
  if (log_target.to_stderr || log_fd < 0) return;
  char name[kNameMax];
  int dir = target_folder(log_target, target_base(log_target), name, sizeof name);
  struct stat st {};
  if (sys_call(SYS_newfstatat, dir, sys_arg(name), sys_arg(&st), 0) == 0 && st.st_dev == log_dev &&
      st.st_ino == log_ino)
    return;
  int old = log_fd, err = 0;
  log_fd = -1;
  if (open_log(&err) && log_fd >= 0) {
    sys_call(SYS_close, old);
  } else {
    log_fd = old;
  }
}

void log_drain() {
  if (!queue_made.load(std::memory_order_acquire) || draining.exchange(true, std::memory_order_acquire))
    return;
  for (;;) {
    Queued& q = queue[queue_head % kQueued];
    if (q.turn.load(std::memory_order_acquire) != queue_head + 1) break;
    put_line(q.level, q.text, q.wall, q.mono, 10 * kSecond);
    q.turn.store(queue_head + kQueued, std::memory_order_release);
    queue_head++;
  }
  draining.store(false, std::memory_order_release);
}

void log_line(int level, const char* format, ...) {
  if (!log_wants(level)) return;
  char text[kLineText];
  va_list ap;
  va_start(ap, format);
  vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  put_line(level, text, wall_ns(), now_ns(), 10 * kSecond);
}

void diag_line(int level, const char* format, ...) {
  if (!log_wants(level)) return;
  char text[kLineText];
  va_list ap;
  va_start(ap, format);
  vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  int thread = log_thread.load(std::memory_order_acquire);
  if (thread == sys_gettid()) {
    put_line(level, text, wall_ns(), now_ns(), 10 * kSecond);
  } else if (thread != 0) {
    if (enqueue(level, text)) {
      pins_wake();
    } else {
      lost.fetch_add(1, std::memory_order_relaxed);
    }
  } else if (queue_made.load(std::memory_order_acquire)) {
    put_line(level, text, wall_ns(), now_ns(), 100 * kMilli);
  }
}

void json_head(Json* j, const char* event, int64_t wall, int64_t mono) {
  char utc[40];
  format_utc(wall, utc);
  j->object();
  j->number("schema", 1);
  j->string("event", event);
  j->number("pid", static_cast<uint64_t>(process_id));
  j->string("wall", utc);
  j->number("mono_ns", static_cast<uint64_t>(mono));
}

int64_t wall_ns() {
  timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  return ts.tv_sec * kSecond + ts.tv_nsec;
}

void format_utc(int64_t wall, char out[40]) {
  int64_t seconds = wall / kSecond, days = seconds / 86400, rest = seconds % 86400;
  // Days since 1970 to a date of the Gregorian calendar, in years that begin in March.
  int64_t z = days + 719468, era = z / 146097, doe = z - era * 146097;
  int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
  int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
  int64_t day = doy - (153 * mp + 2) / 5 + 1, month = mp < 10 ? mp + 3 : mp - 9;
  int64_t year = yoe + era * 400 + (month <= 2);
  snprintf(out, 40, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", static_cast<int>(year), static_cast<int>(month),
           static_cast<int>(day), static_cast<int>(rest / 3600), static_cast<int>(rest / 60 % 60),
           static_cast<int>(rest % 60), static_cast<int>(wall % kSecond / kMilli));
}

}  // namespace vthr
