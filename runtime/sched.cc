#include "runtime/sched.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime/admission.h"
#include "runtime/kernel_thread.h"
#include "runtime/options.h"
#include "runtime/pins.h"
#include "runtime/sys.h"
#include "runtime/tls.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace vthr {

Counters counters;
RuntimeHooks hooks;
const char* engine_name = "uring";
const char* engine_refused;
Carrier* carriers[64];
int carrier_count;
std::atomic<uint32_t>* alive_word;

namespace {

constexpr int kSparesKept = 2;  // two carriers can be handed off before a thread has to be made

Lock global_lock;
Fiber *global_head, *global_tail;
std::atomic<size_t> global_size{0};

Lock spares_lock;
Worker* spares;
int spare_count;
std::atomic<int> workers{0};
std::atomic<int> workers_coming{0};
std::atomic<Worker*> workers_list{nullptr};
std::atomic<uint32_t> next_worker_id{0};
bool running;

int default_carriers() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = 1;
  if (sys_call(SYS_sched_getaffinity, 0, sizeof set, sys_arg(&set)) > 0) cpus = CPU_COUNT(&set);
  // cgroup v2: "quota period" or "max period"
  char text[64] = {};
  long fd = sys_call(SYS_openat, AT_FDCWD, sys_arg("/sys/fs/cgroup/cpu.max"), O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    sys_call(SYS_read, fd, sys_arg(text), sizeof text - 1);
    sys_call(SYS_close, fd);
    long quota = 0, period = 0;
    if (sscanf(text, "%ld %ld", &quota, &period) == 2 && period > 0) {
      int limit = static_cast<int>((quota + period - 1) / period);
      if (limit >= 1 && limit < cpus) cpus = limit;
    }
  }
  return cpus < 1 ? 1 : cpus > 64 ? 64 : cpus;
}

}  // namespace

// ---- the global queue: overflow, fibers made or woken by threads without a carrier, and robbed fibers ----

void queue_globally(Fiber* first, Fiber* last, size_t n) {
  last->q_next = nullptr;
  Locked hold(global_lock);
  if (global_tail != nullptr) {
    global_tail->q_next = first;
  } else {
    global_head = first;
  }
  global_tail = last;
  global_size.store(global_size.load(std::memory_order_relaxed) + n, std::memory_order_release);
}

// A fair share of the global queue: the first is returned, the others go to the carrier's queue.
Fiber* take_globally(Carrier* c) {
  if (global_size.load(std::memory_order_relaxed) == 0) return nullptr;
  Locked hold(global_lock);
  size_t n = global_size.load(std::memory_order_relaxed);
  if (n == 0) return nullptr;
  size_t share = n / static_cast<size_t>(carrier_count) + 1;
  if (share > n) share = n;
  if (share > 64) share = 64;
  Fiber* first = nullptr;
  size_t taken = 0;
  while (taken < share) {
    Fiber* f = global_head;
    Fiber* next = f->q_next;
    if (first == nullptr) {
      first = f;
    } else if (!c->runq.push(f)) {
      break;
    }
    global_head = next;
    taken++;
  }
  if (global_head == nullptr) global_tail = nullptr;
  global_size.store(n - taken, std::memory_order_relaxed);
  return first;
}

size_t global_queue_size() { return global_size.load(std::memory_order_relaxed); }

bool work_anywhere() {
  if (global_size.load(std::memory_order_acquire) != 0) return true;
  for (int i = 0; i < carrier_count; i++) {
    if (!carriers[i]->runq.empty()) return true;
  }
  return false;
}

Fiber* steal_for(Carrier* c) {
  for (int i = 1; i < carrier_count; i++) {
    Carrier* victim = carriers[(c->id + static_cast<uint32_t>(i)) % static_cast<uint32_t>(carrier_count)];
    Fiber* f = victim->runq.steal_into(c->runq);
    if (f != nullptr) return f;
  }
  return nullptr;
}

// ---- waking carriers ----

WakingT<> waking;

int idle_carrier_count() { return waking.idle(); }

namespace {

// A thread with descriptors of its own (it allocates, and unlocks what fibers wait for) borrows the bell from the process.
// False: it may not, or the initial thread, whose table it is, has ended.
bool ring_from_outside(const Engine* e) {
  int bell = e->bell_fd();
  if (bell < 0) return false;
  long self = sys_call(SYS_pidfd_open, sys_call(SYS_getpid), 0);
  if (self < 0) return false;
  long fd = sys_call(SYS_pidfd_getfd, self, bell, 0);
  sys_call(SYS_close, self);
  if (fd < 0) return false;
  uint64_t one = 1;
  bool rung = sys_call(SYS_write, fd, sys_arg(&one), sizeof one) == sizeof one;
  sys_call(SYS_close, fd);
  return rung;
}

void ring(Carrier* c) {
  if (VTHR_LIKELY(!sys_own_descriptors)) {
    c->engine->ring_bell();
  } else if (!ring_from_outside(c->engine)) {
    ask_service(kServeBells);
  }
}

}  // namespace

