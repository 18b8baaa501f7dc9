// The interface of an I/O engine: one instance per carrier, used by the worker that owns the carrier, except where
// noted. A request is described in io_uring's terms; an engine that has no such operation emulates it.
#pragma once
#include <cstdint>

#include "runtime/base.h"
#include "runtime/ownfd.h"

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
  void* state = nullptr;  // the engine's own
  int* keeps = nullptr;   // for engine_kept_release, when it is not nullptr at the end
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
  // Wakes the owner out of sleep. Any thread that has the program's descriptors, async-signal-safe.
  virtual void ring_bell() = 0;
  // The eventfd behind it, for a thread that has not; -1: there is none. Any thread, a snapshot.
  virtual int bell_fd() const { return -1; }
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
  // A descriptor of which sysmon keeps a copy under the same number in its own table, for has_work; -1: none needed.
  virtual int watch_fd() const = 0;
  virtual const char* name() const = 0;
  // Forked child, or a start that failed: closes what it has.
  virtual void abandon() = 0;

 protected:
  ~Engine() = default;  // engines live for ever
};

// The owner's callback for completions (op.cc).
void op_finish(Op* op, int32_t res);

// Makes an engine; nullptr and *err (errno) when the kernel refuses.
Engine* ring_make(int* err);
Engine* epoll_make(int* err);

// What the engines of this process can do; set by the first that is made.
struct EngineFeatures {
  bool poll_first = false;  // a RECV may wait before it looks at the socket
  bool holds_files = true;  // a request that waits holds its file; else engine_close_begins must be told
  bool waitid = false;      // kOpWaitid
};
extern EngineFeatures engine_features;

// Each number has an epoch, which ends when the program gives the number to another file, as far as hooks see it. Any thread,
// async-signal-safe.
constexpr int kEpochs = 65536;
extern std::atomic<uint32_t> fd_epochs[kEpochs];
inline void fd_new_file(int fd) {
  if (fd >= 0 && fd < kEpochs) fd_epochs[fd].fetch_add(1, std::memory_order_relaxed);
}

// Around the close or replacement of the program's descriptors `first` to `last`: requests that wait for one of them go on
// with the file that it was, as they would natively, and new ones are not caught in between. Any thread; no handler of
// the program may run on it during a call. Costs nothing with an engine that holds files.
void engine_close_begins(int first, int last);
void engine_close_ends(int first, int last);
// The waiter, out of the wait: closes op->keeps, the last reference to a file that the program has closed meanwhile. Like
// the last reference of a thread that was blocked in a call, this may take its time (SO_LINGER).
void engine_kept_release(int* kept);

// Forked child, after every engine was abandoned.
void ring_after_fork();
void epoll_after_fork();

}  // namespace vthr
