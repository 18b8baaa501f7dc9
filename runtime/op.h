// One wait of a fiber for requests on its carrier's engine (DESIGN D4, D5): a time-out, signal or cancel only asks for
// the end of a request; the completion is the outcome.
#pragma once
#include "runtime/engine.h"
#include "runtime/sched.h"

namespace vthr {

// Submits `r` and waits. Returns the completion's result (>= 0 or -errno); a request that was ended on behalf of its
// waiter gives -ETIMEDOUT (deadline), -EINTR (signal) or -ECANCELED (pthread_cancel). Not entered fiber.
long op_wait(Fiber* f, const Request& r, Reason reason, int64_t deadline);

// Submits n requests and waits until the first ends, then ends and collects the others: ops[i].done says which of
// them ended by themselves. 0, or -ETIMEDOUT, -EINTR, -ECANCELED when none did. ops: the caller's, n of them.
long op_wait_any(Fiber* f, const Request* r, Op* ops, uint32_t n, Reason reason, int64_t deadline);

// Pure pause: until the deadline (0), or -EINTR, -ECANCELED. Not entered fiber.
long op_sleep(Fiber* f, Reason reason, int64_t deadline);

// For the worker loop: the owner of f's engine ends its requests with `err`.
void op_cancel(Fiber* f, int err);
void op_nudged(Fiber* f, uint64_t ticket, int err);

}  // namespace vthr