void wake_one() {
  waking.wake_one(
      carrier_count, [](uint32_t i) -> DoorbellT<>& { return carriers[i]->bell; },
      [](uint32_t i) { ring(carriers[i]); });
}

namespace {
// The carrier of the caller, if it owns one now: an entered fiber, or the scheduler.
Carrier* own_carrier() {
  Fiber* f = current;
  if (f != nullptr) {
    if (f->in_runtime.load(std::memory_order_relaxed) == 0) return nullptr;
    Worker* w = f->worker.load(std::memory_order_relaxed);
    return w->state.load(std::memory_order_relaxed) == kRuntime ? w->carrier : nullptr;
  }
  Worker* w = this_worker;
  return w != nullptr && w->state.load(std::memory_order_relaxed) == kRuntime ? w->carrier : nullptr;
}
}  // namespace

void ready(Fiber* f) {
  Carrier* c = own_carrier();
  if (c == nullptr || !c->runq.push(f)) queue_globally(f, f, 1);
  wake_one();
}

void unpark(Fiber* f) {
  if (!f->park.unpark()) return;
  if (admission_gate(f)) ready(f);
}

bool arm_timer(Fiber* f, uint64_t ticket, int64_t deadline) {
  f->timer.when = deadline;
  f->timer.ticket = ticket;
  return f->worker.load(std::memory_order_relaxed)->carrier->timers.arm(&f->timer);
}

void nudge(Fiber* f, uint64_t ticket, int err) {
  Carrier* home = f->ops_home.load(std::memory_order_relaxed);
  {
    Locked hold(home->inbox_lock);
    if (!f->wait.end(ticket, WaitWord::nudged)) return;
    f->nudge_ticket = ticket;
    f->nudge_errno = err;
    if (f->nudge.linked()) return;
    home->inbox.push_back(&f->nudge);
    home->inbox_count.fetch_add(1, std::memory_order_release);
  }
  RealAtomics::fence();
  if (home->bell.ring(false)) ring(home);
}

int launch(Fiber* f) {
  int r = admission_enter(f);
  if (r < 0) return -r;
  if (r == 0) ready(f);
  return 0;
}

// ---- workers ----

namespace {
// A growing descriptor table lets every socket() and open() of the process sleep some ms for the kernel's RCU: without a
// pause between two new workers each of them got one (seen: 25 workers in the demo, now few).
constexpr int64_t kMakeEvery = 12 * kMilli;
std::atomic<int64_t> last_made{0};
}  // namespace

bool may_make_worker() {
  if (now_ns() - last_made.load(std::memory_order_relaxed) < kMakeEvery) return false;
  return workers.load(std::memory_order_relaxed) < options.max_workers &&
         workers_coming.load(std::memory_order_relaxed) == 0;
}

namespace {
// Sanitizers have to know of every thread: in builds for them glibc makes these too.
bool start_thread(void* (*start)(void*), Worker* w) {
#if defined(VTHR_NO_FS_SWITCH) || defined(__SANITIZE_ADDRESS__)
  return hooks.make_thread(start, w) == 0;
#else
  // The start runs on a thread of the program, whose signal mask ours must not inherit.
  return runtime_alive() ? kernel_thread_start(start, w) : hooks.make_thread(start, w) == 0;
#endif
}
}  // namespace

bool make_worker() {
  void* memory = sys_map(round_up(sizeof(Worker), kPage));
  if (memory == nullptr) return false;
  auto* w = new (memory) Worker;
  w->id = next_worker_id.fetch_add(1, std::memory_order_relaxed);
  w->all_next = workers_list.load(std::memory_order_relaxed);
  workers.fetch_add(1, std::memory_order_relaxed);
  last_made.store(now_ns(), std::memory_order_relaxed);
  workers_coming.fetch_add(1, std::memory_order_relaxed);
  if (!start_thread(worker_main, w)) {
    workers.fetch_sub(1, std::memory_order_relaxed);
    workers_coming.fetch_sub(1, std::memory_order_relaxed);
    sys_unmap(memory, round_up(sizeof(Worker), kPage));
    return false;
  }
  while (!workers_list.compare_exchange_weak(w->all_next, w, std::memory_order_release)) {
  }
  return true;
}

