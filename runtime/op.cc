#include "runtime/op.h"

#include <cerrno>

namespace vthr {

void op_finish(Op* op, int32_t res) {
  OpGroup* g = op->group;
  op->res = res;
  op->done = true;
  Fiber* f = g->fiber;
  uint64_t ticket = g->ticket.load(std::memory_order_relaxed);
  uint32_t wake_at = g->wake_at.load(std::memory_order_relaxed);
  // From here on the waiter may see the last completion and leave: g is not touched again.
  if (g->outstanding.fetch_sub(1, std::memory_order_acq_rel) - 1 > wake_at) return;
  if (f->wait.end_request(ticket)) unpark(f);
}

void op_cancel(Fiber* f, int err) {
  OpGroup* g = f->ops;
  if (g->cancel_errno == 0) g->cancel_errno = err;
  g->wake_at.store(0, std::memory_order_relaxed);
  for (uint32_t i = 0; i < g->count; i++) {
    if (!g->ops[i].done) f->ops_home.load(std::memory_order_relaxed)->engine->queue_cancel(&g->ops[i]);
  }
}

void op_nudged(Fiber* f, uint64_t ticket, int err) {
  if (!f->wait.is_request(ticket)) return;  // that wait is over
  if (f->ops->outstanding.load(std::memory_order_acquire) ==
      0) {  // the waiter collects, and the last one came before
    if (f->wait.end_request(ticket)) unpark(f);
    return;
  }
  op_cancel(f, err);
}

namespace {

// A signal or cancel that came before the wait was published must not be slept over: why it ends at once, or 0.
int ends_at_once(Fiber* f) {
  if (cancel_due(f)) return ECANCELED;
  return (f->pending.load(std::memory_order_seq_cst) & ~f->sigmask.load(std::memory_order_relaxed)) != 0
             ? EINTR
             : 0;
}

// Ends the wait word, and takes the fiber out of the inbox when somebody nudged it.
void end_wait(Fiber* f) {
  bool nudged = false;
  f->wait.finish(&nudged);
  if (VTHR_LIKELY(!nudged)) return;
  Carrier* home = f->ops_home.load(std::memory_order_relaxed);
  Locked hold(home->inbox_lock);
  if (!f->nudge.linked()) return;
  List::remove(&f->nudge);
  home->inbox_count.fetch_sub(1, std::memory_order_relaxed);
}

void run_group(Fiber* f, OpGroup* g, const Request* r, Reason reason, int64_t deadline) {
  Carrier* c = f->worker.load(std::memory_order_relaxed)->carrier;
  g->fiber = f;
  f->ops = g;
  f->ops_home.store(c, std::memory_order_relaxed);
  uint64_t ticket = f->wait.begin(WaitWord::requesting);
  g->ticket.store(ticket, std::memory_order_relaxed);
  for (uint32_t i = 0; i < g->count; i++) {
    g->ops[i].group = g;
    c->engine->queue(r[i], &g->ops[i]);
  }
  if (deadline != kNever && !arm_timer(f, ticket, deadline)) op_cancel(f, ENOMEM);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  int at_once = ends_at_once(f);
  if (VTHR_UNLIKELY(at_once != 0)) op_cancel(f, at_once);
  count(counters.io_parks);
  park(f, reason, reinterpret_cast<const void*>(static_cast<intptr_t>(r[0].fd)));
  end_wait(f);
  if (deadline != kNever) TimerHeap::disarm(&f->timer);
}

}  // namespace

long op_wait(Fiber* f, const Request& r, Reason reason, int64_t deadline) {
  Op op;
  OpGroup g;
  g.ops = &op;
  g.count = 1;
  g.outstanding.store(1, std::memory_order_relaxed);
  enter(f);
  run_group(f, &g, &r, reason, deadline);
  leave_carrier(f);
  if (VTHR_UNLIKELY(op.keeps != nullptr)) engine_kept_release(op.keeps);
  leave_to_program(f);
  if (op.res == -ECANCELED && g.cancel_errno != 0) return -g.cancel_errno;
  // a request that was interrupted in the kernel by its cancel says -EINTR (io-wq)
  if (op.res == -EINTR && g.cancel_errno != 0) return -g.cancel_errno;
  return op.res;
}

long op_wait_any(Fiber* f, const Request* r, Op* ops, uint32_t n, Reason reason, int64_t deadline) {
  OpGroup g;
  g.ops = ops;
  g.count = n;
  g.outstanding.store(n, std::memory_order_relaxed);
  g.wake_at.store(n - 1, std::memory_order_relaxed);
  enter(f);
  run_group(f, &g, r, reason, deadline);
  // The others run on the engine where they were submitted, which may be another worker's by now. A late completion
  // of it may still go by the old wake_at: hence the loop.
  while (g.outstanding.load(std::memory_order_acquire) != 0) {
    uint64_t ticket = f->wait.begin(WaitWord::requesting);
    g.wake_at.store(0, std::memory_order_relaxed);
    g.ticket.store(ticket, std::memory_order_relaxed);
    nudge(f, ticket, ECANCELED);
    park(f, reason, nullptr);
    end_wait(f);
  }
  leave_carrier(f);
  for (uint32_t i = 0; i < n; i++) {
    if (VTHR_UNLIKELY(ops[i].keeps != nullptr)) engine_kept_release(ops[i].keeps);
  }
  leave_to_program(f);
  for (uint32_t i = 0; i < n; i++) {
    if (ops[i].res == -ECANCELED) ops[i].done = false;
  }
  for (uint32_t i = 0; i < n; i++) {
    if (ops[i].done) return 0;
  }
  return g.cancel_errno != 0 ? -g.cancel_errno : 0;
}

long op_sleep(Fiber* f, Reason reason, int64_t deadline) {
  enter(f);
  uint64_t ticket = f->wait.begin(WaitWord::waiting);
  WaitWord::State s = WaitWord::timed_out;
  if (deadline != kNever && !arm_timer(f, ticket, deadline)) {
    f->wait.finish();
    leave(f);
    return -ENOMEM;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  int at_once = ends_at_once(f);
  if (VTHR_LIKELY(at_once == 0) ||
      !f->wait.end(ticket, at_once == EINTR ? WaitWord::interrupted : WaitWord::cancelled))
    park(f, reason, nullptr);
  s = f->wait.finish();
  if (deadline != kNever) TimerHeap::disarm(&f->timer);
  leave(f);
  return s == WaitWord::interrupted ? -EINTR : s == WaitWord::cancelled ? -ECANCELED : 0;
}

}  // namespace vthr
