// The interface of an I/O engine: one instance per carrier, used by the worker that owns the carrier, except where
// noted. A request is described in io_uring's terms; an engine that has no such operation emulates it.
#pragma once
#include <cstdint>

#include "runtime/base.h"

namespace vthr {

struct Fiber;

// The requests of one wait of one fiber, on its stack. Written by the owner of the carrier they were submitted on,
// until `outstanding` is 0; the fiber does not leave the wait before.
struct OpGroup {
  Fiber* fiber = nullptr;
  std::atomic<uint64_t> ticket{0};
  std::atomic<uint32_t> outstanding{0};  // falls by the reaper (release), read by the waiter (acquire)
  std::atomic<uint32_t> wake_at{0};      // the wait ends when outstanding falls to this
  int32_t cancel_errno = 0;  // why a cancel was asked for: ETIMEDOUT, EINTR, ECANCELED; 0: nobody did
  struct Op* ops = nullptr;
  uint32_t count = 0;
};

struct Op {
  OpGroup* group = nullptr;
  int32_t res = 0;  // as in a completion: result or -errno
  bool done = false;
};

// Field meanings as in io_uring_sqe (io_uring_enter(2)).
struct Request {
  uint8_t code = 0;
  uint16_t ioprio = 0;
  int fd = -1;
  uint64_t off = 0;
  uint64_t addr = 0;
  uint32_t len = 0;
  uint32_t flags = 0;
};

constexpr uint8_t kOpWaitid = 50;  // IORING_OP_WAITID: fd is the id, len its type, flags the options

class Engine {
 public:
  // Queues a request; it reaches the kernel at the next flush. Its completion sets op->res and op->done.
  virtual void queue(const Request& r, Op* op) = 0;
  // Asks for the end of a queued or running request; its completion says what became of it.
  virtual void queue_cancel(Op* op) = 0;
  // Hands queued requests to the kernel and takes completions: calls finish(op, result) for each. Returns their number.
  virtual unsigned round() = 0;
  // The same, but sleeps until a completion, `deadline` (CLOCK_MONOTONIC ns) or the doorbell.
  virtual unsigned sleep(int64_t deadline) = 0;
  // Wakes the owner out of sleep. Any thread, async-signal-safe.
  virtual void ring_bell() = 0;
  // A new worker owns the carrier: the old one may be blocked for long, so nothing may depend on it.
  virtual void new_owner() = 0;
  // Something waits for the owner: completions, or requests that are not yet in the kernel. Any thread, a snapshot.
  virtual bool has_work() const = 0;
  // Is a request that names `fd` queued and not yet in the kernel? May say yes for another descriptor. Any thread.
  virtual bool has_unsubmitted(int fd) const = 0;
  virtual uint32_t submissions() const = 0;  // grows whenever queued requests reach the kernel. Any thread
  // Hands the owner's queued requests to the kernel in its place. A worker that lives on: the kernel cancels requests
  // when the thread that handed them over ends.
  virtual void submit_for_owner() = 0;
  virtual uint32_t in_flight() const = 0;  // any thread, a snapshot
  // Forked child: closes what it inherited.
  virtual void abandon() = 0;

 protected:
  ~Engine() = default;  // engines live for ever
};

// The owner's callback for completions (op.cc).
void op_finish(Op* op, int32_t res);

// Makes a ring; nullptr and *err (errno) when the kernel refuses.
Engine* ring_make(int* err);

// Descriptors of the runtime: high numbers, close-on-exec, hidden from the hooks of close and its like. Any thread.
bool fd_is_ours(int fd);
int fd_next_own(int from);  // the lowest of ours from that number on, or -1
bool fd_make_room(int fd);  // ours moves to another number: the program wants this one. False: none is free

}  // namespace vthr