Worker* all_workers() { return workers_list.load(std::memory_order_acquire); }
int worker_count() { return workers.load(std::memory_order_relaxed); }

void give_spare(Worker* w) {
  Locked hold(spares_lock);
  if (workers_coming.load(std::memory_order_relaxed) > 0 && w->rounds == 0) {
    workers_coming.fetch_sub(1, std::memory_order_relaxed);
    w->rounds = 1;
  }
  w->state.store(kSpare, std::memory_order_relaxed);
  w->idle_since.store(now_ns(), std::memory_order_relaxed);
  w->next_spare = spares;
  spares = w;
  spare_count++;
}

Worker* take_spare() {
  Worker* w;
  bool few;
  {
    Locked hold(spares_lock);
    w = spares;
    if (w != nullptr) {
      spares = w->next_spare;
      spare_count--;
    }
    few = spare_count < kSparesKept;
  }
  if (few && may_make_worker()) ask_service(kServeWorker);
  return w;
}

namespace {
// The service thread does for sysmon what sysmon cannot: sysmon has a descriptor table of its own, which threads that
// it makes would inherit (seen: OpenJDK's class file descriptor was not there on such a worker) and in which the
// doorbells of carriers do not exist.
// Word: the requests not yet served, set by anybody (release), taken by the service thread (acquire).
std::atomic<uint32_t> requests{0};

Lock bound_lock;
Fiber* to_bind;  // linked by q_next

bool make_bound_thread(Fiber* f) {
  void* memory = sys_map(round_up(sizeof(Worker), kPage));
  if (memory == nullptr) return false;
  auto* w = new (memory) Worker;
  w->id = next_worker_id.fetch_add(1, std::memory_order_relaxed);
  w->bound = true;
  w->running.store(f, std::memory_order_relaxed);
  w->all_next = workers_list.load(std::memory_order_relaxed);
  while (!workers_list.compare_exchange_weak(w->all_next, w, std::memory_order_release)) {
  }
  return start_thread(bound_main, w);
}

// A fiber must get its thread: a refusal is tried again until the kernel has one.
void make_bound_threads() {
  for (;;) {
    Fiber* f;
    {
      Locked hold(bound_lock);
      f = to_bind;
      if (f == nullptr) return;
      to_bind = f->q_next;
    }
    while (!make_bound_thread(f)) {
      timespec pause{0, 10 * kMilli};
      sys_call(SYS_nanosleep, sys_arg(&pause));
    }
  }
}

void* service_main(void*) {
  sys_call(SYS_prctl, PR_SET_NAME, sys_arg("vthr-service"));
  bool said = false;
  for (;;) {
    uint32_t r;
    while ((r = requests.exchange(0, std::memory_order_acquire)) == 0) sys_futex_wait(&requests, 0);
    if ((r & kServeWorker) != 0 && !make_worker()) {
      if (!said) alarm_post("alarm the kernel refused a thread; trying again");
      said = true;
    }
    if ((r & kServeBells) != 0) {  // one of them was meant
      for (int i = 0; i < carrier_count; i++) carriers[i]->engine->ring_bell();
    }
    if ((r & kServeAdmission) != 0) admission_scan(now_ns());
    if ((r & kServeBind) != 0) make_bound_threads();
    if ((r & kServeEnd) != 0) return nullptr;
  }
  return nullptr;
}
}  // namespace

void queue_bound(Fiber* f) {
  {
    Locked hold(bound_lock);
    f->q_next = to_bind;
    to_bind = f;
  }
  ask_service(kServeBind);
}

void ask_service(uint32_t what) {
  if ((requests.fetch_or(what, std::memory_order_acq_rel) & what) != what) sys_futex_wake(&requests);
}

void give_carrier(Worker* w, Carrier* c) {
  w->carrier = c;
  w->wake.store(1, std::memory_order_release);
  sys_futex_wake(&w->wake);
}

// ---- start ----

bool sched_running() { return running; }

