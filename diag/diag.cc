// The life of the diagnostics: start line, thread, end of the process, fork.
#include "diag/diag.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "diag/json.h"
#include "diag/pin.h"
#include "diag/report.h"
#include "diag/stats.h"
#include "diag/unwind.h"

namespace vthr {

namespace {

constexpr int64_t kReportEvery = 10 * kSecond;
constexpr int64_t kExitPatience = 200 * kMilli;

// Diagnostics of this process:
//   idle -> native | fibers   diag_started
//   any  -> idle              a forked child
enum class Phase : uint32_t { idle, native, fibers };
std::atomic<Phase> phase{Phase::idle};
int own_pid;  // of the process that started; a raw clone or vfork child has another
bool is_forked_child;

// The final report:
//   none -> asked      the first diag_at_exit
//   asked -> working   the diagnostics thread, by compare-and-swap
//   asked -> taken     the ending thread, when the diagnostics thread did not come: it does what it can itself
//   working -> done    the diagnostics thread (release), which wakes the ending one
enum End : uint32_t { kNone, kAsked, kWorking, kTaken, kDone };
std::atomic<uint32_t> end_word{kNone};

// ---- the first lines ----

const char* admission_name(int a) {
  return a == kAdmitQueue ? "queue" : a == kAdmitBlock ? "block" : "reject";
}

void say_errors() {
  for (size_t i = 0; options_error(i) != nullptr; i++) {
    char line[512];
    Text out(line, sizeof line);
    out.put(kPrefix);
    out.put_line(options_error(i));
    out.end_line();
    // An error in the environment is for whoever started the program: on stderr too when events go to a file.
    if (!log_target.to_stderr) write_stderr(out.data(), out.size(), 100 * kMilli);
    diag_line(kLogError, "%s", options_error(i));
  }
}

bool proc_readable() {
  auto readable = [](const char* file) {
    return sys_call(SYS_faccessat, AT_FDCWD, sys_arg(file), R_OK, 0) == 0;
  };
  return readable("/proc/self/syscall") ||
         readable("/proc/thread-self/syscall");  // why in this order: module.cc
}

void put_start_text(Text* out, const char* why) {
  out->put("start mode=");
  if (why != nullptr) {
    out->put("native why=\"");
    out->put_name(why);
    out->format("\" pid=%d", own_pid);
    return;
  }
  out->format("fibers engine=%s", engine_name);
  if (engine_refused != nullptr) out->format(" uring-refused=%s", engine_refused);
  out->format(" carriers=%d max-workers=%d", carrier_count, options.max_workers);
  if (options.max_concurrency > 0)
    out->format(" max-concurrency=%d admission=%s", options.max_concurrency,
                admission_name(options.admission));
  // Then hand-off goes by time alone and pins have no stacks.
  if (!proc_readable()) out->put(" proc=denied");
  if (libc_coverage.why != nullptr) {
    out->put(" libc-entry=\"off: ");
    out->put_name(libc_coverage.why);
    out->put('"');
  } else {
    out->format(" libc-entry=%d/%d", libc_coverage.redirected, libc_coverage.wanted);
  }
  out->format(" pid=%d", own_pid);
}

void put_start_json(Text* out, const char* why) {
  Json j(out);
  json_head(&j, "start", wall_ns(), now_ns());
  j.string("version", VTHR_VERSION);
  j.string("mode", why != nullptr ? "native" : "fibers");
  if (why != nullptr) {
    j.string("why", why);
  } else {
    j.string("engine", engine_name);
    if (engine_refused != nullptr) j.string("uring_refused", engine_refused);
    j.number("carriers", static_cast<uint64_t>(carrier_count));
    j.number("max_workers", static_cast<uint64_t>(options.max_workers));
    j.number("max_concurrency", static_cast<uint64_t>(options.max_concurrency));
    j.string("admission", admission_name(options.admission));
    j.boolean("proc_readable", proc_readable());
    put_libc_coverage(&j);
  }
  j.end_object();
}

// That there are no fibers is news for whoever asked for them; that there are is not.
void say_start(const char* why) {
  if (!log_wants(why != nullptr ? kLogWarn : kLogInfo)) return;
  char line[2048];
  Text out(line, sizeof line);
  out.put(kPrefix);
  if (log_as_json()) {
    put_start_json(&out, why);
  } else {
    put_start_text(&out, why);
  }
  out.end_line();
  log_event(out.data(), out.size(), 100 * kMilli);
}

// ---- the thread ----

void say_alarms() {
  char line[600];
  while (alarm_next(line, sizeof line)) log_line(kLogWarn, "%s", line);
}

// Raises SIGABRT for the process: the program's handler, if it has one, runs on one of the program's threads (this one
// has other descriptors). If nobody takes it, the signal's default ends the process from here.
[[noreturn]] void abort_program() {
  log_line(kLogError, "VTHR_PIN=abort: ending the program after the pin above");
  report_write(true);
  sys_call(SYS_kill, own_pid, SIGABRT);
  timespec second{1, 0};
  sys_call(SYS_nanosleep, sys_arg(&second));
  struct {
    void* handler;
    uint64_t flags, restorer, mask;
  } standard{};
  sys_call(SYS_rt_sigaction, SIGABRT, sys_arg(&standard), 0, sizeof standard.mask);
  sys_call(SYS_tgkill, own_pid, sys_gettid(), SIGABRT);
  uint64_t abort_only = sig_bit(SIGABRT);
  sys_call(SYS_rt_sigprocmask, SIG_UNBLOCK, sys_arg(&abort_only), 0, sizeof abort_only);
  for (;;) sys_call(SYS_exit_group, 134);
}

void handle(PinRecord* r, int64_t now) {
  if (options.pin != kPinOff) pin_event(*r, now);
  pins_release(r);
  if (options.pin == kPinAbort) abort_program();
}

// Everything that waits to be said.
void say_all(bool all_counts) {
  int64_t give_up = now_ns() + kSecond;
  while (PinRecord* r = pins_wait(0)) {
    handle(r, now_ns());
    if (now_ns() > give_up) break;
  }
  say_alarms();
  log_drain();
  pin_flush(now_ns(), all_counts);
}

// sysmon still takes this pin for one under way, but its fiber runs or is gone.
bool ended_unnoticed(Worker* w) {
  return __atomic_load_n(&w->watch.pinned, __ATOMIC_RELAXED) &&
         (w->running.load(std::memory_order_relaxed) == nullptr ||
          w->tick.load(std::memory_order_relaxed) != __atomic_load_n(&w->watch.tick, __ATOMIC_RELAXED));
}

// A pin that ended just before the process does: sysmon looks again within 10 ms.
void wait_for_sysmon() {
  for (int ms = 0; ms < 15; ms++) {
    bool wait = false;
    for (Worker* w = all_workers(); w != nullptr; w = w->all_next) wait |= ended_unnoticed(w);
    if (!wait) return;
    timespec pause{0, kMilli};
    sys_call(SYS_nanosleep, sys_arg(&pause));
  }
}

void serve_end() {
  uint32_t asked = kAsked;
  if (!end_word.compare_exchange_strong(asked, kWorking, std::memory_order_acq_rel)) return;
  wait_for_sysmon();
  say_all(true);
  report_write(true);
  end_word.store(kDone, std::memory_order_release);
  sys_futex_wake(&end_word, 1 << 20);
}

// When the report is written: at once, so that a process that is killed early leaves one, then at 1 s and 10 s, then
// every 10 s while fibers run.
int64_t report_after(int64_t age) {
  return age < kSecond ? kSecond : age < kReportEvery ? kReportEvery : age + kReportEvery;
}

constexpr int64_t kBeginPatience = kSecond;  // the program does not depend on this thread
// 1: the thread has its own descriptors, set by it once (release). The start waits for that, as for sysmon's.
std::atomic<uint32_t> begun{0};

void* thread_main(void*) {
  sys_call(SYS_prctl, PR_SET_NAME, sys_arg("vthr-diag"));
  files_take_table();
  begun.store(1, std::memory_order_release);
  sys_futex_wake(&begun);
  log_set_thread(sys_gettid());
  modules_start();
  log_open();
  int64_t born = now_ns(), next_report = kNever, next_stats = kNever, next_look = born + kReportEvery;
  bool looks = !log_target.to_stderr;
  stats_start(born);
  if (options.stats > 0) next_stats = born + options.stats;
  if (report_periodic()) {
    report_write(false);
    next_report = born + report_after(0);
  }
  for (;;) {
    say_alarms();
    log_drain();
    serve_end();
    int64_t next = next_report < next_stats ? next_report : next_stats;
    if (pin_next_flush() < next) next = pin_next_flush();
    PinRecord* r = pins_wait(next);
    int64_t now = now_ns();
    if (r != nullptr) handle(r, now);
    pin_flush(now, false);
    if (now >= next_stats) {
      stats_print(now);
      next_stats = now + options.stats;
    }
    if (now >= next_report) {
      if (fiber_live_count() > 0) report_write(false);
      next_report = born + report_after(now - born);
    }
    // A log file that was moved away is followed when there is something to do anyway.
    if (looks && now >= next_look) {
      log_reopen_if_moved();
      next_look = now + kReportEvery;
    }
  }
  return nullptr;
}

}  // namespace

void diag_init() { files_init(); }

void diag_started(const char* native_why, const LibcCoverage& libc) {
  if (phase.load(std::memory_order_relaxed) != Phase::idle) return;
  libc_coverage = libc;
  own_pid = static_cast<int>(sys_call(SYS_getpid));
  files_started(own_pid, is_forked_child);
  log_started(own_pid);
  say_errors();
  say_start(native_why);
  if (native_why != nullptr) {
    phase.store(Phase::native, std::memory_order_release);
    return;
  }
  report_start(now_ns());
  files_probe();
  end_word.store(kNone, std::memory_order_relaxed);
  phase.store(Phase::fibers, std::memory_order_release);
  begun.store(0, std::memory_order_relaxed);
  if (hooks.make_thread(thread_main, nullptr) != 0) {
    phase.store(Phase::native, std::memory_order_release);
    diag_line(kLogError, "the kernel refused the diagnostics thread: no pin events, no report");
    return;
  }
  for (int64_t end = now_ns() + kBeginPatience; begun.load(std::memory_order_acquire) == 0;) {
    int64_t left = end - now_ns();
    if (left <= 0) break;
    sys_futex_wait(&begun, 0, left);
  }
}

void diag_at_exit() {
  if (phase.load(std::memory_order_acquire) != Phase::fibers) return;
  if (static_cast<int>(sys_call(SYS_getpid)) != own_pid) return;
  uint32_t none = kNone;
  if (!end_word.compare_exchange_strong(none, kAsked, std::memory_order_acq_rel)) return;
  files_hurry();
  pins_wake();
  int64_t deadline = now_ns() + kExitPatience;
  for (;;) {
    uint32_t w = end_word.load(std::memory_order_acquire);
    if (w == kDone) return;
    int64_t left = deadline - now_ns();
    if (left > 0) {
      sys_futex_wait(&end_word, w, left);
      continue;
    }
    if (w != kAsked) return;
    // It waits for a lock that the program holds, or was not yet scheduled.
    if (end_word.compare_exchange_strong(w, kTaken, std::memory_order_acq_rel)) break;
    deadline = now_ns() + kExitPatience;
  }
  log_drain();
  report_write(true);
}

void diag_before_fork() { unwind_before_fork(); }
void diag_after_fork_in_parent() { unwind_after_fork(false); }

void diag_after_fork() {
  unwind_after_fork(true);
  is_forked_child = true;
  phase.store(Phase::idle, std::memory_order_relaxed);
  end_word.store(kNone, std::memory_order_relaxed);
  files_after_fork();
  log_after_fork();
  modules_after_fork();
  pins_forget();
  report_after_fork();
}

void diag_not_supported(const char* function) {
  constexpr size_t kMost = 32;
  static struct { std::atomic<const char*> name{nullptr}; } said[kMost];
  for (auto& s : said) {
    const char* other = s.name.load(std::memory_order_relaxed);
    if (other == nullptr && s.name.compare_exchange_strong(other, function, std::memory_order_relaxed)) break;
    if (other == function || strcmp(other, function) == 0) return;
  }
  diag_line(kLogWarn, "%s is not supported for fibers yet and returned ENOTSUP", function);
}

}  // namespace vthr
