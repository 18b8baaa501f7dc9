#include "runtime/fiber.h"

#include <cerrno>
#include <cstring>
#include <new>

#include "runtime/sys.h"
#include "runtime/tls.h"

namespace vthr {

__thread Fiber* current __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

std::atomic<Fiber*> all_fibers{nullptr};
std::atomic<uint64_t> live{0}, made{0};
std::atomic<uint32_t> next_tid{0};
std::atomic<uint64_t> tid_start{0};

// Processes begin at different numbers: two whose fibers had the same tids would both own a process-shared mutex.
int take_tid() {
  constexpr uint64_t kTids = kLastTid - kFirstTid + 1;
  uint32_t n = next_tid.fetch_add(1, std::memory_order_relaxed);
  if (VTHR_UNLIKELY(n == 0)) {
    auto pid = static_cast<uint32_t>(sys_call(SYS_getpid));
    tid_start.store((static_cast<uint64_t>(pid * 0x9e3779b1u) * kTids) >> 32, std::memory_order_relaxed);
  }
  return kFirstTid + static_cast<int>((tid_start.load(std::memory_order_relaxed) + n) % kTids);
}

}  // namespace

int fiber_make(const FiberAttr& attr, void (*main)(Fiber*), Fiber** out) {
  Slot slot;
  size_t own_stack = attr.user_stack_low != nullptr ? 0 : attr.stack_bytes;
  if (!stack_take(own_stack, own_stack == 0 ? 0 : attr.guard_bytes, &slot)) return EAGAIN;
  Fiber* f;
  int tid = take_tid();
  if (slot.fresh) {
    f = new (slot.record) Fiber;
    f->slot = slot;
    f->slot.fresh = false;
    f->tcb = tls_create(slot.tls_block, tid);
    if (f->tcb == nullptr) {
      // The slot goes back as a fresh one would be useless without its TCB: keep it out of the pool.
      return EAGAIN;
    }
    f->all_next = all_fibers.load(std::memory_order_relaxed);
    while (!all_fibers.compare_exchange_weak(f->all_next, f, std::memory_order_release)) {
    }
  } else {
    f = static_cast<Fiber*>(slot.record);
    tls_set_tid(f->tcb, tid);
  }
  f->tid = tid;
  f->cancel_word = tls_cancelhandling(f->tcb);
  f->no_cancel = 0;
  f->cancel_asked.store(0, std::memory_order_relaxed);
  f->exit_called = false;
  f->id = made.fetch_add(1, std::memory_order_relaxed) + 1;
  f->main = main;
  f->result = nullptr;
  f->joiner.store(nullptr, std::memory_order_relaxed);
  f->sigmask.store(~0ull, std::memory_order_relaxed);  // nobody sends it a signal before it has its own mask
  f->pending.store(0, std::memory_order_relaxed);
  f->waits_for.store(0, std::memory_order_relaxed);
  f->handler_blocks.store(0, std::memory_order_relaxed);
  f->shared_pending.store(0, std::memory_order_relaxed);
  f->no_restart = false;
  f->altstack = {};
  f->signal_tid.store(0, std::memory_order_relaxed);
  f->signals_taken.store(0, std::memory_order_relaxed);
  f->in_runtime.store(1, std::memory_order_relaxed);
  f->native_only = 0;
  f->bound = false;
  f->cpu_ns.store(0, std::memory_order_relaxed);
  f->slotting = Slotting::none;
  f->hold_since = 0;
  f->drained_fd = -1;
  f->native_call = nullptr;
  f->ops = nullptr;
  f->reason.store(Reason::none, std::memory_order_relaxed);
  f->since.store(0, std::memory_order_relaxed);
  if (attr.user_stack_low != nullptr) {
    f->stack_low = static_cast<char*>(attr.user_stack_low);
    f->stack_bytes = attr.stack_bytes;
    f->guard_bytes = 0;
  } else {
    f->stack_low = slot.low;
    f->stack_bytes = slot.stack_bytes;
    f->guard_bytes = slot.guard_bytes;
  }
  *tls_elsewhere(f->tcb, &current) = f;
  f->life.store(attr.detached ? kDetached : kJoinable, std::memory_order_release);
  live.fetch_add(1, std::memory_order_relaxed);
  *out = f;
  return 0;
}

void fiber_free(Fiber* f) {
  f->life.store(kFree, std::memory_order_release);
  stack_give(f->slot);
}

Fiber* fiber_of(uintptr_t pthread_id) {
  if (pthread_id == 0) return nullptr;
  return *tls_elsewhere(reinterpret_cast<void*>(pthread_id), &current);
}

void fiber_each(void (*visit)(Fiber* f, void* arg), void* arg) {
  for (Fiber* f = all_fibers.load(std::memory_order_acquire); f != nullptr; f = f->all_next) visit(f, arg);
}

uint64_t fiber_live_count() { return live.load(std::memory_order_relaxed); }
uint64_t fiber_total_count() { return made.load(std::memory_order_relaxed); }
uint64_t fiber_note_end() { return live.fetch_sub(1, std::memory_order_acq_rel) - 1; }

void fiber_after_fork() {
  all_fibers.store(nullptr, std::memory_order_relaxed);
  live.store(0, std::memory_order_relaxed);
  next_tid.store(0, std::memory_order_relaxed);
}

}  // namespace vthr
