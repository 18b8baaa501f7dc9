// The scheduler: carriers, workers, the global queue, parking and readying (DESIGN D3).
//
// Designs that were rejected: one shared run queue (its lock is the hot spot at 10,000 connections); fixed workers
// without hand-off (the first native lock deadlocks, seen with OpenJDK's safepoint barrier); preempting fibers by
// signal (a handler interrupts calls that must not be interrupted); a netpoller thread (a hop more per completion,
// while each carrier can sleep in its own ring).
#pragma once
#include "runtime/doorbell.h"
#include "runtime/engine.h"
#include "runtime/fiber.h"
#include "runtime/lock.h"
#include "runtime/runq.h"
#include "runtime/timer.h"

namespace vthr {

struct Counters {
#define COUNTER(name, help) std::atomic<uint64_t> name{0};
#include "runtime/counters.def"
#undef COUNTER
};
extern Counters counters;
inline void count(std::atomic<uint64_t>& c, uint64_t n = 1) { c.fetch_add(n, std::memory_order_relaxed); }

struct alignas(kCacheLine) Carrier {
  uint32_t id = 0;
  RunQueueT<Fiber> runq;
  Engine* engine = nullptr;
  TimerHeap timers;
  DoorbellT<> bell;
  std::atomic<Worker*> worker{nullptr};
  Lock inbox_lock;
  List inbox;  // Fiber::nudge
  std::atomic<uint32_t> inbox_count{0};
};

// Worker state:
//   spare   -> runtime  the worker itself, after a carrier was given to it (its `carrier` was written before the wake)
//   runtime -> user     leave(): the fiber's own code runs (release)
//   user    -> runtime  enter(), by compare-and-swap (acq_rel): the worker still owns its carrier
//   user    -> robbed   sysmon, by compare-and-swap (acq_rel): the carrier is sysmon's to give away
//   robbed  -> spare    the worker itself, after it queued the fiber globally
//   runtime -> spare    only at shutdown of a worker without a carrier
// Pairs: leave's release with sysmon's acquire: what the worker did to the carrier is seen by the next owner.
enum WorkerState : uint32_t { kSpare, kRuntime, kUser, kRobbed, kRetired };

struct alignas(kCacheLine) Worker {
  std::atomic<uint32_t> state{kSpare};
  uint32_t id = 0;
  Carrier* carrier = nullptr;
  std::atomic<Fiber*> running{nullptr};
  Context scheduler;
  void* tcb = nullptr;
  int tid = 0;
  AltStack altstack;  // what the kernel has for this thread: the last fiber's
  // A kAskDeliver is on its way to this thread: set by who sends one, cleared by the handler before it looks. Pairs: who finds
  // it set made its signal pending before; the handler reads the pending ones after it cleared it (both seq_cst).
  std::atomic<bool> deliver_asked{false};
  enum After : uint8_t {
    kNothing,
    kPark,
    kYield,
    kExit,
    kRequeue,
    kBind
  } after = kNothing;  // what the fiber left for it
  std::atomic<uint64_t> slice_start{
      0};  // this thread's CPU time when it switched the fiber in; while accounting
  bool spinning = false;
  bool bound = false;             // made for one bound fiber: never owns a carrier, ends with the fiber
  std::atomic<uint32_t> wake{0};  // futex of a spare: 1 when a carrier was given, 2 to end
  Worker* next_spare = nullptr;
  Worker* all_next = nullptr;
  uint64_t rounds = 0;
  // Voluntary context switches: at the worker's birth, and those of its own idle waits so far.
  uint64_t voluntary_at_birth = 0;
  std::atomic<uint64_t> own_waits{0};
  std::atomic<bool> sleeps{false};  // in one of its own waits now
  std::atomic<int64_t> idle_since{0};
  std::atomic<uint32_t> tick{0};  // fibers switched in; written by the worker
  // sysmon's view (only sysmon writes): since when this tick was seen, the pin under way, files of /proc in sysmon's
  // own descriptor table.
  struct Watch {
    uint32_t tick = 0;
    int64_t since = 0;
    bool pinned = false, hog = false;
    int64_t pin_from = 0, pin_seen = 0;
    uint64_t slices = 0, sp = 0, pc = 0;
    long call = -1;  // with sp and pc: the last call it was seen asleep in
    bool handed_off = false, told = false;
    struct PinRecord* record = nullptr;
    int syscall_fd = -1, schedstat_fd = -1;
  } watch;
};

extern __thread Worker* this_worker;  // set on the worker's own TLS: visible in scheduler context only

// The runtime runs in this process: zero in a forked child that ran no handler (MADV_WIPEONFORK).
extern std::atomic<uint32_t>* alive_word;
inline bool runtime_alive() {
  return alive_word != nullptr && alive_word->load(std::memory_order_relaxed) != 0;
}

// The fiber to act for, or nullptr: foreign thread, scheduler context, native-only, or a child that forked raw.
inline Fiber* fiber_here() {
  Fiber* f = current;
  if (VTHR_LIKELY(f == nullptr)) return nullptr;
  return f->native_only == 0 && runtime_alive() ? f : nullptr;
}

// Fiber only. After enter() the fiber's worker owns a carrier; it may have changed. Not reentrant.
void enter(Fiber* f);
// Back to the program's code; delivers pending signals.
void leave(Fiber* f);
// The two halves of leave(): in between, the carrier may be taken away as from the program's code, but no handler runs.
void leave_carrier(Fiber* f);
void leave_to_program(Fiber* f);

// Entered fiber: gives the carrier away until unpark. The wait must have been published before.
void park(Fiber* f, Reason reason, const void* on);
// CPU time that f has used since the first call of this function in the process, in ns: before it, switches do not pay
// for the accounting. Any thread.
uint64_t fiber_cpu_time(Fiber* f);
// Makes a parked (or parking) fiber runnable; exactly once per wait. Any thread.
void unpark(Fiber* f);
// Queues a fiber that nobody else owns (new, or unparked). Any thread.
void ready(Fiber* f);
// Entered fiber: lets others run.
void yield(Fiber* f);
// Entered fiber: arms its timer for `deadline`, which ends the wait `ticket`. False: out of memory.
bool arm_timer(Fiber* f, uint64_t ticket, int64_t deadline);
// Asks the owner of the carrier that f's ring operation is on for its end, with `err`. Any thread.
void nudge(Fiber* f, uint64_t ticket, int err);
// Fiber, not entered: from here to its end it runs on a kernel thread made for it, without a carrier, and its hooks
// behave as on a foreign thread (DESIGN D11, Go's LockOSThread): for calls that change or name kernel-thread state.
// A fresh thread, because one that submitted requests must not end while they run (HAZARDS 23).
void bind_fiber(Fiber* f);
// Entered fiber, as its last act: the scheduler ends it. Does not return, which AddressSanitizer must not hear of: it would
// clean up a stack that it does not know.
#ifndef __SANITIZE_ADDRESS__
[[noreturn]]
#endif
void exit_fiber(Fiber* f);
// Puts a freshly made fiber under the cap's rules and runs it. Returns 0, or EAGAIN (reject). Fiber (entered) or foreign.
int launch(Fiber* f);

// Brings the runtime up: carriers, engines, workers, sysmon. nullptr, or why not (a static string). Under the start lock.
const char* sched_start();
bool sched_running();
void sched_after_fork();  // forked child: everything back to "not started"

// For sysmon and inspection.
extern const char* engine_name;     // "uring", "epoll"
extern const char* engine_refused;  // why it is not io_uring: "EPERM"; nullptr: it is, or was not asked for
extern Carrier* carriers[];
extern int carrier_count;
size_t global_queue_size();
Worker* all_workers();
// A spare worker, or nullptr; asks the service thread for a new one when few are left.
Worker* take_spare();
void give_spare(Worker* w);
void give_carrier(Worker* w, Carrier* c);
int worker_count();
void wake_one();  // if a carrier sleeps and nobody looks for work already: wake it. Any thread
void* worker_main(void* worker);
void queue_bound(Fiber* f);  // the scheduler: asks for the thread that f will run on
void* bound_main(void* worker);
bool may_make_worker();  // below VTHR_MAX_WORKERS, and none is on its way
bool make_worker();      // one more spare; false when the kernel refuses. Start, and the service thread
// Asks the service thread, which shares the program's descriptors, for a worker or an admission scan. Any thread.
constexpr uint32_t kServeWorker = 1, kServeAdmission = 2, kServeBind = 4, kServeEnd = 8, kServeBells = 16;
void ask_service(uint32_t what);

// Hooks of upper layers, set before start.
struct RuntimeHooks {
  void (*deliver_signals)(Fiber* f) = nullptr;  // leave(): pending, unblocked signals exist, or cancel_asked
  void (*fiber_ended)(Fiber* f) = nullptr;      // its life word says ended: wake joiners
  void (*last_fiber_ended)() = nullptr;         // no fiber is left
  void (*fiber_bound)(Fiber* f) = nullptr;  // bind_fiber(): the fiber itself, on its own kernel thread now
  int (*make_thread)(void* (*start)(void*), void* arg) = nullptr;  // real pthread_create, detached
};
extern RuntimeHooks hooks;

// sysmon.cc
bool sysmon_start();
void sysmon_poke();  // an idle runtime got work; cheap when sysmon is awake. Any thread
void sysmon_after_fork();
// The runtime's own signal (kSigRuntime) to a worker, for one of three purposes. Any thread.
constexpr uintptr_t kAskSample = 0x76746801, kAskDeliver = 0x76746802, kAskCancel = 0x76746803;
bool signal_worker(Worker* w, uintptr_t what);  // false: the kernel has no room for it
// The handler's answer to kAskSample. Async-signal-safe.
void sysmon_sampled(uint64_t pc, uint64_t sp, uint64_t fp);

}  // namespace vthr
