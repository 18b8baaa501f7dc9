// sysmon: one thread that sees carriers whose fiber has not changed, hands them off (DESIGN D3), and records the pins.
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "runtime/admission.h"
#include "runtime/options.h"
#include "runtime/pins.h"
#include "runtime/sched.h"
#include "runtime/sys.h"

namespace vthr {

int idle_carrier_count();

namespace {

constexpr int64_t kShortest = 20 * kMicro, kLongest = 10 * kMilli;
constexpr int kPatience = 50;   // quiet rounds at the shortest interval before it doubles
constexpr int kIdleRounds = 5;  // a server that is busy in bursts must not pay a futex wake for each of them
constexpr int64_t kAfterSleep = kMilli;
constexpr int64_t kHogAfter = 10 * kMilli;
constexpr int64_t kAloneAfter = kMilli;  // a sleeping fiber loses its carrier then even if nobody waits yet
constexpr int64_t kStuckAfter = 100 * kMilli;
constexpr int64_t kOngoingAfter = kSecond;
constexpr int64_t kAlarmEvery = 10 * kSecond;
constexpr int64_t kScanEvery = 50 * kMilli;

// awake: sysmon polls. asleep: it waits on this word; whoever ends an idle wait of a worker sets awake and wakes it.
// Pairs (Dekker): sysmon stores asleep, fences, reads the idle count; a worker changes the idle count (seq_cst), then
// reads this word.
std::atomic<uint32_t> sleeping{0};
std::atomic<uint64_t> totals_count{0}, totals_ns{0}, totals_longest{0};
bool no_proc;
int64_t last_progress, last_extra, last_scan, last_alarm;
uint64_t last_switches;

int next_watched(unsigned from) {
  int next = -1;
  for (int i = 0; i < carrier_count; i++) {
    int fd = carriers[i]->engine->watch_fd();
    if (fd >= static_cast<int>(from) && (next < 0 || fd < next)) next = fd;
  }
  return next;
}

void private_descriptors() {
  // A table of our own: files opened here never take the program's lowest free number, and its close loops do not
  // reach ours. In it is nothing but what engines are watched by.
  unsigned from = 0, flags = CLOSE_RANGE_UNSHARE;
  for (int keep; (keep = next_watched(from)) >= 0; from = static_cast<unsigned>(keep) + 1) {
    if (static_cast<unsigned>(keep) == from) continue;
    sys_call(SYS_close_range, from, keep - 1, flags);
    flags = 0;
  }
  if (sys_call(SYS_close_range, from, ~0u, flags) == 0) sys_own_descriptors = true;
}

long read_proc(Worker* w, int* fd, const char* file, char* text, size_t size) {
  if (*fd < 0) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/%s", w->tid, file);
    *fd = static_cast<int>(sys_call(SYS_openat, AT_FDCWD, sys_arg(path), O_RDONLY | O_CLOEXEC));
    if (*fd < 0) return *fd;
  }
  long n = sys_call(SYS_pread64, *fd, sys_arg(text), size - 1, 0);
  if (n >= 0) text[n] = 0;
  return n;
}

struct Sight {
  bool known = false, asleep = false;
  long call = -1;
  uint64_t args[6] = {}, sp = 0, pc = 0, slices = 0;
};

// What the kernel says of the worker now. "running", or "NR arg0..arg5 sp pc", or "-1 sp pc" (no system call).
Sight look(Worker* w) {
  Sight s;
  char text[256];
  long n = read_proc(w, &w->watch.syscall_fd, "syscall", text, sizeof text);
  if (n <= 0) return s;
  s.known = true;
  if (text[0] == 'r') return s;
  unsigned long long v[9];
  long nr = 0;
  int got = sscanf(text, "%ld %llx %llx %llx %llx %llx %llx %llx %llx", &nr, &v[0], &v[1], &v[2], &v[3],
                   &v[4], &v[5], &v[6], &v[7]);
  s.asleep = true;
  s.call = nr;
  if (got == 9) {
    for (int i = 0; i < 6; i++) s.args[i] = v[i];
    s.sp = v[6];
    s.pc = v[7];
  } else if (got == 3) {
    s.sp = v[0];
    s.pc = v[1];
  }
  n = read_proc(w, &w->watch.schedstat_fd, "schedstat", text, sizeof text);
  unsigned long long run = 0, wait = 0, slices = 0;
  if (n > 0 && sscanf(text, "%llu %llu %llu", &run, &wait, &slices) == 3) s.slices = slices;
  return s;
}

bool others_wait(Carrier* c, int64_t now) {
  return !c->runq.empty() || c->engine->has_work() || c->timers.next() <= now ||
         c->inbox_count.load(std::memory_order_relaxed) != 0 || global_queue_size() != 0;
}

// Takes the carrier from a worker whose fiber runs the program's code. False: it came back by itself, or no worker
// is at hand.
bool hand_off(Worker* w) {
  Carrier* c = w->carrier;
  Worker* spare = take_spare();
  if (spare == nullptr) {
    if (may_make_worker()) ask_service(kServeWorker);
    return false;
  }
  uint32_t s = kUser;
  if (!w->state.compare_exchange_strong(s, kRobbed, std::memory_order_acq_rel)) {
    give_spare(spare);
    return false;
  }
  count(counters.handoffs);
  give_carrier(spare, c);
  return true;
}

void copy_stack(PinRecord* r, uint64_t sp, uint64_t top) {
  r->stack_bytes = 0;
  if (sp == 0 || top <= sp) return;
  size_t want = top - sp < kStackCopy ? top - sp : kStackCopy;
  iovec to{r->stack, want}, from{reinterpret_cast<void*>(sp), want};
  long n = sys_call(SYS_process_vm_readv, sys_gettid(), sys_arg(&to), 1, sys_arg(&from), 1, 0);
  if (n > 0) r->stack_bytes = static_cast<size_t>(n);
}

uint64_t stack_top(Fiber* f) {
  return f->stack_bytes == 0 ? 0 : reinterpret_cast<uint64_t>(f->stack_low) + f->stack_bytes;
}

void describe(PinRecord* r, Worker* w, Fiber* f) {
  r->fiber_id = f->id;
  r->fiber_tid = f->tid;
  memcpy(r->fiber_name, f->name, sizeof r->fiber_name);
  r->hook = f->native_call;
  r->worker_id = w->id;
  r->worker_tid = w->tid;
  timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  r->wall_started = ts.tv_sec * kSecond + ts.tv_nsec - (now_ns() - w->watch.pin_from);
}

// The pin went over the threshold: keep what an unwinder needs, as long as it surely belongs together.
void capture(Worker* w, Fiber* f, const Sight& s) {
  PinRecord* r = pin_take();
  if (r == nullptr) return;
  describe(r, w, f);
  r->call = s.call;
  r->call_known = s.sp != 0;
  memcpy(r->args, s.args, sizeof r->args);
  r->sp = s.sp;
  r->pc = s.pc;
  copy_stack(r, s.sp, stack_top(f));
  Sight again = look(w);
  r->has_stack =
      r->stack_bytes != 0 && again.asleep && again.sp == s.sp && again.pc == s.pc && again.slices == s.slices;
  if (!r->has_stack) count(counters.no_stack);
  w->watch.record = r;
}

// Registers of a fiber that spins, filled in by the handler on its thread.
struct Sample {
  std::atomic<uint32_t> state{0};  // 0 free, 1 asked, 2 filled (release)
  uint64_t pc, sp, fp;
} sample;

void capture_hog(Worker* w, Fiber* f) {
  PinRecord* r = pin_take();
  if (r == nullptr) return;
  describe(r, w, f);
  r->kind = PinRecord::cpu;
  sample.state.store(1, std::memory_order_release);
  signal_worker(w, kAskSample);
  for (int i = 0; i < 50 && sample.state.load(std::memory_order_acquire) == 1; i++) {
    timespec ts{0, 100000};
    sys_call(SYS_nanosleep, sys_arg(&ts));
  }
  if (sample.state.exchange(0, std::memory_order_acq_rel) == 2) {
    r->pc = sample.pc;
    r->sp = sample.sp;
    r->fp = sample.fp;
    r->has_fp = true;
    copy_stack(r, r->sp, stack_top(f));
    r->has_stack = r->stack_bytes != 0;
  }
  if (!r->has_stack) count(counters.no_stack);
  w->watch.record = r;
}

void end_pin(Worker* w) {
  auto& k = w->watch;
  if (!k.pinned && !k.hog) return;
  int64_t ns = k.pin_seen - k.pin_from;
  if (k.pinned) {
    totals_count.fetch_add(1, std::memory_order_relaxed);
    totals_ns.fetch_add(static_cast<uint64_t>(ns), std::memory_order_relaxed);
    if (static_cast<uint64_t>(ns) > totals_longest.load(std::memory_order_relaxed))
      totals_longest.store(static_cast<uint64_t>(ns), std::memory_order_relaxed);
  }
  if (k.record != nullptr) {
    k.record->started = k.pin_from;
    k.record->ended = k.pin_seen;
    k.record->handed_off = k.handed_off;
    pin_post(k.record);
    k.record = nullptr;
  }
  k.pinned = k.hog = k.handed_off = k.told = false;
}

// One worker that runs a fiber's own code. True: something happened.
bool watch(Worker* w, uint32_t state, int64_t now) {
  auto& k = w->watch;
  uint32_t tick = w->tick.load(std::memory_order_relaxed);
  Fiber* f = w->running.load(std::memory_order_relaxed);
  if (tick != k.tick || f == nullptr) {
    end_pin(w);
    k.tick = tick;
    k.since = now;
    return false;
  }
  int64_t age = now - k.since;
  Carrier* c = state == kUser ? w->carrier : nullptr;
  bool waiting = c != nullptr && others_wait(c, now);
  if (!k.pinned && !waiting && age < kAloneAfter) return false;
  Sight s = no_proc ? Sight{} : look(w);
  if (!s.known) {
    // Without /proc: by time alone (the start line says so).
    if (c != nullptr && (waiting || age >= kAloneAfter) && age >= kHogAfter) return hand_off(w);
    return false;
  }
  if (w->tick.load(std::memory_order_acquire) != tick) return false;
  if (s.asleep) {
    // A completion of another fiber's request woke it, and the kernel went on with the same call.
    if (s.call == SYS_restart_syscall && k.call >= 0 && s.sp == k.sp && s.pc == k.pc) {
      s.call = k.call;
      k.slices = s.slices;
    }
    k.call = s.call;
    k.sp = s.sp;
    k.pc = s.pc;
    if (k.pinned && s.slices != k.slices) end_pin(w);  // it slept, woke, and sleeps again
    if (!k.pinned) {
      if (k.hog) end_pin(w);
      k.pinned = true;
      k.pin_from = now;
      k.slices = s.slices;
      k.handed_off = state == kRobbed;
    }
    k.pin_seen = now;
    if (k.record == nullptr && options.pin != kPinOff && now - k.pin_from >= options.pin_threshold)
      capture(w, f, s);
    if (k.record != nullptr && !k.told && now - k.pin_from >= kOngoingAfter) {
      k.told = true;
      if (PinRecord* r = pin_copy(k.record)) {
        r->ongoing = true;
        r->started = k.pin_from;
        r->ended = now;
        r->handed_off = k.handed_off;
        pin_post(r);
      }
    }
    if (c == nullptr) return false;
    if (!hand_off(w)) return false;
    k.handed_off = true;
    return true;
  }
  if (k.pinned) end_pin(w);
  if (!k.hog) {
    if (age < kHogAfter || !waiting) return false;
    k.hog = true;
    k.pin_from = k.since;
    count(counters.hogs);
  }
  k.pin_seen = now;
  if (k.record == nullptr && options.pin != kPinOff && now - k.pin_from >= options.pin_threshold)
    capture_hog(w, f);
  if (c == nullptr || !waiting || !hand_off(w)) return false;
  k.handed_off = true;
  return true;
}

void more_workers(int64_t now) {
  uint64_t switches = counters.switches.load(std::memory_order_relaxed);
  if (switches != last_switches) {
    last_switches = switches;
    last_progress = now;
    return;
  }
  bool runnable = global_queue_size() != 0;
  for (int i = 0; i < carrier_count && !runnable; i++) runnable = others_wait(carriers[i], now);
  if (!runnable || now - last_progress < kStuckAfter || now - last_extra < kStuckAfter) return;
  last_extra = now;
  if (worker_count() >= options.max_workers && (last_alarm == 0 || now - last_alarm >= kAlarmEvery)) {
    last_alarm = now;
    char line[160];
    snprintf(line, sizeof line,
             "alarm all %d workers pinned, fibers are runnable and nothing moved for 100 ms; making more",
             worker_count());
    alarm_post(line);
  }
  ask_service(kServeWorker);
}

// 1: sysmon has its own descriptors, set by it once (release). The start waits for that: while the kernel makes the new table,
// that holds the program's files, and what the program closes meanwhile would stay open (seen: no EPIPE).
std::atomic<uint32_t> begun{0};

void* sysmon_main(void*) {
  sys_call(SYS_prctl, PR_SET_NAME, sys_arg("vthr-sysmon"));
  sys_call(SYS_prctl, PR_SET_TIMERSLACK, 1);
  private_descriptors();
  begun.store(1, std::memory_order_release);
  sys_futex_wake(&begun);
  no_proc = sys_call(SYS_faccessat, AT_FDCWD, sys_arg("/proc/self/task"), F_OK) != 0;
  int64_t interval = kShortest;
  int quiet = 0, idle_rounds = 0;
  for (;;) {
    timespec ts{0, interval};
    sys_call(SYS_nanosleep, sys_arg(&ts));
    int64_t now = now_ns();
    bool happened = false, watching = false;
    for (Worker* w = all_workers(); w != nullptr; w = w->all_next) {
      if (w->bound) continue;  // its blocking is its own affair
      uint32_t state = w->state.load(std::memory_order_acquire);
      if (state == kUser || state == kRobbed) {
        watching |= state == kRobbed;
        happened |= watch(w, state, now);
        watching |= w->watch.pinned || w->watch.hog;
      } else {
        end_pin(w);
        w->watch.tick = 0;
      }
    }
    more_workers(now);
    if (now - last_scan >= kScanEvery) {
      last_scan = now;
      if (admission_active()) ask_service(kServeAdmission);
    }
    quiet = happened ? 0 : quiet + 1;
    interval = happened ? kShortest : quiet <= kPatience ? interval : interval * 2;
    // Hundreds of pinned workers take a while to look at: at most a fifth of a core goes into it.
    int64_t spent = now_ns() - now;
    if (interval < 4 * spent) interval = 4 * spent;
    if (interval > kLongest) interval = kLongest;
    bool idle = idle_carrier_count() == carrier_count && global_queue_size() == 0;
    idle_rounds = idle ? idle_rounds + 1 : 0;
    if (interval < kLongest || watching || idle_rounds < kIdleRounds) continue;
    // Nothing ran at any of the last looks: sleep until a worker ends its idle wait.
    sleeping.store(1, std::memory_order_seq_cst);
    RealAtomics::fence();
    if (idle_carrier_count() == carrier_count && global_queue_size() == 0) {
      bool capped = admission_active();
      sys_futex_wait(&sleeping, 1, capped ? kScanEvery : -1);
      if (!capped) {
        interval = kAfterSleep;
        quiet = kPatience;
      }
      last_progress = now_ns();
    }
    sleeping.store(0, std::memory_order_relaxed);
  }
  return nullptr;
}

}  // namespace

