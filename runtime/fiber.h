// A fiber: one pthread of the program. Its record lives above its stack in a slot that is never unmapped, so a late
// waker or a stale pthread_t finds a record, if perhaps a recycled one.
#pragma once
#include <cstdint>

#include "runtime/bucket.h"
#include "runtime/context.h"
#include "runtime/engine.h"
#include "runtime/list.h"
#include "runtime/stack.h"
#include "runtime/timer.h"
#include "runtime/wait.h"

namespace vthr {

struct Worker;
struct Carrier;
struct Fiber;

// Life word: joinable -> detached          pthread_detach, by compare-and-swap (acq_rel)
//            joinable -> ended             the scheduler, after the fiber left its stack (release)
//            detached -> free              the scheduler: the slot goes back
//            ended -> free                 the joiner, or pthread_detach
// Pairs: ended's release with the joiner's acquire, for the return value.
enum Life : uint32_t { kFree, kJoinable, kDetached, kEnded };

// Admission of a fiber under the cap; guarded by the admission lock.
enum class Slotting : uint8_t { none, held, queued, released, readmit };

// An alternate signal stack; sp nullptr: none.
struct AltStack {
  void* sp = nullptr;
  size_t size = 0;
  int flags = 0;
};

struct Fiber {
  void* reserved_for_pool = nullptr;  // stack.cc links free slots here
  Context ctx;
  void* tcb = nullptr;
  std::atomic<Worker*> worker{nullptr};  // who runs it; written by that worker before the switch
  ParkWord park;
  WaitWord wait;
  Fiber* q_next = nullptr;  // in the global queue

  // Read by signal handlers on the same thread.
  std::atomic<uint32_t> in_runtime{0};  // inside the runtime: no handler of the program may run now
  uint32_t native_only = 0;  // hooks go native: set around vfork and its like, and for a bound fiber
  bool bound = false;        // runs on a kernel thread of its own, without a carrier, to its end (D11)

  // Identity
  uint64_t id = 0;
  int tid = 0;
  char name[16] = {};
  std::atomic<uint32_t> life{kFree};
  std::atomic<void*> joiner{nullptr};  // pthread_t of the one that joins
  void* (*start)(void*) = nullptr;
  void* arg = nullptr;
  void* result = nullptr;
  bool exit_called = false;        // pthread_exit gave `result`; else an unwinding means cancellation
  int* cancel_word = nullptr;      // glibc's cancelhandling in this fiber's TCB
  uint32_t no_cancel = 0;          // inside a call that is no cancellation point, though its hook is one
  void (*main)(Fiber*) = nullptr;  // interpose: runs start with cancellation and destructors around it

  // Memory
  Slot slot;
  char* stack_low = nullptr;  // as pthread_getattr_np reports it, guard included
  size_t stack_bytes = 0;
  size_t guard_bytes = 0;

  // The wait under way
  Timer timer;
  WaitNode node;
  OpGroup* ops = nullptr;
  std::atomic<Carrier*> ops_home{
      nullptr};  // written before the wait is published; a late nudge may read the next one's
  std::atomic<Reason> reason{Reason::none};
  std::atomic<const void*> wait_on{nullptr};  // lock address, or the descriptor as a number
  std::atomic<int64_t> since{0};              // ns; when it was parked
  ListNode nudge;  // in a carrier's inbox: somebody asks for the end of its ring operation
  uint64_t nudge_ticket = 0;
  int nudge_errno = 0;

  // Signals (DESIGN D12): masks and pending signals of fibers live here
  std::atomic<uint64_t> sigmask{0};
  std::atomic<uint64_t> pending{0};
  std::atomic<uint64_t> cancel_asked{
      0};                              // 1: asynchronously, and it has not looked yet; for the next leave()
  std::atomic<uint64_t> waits_for{0};  // blocked ones that end its wait all the same (sigwait)
  std::atomic<bool> wait_claimed{false};    // the signal thread has sent what ends that wait
  std::atomic<uint64_t> handler_blocks{0};  // of `sigmask`: only until a handler under way returns
  std::atomic<uint64_t> shared_pending{0};  // of `pending`: sent to the process, others may take them too
  struct SignalRecord* signal_records = nullptr;  // siginfo of pending ones that have more than the number
  AltStack altstack;
  std::atomic<int> signal_tid{0};  // a bound fiber's mask and signals are the kernel's, of this thread
  bool no_restart = false;         // a handler without SA_RESTART ran since the last enter()
  std::atomic<uint32_t> signals_taken{
      0};  // handlers run: a native call that returns EINTR for another reason repeats

  std::atomic<uint64_t> cpu_ns{0};  // CPU time of ended slices since accounting began; written by the worker

  // Admission
  Slotting slotting = Slotting::none;
  ListNode admission;
  bool regains_slot = false;
  int64_t hold_since = 0;  // first park of the current run of waits that may give the slot up

  // What the last calls saw: a hint for the order of trying and waiting
  int drained_fd = -1;

  const char* native_call = nullptr;  // a call that a hook runs natively now, for pin reports
  Fiber* all_next = nullptr;          // every record ever made, newest first
};

extern __thread Fiber* current;  // the fiber whose FS base this is; nullptr on every other thread

// Bits of glibc's cancelhandling word (nptl/descr.h: fixed since 2.3).
enum CancelBits : int { kCancelDisabled = 1, kCancelAsync = 2, kCanceling = 4, kCanceled = 8, kExiting = 16 };
// pthread_cancel was called for f, f allows it here and has not begun to end. The fiber itself, or a snapshot.
inline bool cancel_due(const Fiber* f) {
  int word = __atomic_load_n(f->cancel_word, __ATOMIC_RELAXED);
  return __builtin_expect((word & (kCancelDisabled | kCanceled | kExiting)) == kCanceled, 0) &&
         f->no_cancel == 0;
}

// Only joining is left of it. Any thread that may use its pthread_t.
inline bool fiber_has_ended(const Fiber* f) {
  uint32_t life = f->life.load(std::memory_order_acquire);
  return life == kEnded || life == kFree;
}

struct FiberAttr {
  size_t stack_bytes = 0, guard_bytes = 0;
  void* user_stack_low = nullptr;  // the program's own stack memory (pthread_attr_setstack)
  bool detached = false;
};

// Makes a fiber, not yet queued. 0 or EAGAIN. Fiber or foreign thread, holding no lock (malloc is called).
int fiber_make(const FiberAttr& attr, void (*main)(Fiber*), Fiber** out);
// Gives everything back. The scheduler (detached fiber), or the joiner.
void fiber_free(Fiber* f);
// The fiber whose pthread_t this is; nullptr when it is a thread that is not a fiber. Any thread.
Fiber* fiber_of(uintptr_t pthread_id);
// Calls visit for each record, live or not. Any thread.
void fiber_each(void (*visit)(Fiber* f, void* arg), void* arg);
uint64_t fiber_live_count();  // made and not yet ended
uint64_t fiber_total_count();
uint64_t fiber_note_end();  // the scheduler: one less alive; returns how many are left
void fiber_after_fork();

// Above PID_MAX_LIMIT; below a futex's flag bits (2^30), and small enough for the clock ids of threads (2^28).
constexpr int kFirstTid = 4194304 + 1, kLastTid = (1 << 28) - 1;

}  // namespace vthr