namespace {

// All that the runtime needs to run n carriers; false when the kernel refuses one of them.
bool make_threads(int n) {
  // The first worker measures what a fiber's TCB must contain.
  if (!make_worker()) return false;
  while (workers_coming.load(std::memory_order_acquire) != 0) sys_call(SYS_sched_yield);
  for (int i = 1; i < n + kSparesKept; i++) {
    if (!make_worker() && i < n) return false;
  }
  if (hooks.make_thread(service_main, nullptr) != 0) return false;
  if (sysmon_start()) return true;
  ask_service(kServeEnd);
  return false;
}

// A start that failed leaves no thread behind: the program may need the few that it is allowed.
void end_threads() {
  while (workers_coming.load(std::memory_order_acquire) != 0) sys_call(SYS_sched_yield);
  for (Worker* w = all_workers(); w != nullptr; w = w->all_next) {
    w->wake.store(2, std::memory_order_release);
    sys_futex_wake(&w->wake);
  }
  auto pid = sys_call(SYS_getpid);
  for (Worker* w = all_workers(); w != nullptr; w = w->all_next) {
    while (sys_call(SYS_tgkill, pid, w->tid, 0) == 0) sys_call(SYS_sched_yield);
  }
  workers_list.store(nullptr, std::memory_order_relaxed);
  workers.store(0, std::memory_order_relaxed);
  spares = nullptr;
  spare_count = 0;
}

}  // namespace

namespace {

// Makes n carriers with engines of one kind. 0, or an errno: none is left.
int make_carriers_with(Engine* (*make)(int*), int n) {
  for (int i = 0; i < n; i++) {
    void* memory = sys_map(round_up(sizeof(Carrier), kPage));
    int err = ENOMEM;
    Engine* e = memory != nullptr ? make(&err) : nullptr;
    if (e == nullptr) {
      for (int k = 0; k < i; k++) carriers[k]->engine->abandon();
      return err;
    }
    auto* c = new (memory) Carrier;
    c->id = static_cast<uint32_t>(i);
    c->engine = e;
    carriers[i] = c;
    engine_name = e->name();
  }
  return 0;
}

// nullptr, or why there is no engine. All carriers have the same kind: too little locked memory may show at the last ring.
const char* make_carriers(int n) {
  static char why[96];
  engine_refused = nullptr;
  if (options.io != kIoEpoll) {
    int err = make_carriers_with(ring_make, n);
    if (err == 0) return nullptr;
    engine_refused = strerrorname_np(err);
    snprintf(why, sizeof why, "io_uring refused: %s", engine_refused);
    if (options.io == kIoUring) return why;
    ring_after_fork();
  }
  int err = make_carriers_with(epoll_make, n);
  if (err == 0) return nullptr;
  snprintf(why, sizeof why, "epoll refused: %s", strerrorname_np(err));
  return why;
}

}  // namespace

const char* sched_start() {
  void* word = sys_map(kPage);
  if (word == nullptr) return "out of memory";
  if (sys_call(SYS_madvise, sys_arg(word), kPage, MADV_WIPEONFORK) != 0) {
    sys_unmap(word, kPage);
    return "madvise(MADV_WIPEONFORK) refused";
  }
  stack_init(sizeof(Fiber));
  int n = options.carriers != 0 ? options.carriers : default_carriers();
  const char* refused = make_carriers(n);
  if (refused != nullptr) return refused;
  carrier_count = n;
  running = true;
  alive_word = static_cast<std::atomic<uint32_t>*>(word);
  if (!make_threads(n)) {
    end_threads();
    for (int i = 0; i < n; i++) carriers[i]->engine->abandon();
    carrier_count = 0;
    running = false;
    alive_word = nullptr;
    return "a kernel thread was refused";
  }
  for (int given = 0; given < n;) {
    Worker* w;
    {
      Locked hold(spares_lock);
      w = spares;
      if (w != nullptr) {
        spares = w->next_spare;
        spare_count--;
      }
    }
    if (w == nullptr) {
      sys_call(SYS_sched_yield);
      continue;
    }
    give_carrier(w, carriers[given++]);
  }
  alive_word->store(1, std::memory_order_release);
  return nullptr;
}

void sched_after_fork() {
  if (!running) return;
  for (int i = 0; i < carrier_count; i++) carriers[i]->engine->abandon();
  ring_after_fork();
  epoll_after_fork();
  own_fds_after_fork();
  carrier_count = 0;
  running = false;
  alive_word = nullptr;
  new (&counters) Counters;
  global_lock.reset();
  global_head = global_tail = nullptr;
  global_size.store(0, std::memory_order_relaxed);
  waking.after_fork();
  spares_lock.reset();
  spares = nullptr;
  spare_count = 0;
  workers.store(0, std::memory_order_relaxed);
  workers_coming.store(0, std::memory_order_relaxed);
  requests.store(0, std::memory_order_relaxed);
  bound_lock.reset();
  to_bind = nullptr;
  workers_list.store(nullptr, std::memory_order_relaxed);
  next_worker_id.store(0, std::memory_order_relaxed);
  stack_after_fork();
  tls_after_fork();
  kernel_threads_after_fork();
  fiber_after_fork();
  admission_after_fork();
  sysmon_after_fork();
}

}  // namespace vthr