void sysmon_sampled(uint64_t pc, uint64_t sp, uint64_t fp) {
  if (sample.state.load(std::memory_order_acquire) != 1) return;
  sample.pc = pc;
  sample.sp = sp;
  sample.fp = fp;
  sample.state.store(2, std::memory_order_release);
}

bool signal_worker(Worker* w, uintptr_t what) {
  siginfo_t info{};
  info.si_signo = kSigRuntime;
  info.si_code = SI_QUEUE;
  info.si_pid = static_cast<pid_t>(sys_call(SYS_getpid));
  info.si_value.sival_ptr = reinterpret_cast<void*>(what);
  return sys_call(SYS_rt_tgsigqueueinfo, info.si_pid, w->tid, kSigRuntime, sys_arg(&info)) == 0;
}

bool sysmon_start() {
  last_progress = now_ns();
  begun.store(0, std::memory_order_relaxed);
  if (hooks.make_thread(sysmon_main, nullptr) != 0) return false;
  while (begun.load(std::memory_order_acquire) == 0) sys_futex_wait(&begun, 0);
  return true;
}

void sysmon_poke() {
  if (VTHR_LIKELY(sleeping.load(std::memory_order_seq_cst) == 0)) return;
  if (sleeping.exchange(0, std::memory_order_acq_rel) != 0) sys_futex_wake(&sleeping);
}

PinTotals pin_totals() {
  return {totals_count.load(std::memory_order_relaxed), totals_ns.load(std::memory_order_relaxed),
          totals_longest.load(std::memory_order_relaxed)};
}

void sysmon_after_fork() {
  sleeping.store(0, std::memory_order_relaxed);
  totals_count.store(0, std::memory_order_relaxed);
  totals_ns.store(0, std::memory_order_relaxed);
  totals_longest.store(0, std::memory_order_relaxed);
  sample.state.store(0, std::memory_order_relaxed);
  pins_after_fork();
}

}  // namespace vthr
