// The loop of a worker: take a carrier, run its fibers, submit and reap once a round, look elsewhere, sleep in the ring.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include "runtime/admission.h"
#include "runtime/op.h"
#include "runtime/sched.h"
#include "runtime/sys.h"
#include "runtime/tls.h"

namespace vthr {

__thread Worker* this_worker __attribute__((tls_model("initial-exec"))) = nullptr;

void queue_globally(Fiber* first, Fiber* last, size_t n);  // sched.cc
Fiber* take_globally(Carrier* c);
bool work_anywhere();
Fiber* steal_for(Carrier* c);
extern WakingT<> waking;

namespace {

constexpr uint64_t kGlobalEvery =
    61;  // rounds after which the global queue goes first, so that it cannot starve
constexpr uint64_t kPollEvery =
    32;  // fibers run between two looks at the engine while the run queue is never empty

uint64_t voluntary_switches() {
  rusage u{};
  sys_call(SYS_getrusage, RUSAGE_THREAD, sys_arg(&u));
  return static_cast<uint64_t>(u.ru_nvcsw);
}

std::atomic<bool> cpu_accounting{false};

uint64_t cpu_time_of(clockid_t clock) {
  timespec ts{};
  sys_call(SYS_clock_gettime, clock, sys_arg(&ts));
  return static_cast<uint64_t>(ts.tv_sec) * kSecond + static_cast<uint64_t>(ts.tv_nsec);
}
// The kernel's clock id of another thread's CPU time (linux/posix-timers.h: ~tid << 3 | per thread | scheduler's clock).
clockid_t cpu_clock_of(int tid) { return static_cast<clockid_t>(~static_cast<unsigned>(tid) << 3 | 4 | 2); }

void fire_timers(Carrier* c) {
  if (VTHR_LIKELY(c->timers.next() == kNever)) return;
  int64_t now = now_ns();
  for (;;) {
    Fiber* wake = nullptr;
    bool any = c->timers.expire_one(now, [&](Timer* t) {
      auto* f = reinterpret_cast<Fiber*>(reinterpret_cast<char*>(t) - offsetof(Fiber, timer));
      if (WaitWord::state_of(t->ticket) == WaitWord::requesting) {
        if (f->wait.is_request(t->ticket)) op_cancel(f, ETIMEDOUT);
      } else if (f->wait.end(t->ticket, WaitWord::timed_out)) {
        wake = f;
      }
    });
    if (!any) return;
    if (wake != nullptr) unpark(wake);
  }
}

void serve_inbox(Carrier* c) {
  if (VTHR_LIKELY(c->inbox_count.load(std::memory_order_acquire) == 0)) return;
  for (;;) {
    Fiber* f;
    uint64_t ticket;
    int err;
    {
      Locked hold(c->inbox_lock);
      ListNode* n = c->inbox.pop_front();
      if (n == nullptr) return;
      c->inbox_count.fetch_sub(1, std::memory_order_relaxed);
      f = reinterpret_cast<Fiber*>(reinterpret_cast<char*>(n) - offsetof(Fiber, nudge));
      ticket = f->nudge_ticket;
      err = f->nudge_errno;
    }
    op_nudged(f, ticket, err);
  }
}

void poll_once(Carrier* c) {
  c->engine->round();
  fire_timers(c);
  serve_inbox(c);
}

// What the fiber left to do on the other side of the switch. Returns a fiber to run on at once.
Fiber* after_switch(Worker* w, Fiber* f) {
  switch (w->after) {
    case Worker::kPark:
      if (!f->park.commit()) return f;
      return nullptr;
    case Worker::kYield:
      queue_globally(f, f, 1);
      return nullptr;
    case Worker::kBind:
      queue_bound(f);
      return nullptr;
    case Worker::kExit: {
      admission_leave(f);
      uint64_t left = fiber_note_end();  // before a joiner may go on and count
      uint32_t s = kJoinable;
      if (f->life.compare_exchange_strong(s, kEnded, std::memory_order_acq_rel)) {
        hooks.fiber_ended(f);
      } else {
        fiber_free(f);
      }
      if (left == 0) hooks.last_fiber_ended();
      return nullptr;
    }
    default:
      return nullptr;
  }
}

// The kernel pushes the frames of real faults on the fiber's alternate stack, so that it may overflow its own.
VTHR_NOINLINE void take_altstack(Worker* w, Fiber* f) {
  stack_t stack{};
  stack.ss_sp = f->altstack.sp;
  stack.ss_size = f->altstack.size;
  stack.ss_flags = f->altstack.sp != nullptr ? f->altstack.flags : SS_DISABLE;
  sys_call(SYS_sigaltstack, sys_arg(&stack), 0);
  w->altstack = f->altstack;
}

// Adds the slice that ends now. One that began before the accounting did starts where the first query marked it.
void end_slice(Worker* w, Fiber* f) {
  uint64_t start = w->slice_start.exchange(0, std::memory_order_relaxed);
  if (start != 0)
    f->cpu_ns.fetch_add(cpu_time_of(CLOCK_THREAD_CPUTIME_ID) - start, std::memory_order_relaxed);
}

void switch_in(Worker* w, Fiber* f) {
#ifdef VTHR_NO_FS_SWITCH
  current = f;  // else it comes with FS
#endif
  context_switch_in(&f->ctx, &w->scheduler, f->tcb, w->tcb);
#ifdef VTHR_NO_FS_SWITCH
  current = nullptr;
#endif
}

// Runs f until it parks or ends; false when the carrier was taken away meanwhile.
bool run(Worker* w, Fiber* f) {
  while (f != nullptr) {
    f->worker.store(w, std::memory_order_relaxed);
    w->running.store(f, std::memory_order_relaxed);
    w->tick.store(w->tick.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    w->after = Worker::kNothing;
    if (VTHR_UNLIKELY(w->altstack.sp != f->altstack.sp || w->altstack.size != f->altstack.size))
      take_altstack(w, f);
    if (VTHR_UNLIKELY(cpu_accounting.load(std::memory_order_relaxed)))
      w->slice_start.store(cpu_time_of(CLOCK_THREAD_CPUTIME_ID), std::memory_order_relaxed);
    switch_in(w, f);
    if (VTHR_UNLIKELY(cpu_accounting.load(std::memory_order_relaxed))) end_slice(w, f);
    w->running.store(nullptr, std::memory_order_relaxed);
    if (VTHR_UNLIKELY(w->after == Worker::kRequeue)) {
      w->carrier = nullptr;
      w->state.store(kSpare, std::memory_order_release);
      queue_globally(f, f, 1);
      wake_one();
      return false;
    }
    f = after_switch(w, f);
  }
  return true;
}

// Whoever queued work while this worker was the one to look for it woke nobody.
void found(Worker* w) {
  if (!w->spinning) return;
  w->spinning = false;
  waking.stop_spinning();
  if (work_anywhere()) wake_one();
}

void sleep_idle(Worker* w, Carrier* c) {
  if (w->spinning) {
    w->spinning = false;
    waking.stop_spinning();
  }
  if (waking.sleep(c->bell,
                   [c] { return work_anywhere() || c->inbox_count.load(std::memory_order_acquire) != 0; })) {
    uint64_t before = voluntary_switches();
    w->sleeps.store(true, std::memory_order_relaxed);
    c->engine->sleep(c->timers.next());
    w->sleeps.store(false, std::memory_order_relaxed);
    w->own_waits.fetch_add(voluntary_switches() - before, std::memory_order_relaxed);
  }
  w->spinning = waking.awake(c->bell);
  sysmon_poke();  // it may have seen all carriers idle just now, and gone to sleep
}

Fiber* find(Worker* w, Carrier* c) {
  for (;;) {
    Fiber* f = nullptr;
    if (++w->rounds % kGlobalEvery == 0) f = take_globally(c);
    if (w->rounds % kPollEvery == 0) poll_once(c);
    if (f == nullptr) f = c->runq.pop();
    if (f != nullptr) return found(w), f;
    poll_once(c);
    if ((f = c->runq.pop()) != nullptr) return found(w), f;
    if ((f = take_globally(c)) != nullptr) return found(w), f;
    if ((f = steal_for(c)) != nullptr) return count(counters.steals), found(w), f;
    sleep_idle(w, c);
  }
}

void retire(Worker* w) {
  count(counters.workers_retired);
  count(counters.voluntary_retired, voluntary_switches() - w->voluntary_at_birth);
  count(counters.own_waits_retired, w->own_waits.load(std::memory_order_relaxed));
  w->state.store(kRetired, std::memory_order_release);
}

}  // namespace

void* worker_main(void* arg) {
  auto* w = static_cast<Worker*>(arg);
  this_worker = w;
  w->tcb = tls_self();
  w->tid = sys_gettid();
  char name[16];
  snprintf(name, sizeof name, "vthr-%u", w->id);
  sys_call(SYS_prctl, PR_SET_NAME, sys_arg(name));
  if (w->id == 0) tls_measure_on_worker();  // sched_start waits for it before there is another worker
  tls_unregister_rseq();
  w->voluntary_at_birth = voluntary_switches();
  count(counters.workers_made);
  give_spare(w);
  for (;;) {
    uint32_t why;
    uint64_t before = voluntary_switches();
    w->sleeps.store(true, std::memory_order_relaxed);
    while ((why = w->wake.exchange(0, std::memory_order_acquire)) == 0) sys_futex_wait(&w->wake, 0);
    w->sleeps.store(false, std::memory_order_relaxed);
    w->own_waits.fetch_add(voluntary_switches() - before, std::memory_order_relaxed);
    if (why == 2) break;
    Carrier* c = w->carrier;
    w->state.store(kRuntime, std::memory_order_relaxed);
    if (c->worker.exchange(w, std::memory_order_acq_rel) != nullptr) c->engine->new_owner();
    c->bell.awake_now();
    while (run(w, find(w, c))) {
    }
    w->spinning = false;
    give_spare(w);
  }
  retire(w);
  return nullptr;
}

void* bound_main(void* arg) {
  auto* w = static_cast<Worker*>(arg);
  Fiber* f = w->running.load(std::memory_order_relaxed);
  this_worker = w;
  w->tcb = tls_self();
  w->tid = sys_gettid();
  tls_bind(f->tcb, w->tid);
  w->state.store(kRobbed,
                 std::memory_order_release);  // as one whose carrier was taken: enter() queues the fiber
  f->worker.store(w, std::memory_order_relaxed);
  switch_in(w, f);
  w->running.store(nullptr, std::memory_order_relaxed);
  w->state.store(kRetired, std::memory_order_release);
  queue_globally(f, f, 1);
  wake_one();
  return nullptr;
}

uint64_t fiber_cpu_time(Fiber* f) {
  if (!cpu_accounting.exchange(true, std::memory_order_relaxed)) {
    for (Worker* w = all_workers(); w != nullptr; w = w->all_next) {
      if (w->running.load(std::memory_order_relaxed) != nullptr && w->tid != 0)
        w->slice_start.store(cpu_time_of(cpu_clock_of(w->tid)), std::memory_order_relaxed);
    }
  }
  uint64_t sum = f->cpu_ns.load(std::memory_order_relaxed);
  Worker* w = f->worker.load(std::memory_order_relaxed);
  if (w == nullptr || w->running.load(std::memory_order_relaxed) != f || w->tid == 0) return sum;
  uint64_t start = w->bound ? 0 : w->slice_start.load(std::memory_order_relaxed),
           now = cpu_time_of(cpu_clock_of(w->tid));
  return !w->bound && start == 0 ? sum : sum + (now > start ? now - start : 0);
}

void enter(Fiber* f) {
  f->in_runtime.store(1, std::memory_order_relaxed);
  f->no_restart = false;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  Worker* w = f->worker.load(std::memory_order_relaxed);
  uint32_t s = kUser;
  if (VTHR_LIKELY(w->state.compare_exchange_strong(s, kRuntime, std::memory_order_acq_rel))) return;
  w->after = Worker::kRequeue;
  context_switch_out(&f->ctx, &w->scheduler);
}

void leave_carrier(Fiber* f) {
  f->worker.load(std::memory_order_relaxed)->state.store(kUser, std::memory_order_release);
}

void leave(Fiber* f) {
  leave_carrier(f);
  leave_to_program(f);
}

void leave_to_program(Fiber* f) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  f->in_runtime.store(0, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  uint64_t due = f->pending.load(std::memory_order_relaxed) & ~f->sigmask.load(std::memory_order_relaxed);
  if (VTHR_UNLIKELY((due | f->cancel_asked.load(std::memory_order_relaxed)) != 0)) hooks.deliver_signals(f);
}

namespace {
void switch_out(Fiber* f, Worker::After after) {
  Worker* w = f->worker.load(std::memory_order_relaxed);
  w->after = after;
  count(counters.switches);
  context_switch_out(&f->ctx, &w->scheduler);
}
}  // namespace

void park(Fiber* f, Reason reason, const void* on) {
  f->reason.store(reason, std::memory_order_relaxed);
  f->wait_on.store(on, std::memory_order_relaxed);
  int64_t now = now_ns();
  f->since.store(now, std::memory_order_relaxed);
  if (reason_is_own_request(reason)) {
    f->hold_since = 0;
  } else if (f->hold_since == 0) {
    f->hold_since = now;
  }
  count(counters.parks);
  switch_out(f, Worker::kPark);
  f->reason.store(Reason::none, std::memory_order_relaxed);
}

void bind_fiber(Fiber* f) {
  if (f->bound) return;
  enter(f);
  f->bound = true;
  f->native_only++;
  switch_out(f, Worker::kBind);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  f->in_runtime.store(0, std::memory_order_relaxed);
  if (hooks.fiber_bound != nullptr) hooks.fiber_bound(f);
}

void yield(Fiber* f) { switch_out(f, Worker::kYield); }

void exit_fiber(Fiber* f) {
  switch_out(f, Worker::kExit);
  __builtin_trap();
}

}  // namespace vthr
