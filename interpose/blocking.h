// What the blocking hooks share: what kind of file a descriptor is, time-outs of sockets, and the loop around one
// request (DESIGN D5: try, park, retry).
#pragma once
#include <sys/uio.h>

#include "interpose/enter.h"
#include "interpose/thread.h"

namespace vthr {

// A hint per descriptor, never trusted: descriptors are reused without our seeing it (fclose, closedir). stream: pipes,
// eventfds and their like; device: terminals and other character devices; endless: /dev/zero, /dev/urandom and their
// like, which never wait; unknown also for a wrong descriptor.
enum class FdKind : uint8_t { unknown, socket, stream, device, endless, file };
constexpr int kHints = 65536;  // descriptors above have none
FdKind fd_hint(int fd);
FdKind fd_kind(int fd);  // asks the kernel, and corrects the hint
void fd_set_hint(int fd, FdKind kind);
// The hooks saw it closed or replaced. Calls of several steps hold a number, not the file: between two steps they compare
// the generation, so that the rest of a write never goes to another file (HAZARDS 9).
void fd_forget(int fd);
uint32_t fd_generation(int fd);

// Is O_NONBLOCK set on the open file? Asked only when a try would have blocked.
bool fd_nonblocking(int fd);

// The time-out of a socket as a deadline; kNever when none. optname SO_RCVTIMEO or SO_SNDTIMEO. Costs nothing while
// no socket of the process ever had one.
int64_t socket_deadline(int fd, int optname);
void note_socket_timeouts();     // some socket has one: ask each time from now on
void blocking_scan_inherited();  // start, one thread: did our parent leave us a socket with a time-out?

// One request that waits for `fd`; result or -errno. A signal whose handlers all had SA_RESTART starts it again, unless
// there is a deadline (signal(7)); -ETIMEDOUT when the deadline passed.
long wait_request(Fiber* f, const Request& r, Reason reason, int64_t deadline);

// Before a descriptor from `first` to `last` is closed, replaced or shut down: requests that name it by number must have
// reached the kernel. Any thread; f: fiber_here().
void settle_requests(Fiber* f, int first, int last);
// Around a call by which the program closes descriptors from `first` to `last`, or puts other files there: requests under way
// keep their files (settle_requests), later steps of calls under way see that the number is another one's.
class Closing {
 public:
  Closing(int first, int last);
  ~Closing();
  Closing(const Closing&) = delete;
  Closing& operator=(const Closing&) = delete;

 private:
  int first_, last_;
};

// Are the descriptors that the caller closes those that the runtime uses? Not in a child that has a table of its own.
bool shares_descriptors();

// EPIPE: the signal that the kernel would have sent to the writing thread. `consume`: it left one pending on the worker.
void sigpipe(Fiber* f, bool consume);

// A copy of a vector without its first `skip` bytes, at most kVectorChunk entries of it; returns their number.
constexpr int kVectorChunk = 64;
int vector_rest(const iovec* iov, size_t n, size_t skip, iovec* out);
size_t vector_bytes(const iovec* iov, size_t n);  // of a vector that the kernel has accepted already

// Can the kernel read 8 bytes there? For addresses that it would have looked at, where a load would kill the program.
bool readable(const void* p);

inline uint32_t handlers_run(Fiber* f) { return f->signals_taken.load(std::memory_order_relaxed); }

// For cancellation points, first of all: fiber_here(), and a cancellation that was asked for before ends the thread here,
// whether the call would wait or not, and whatever its arguments.
inline Fiber* fiber_at_point() {
  Fiber* f = fiber_here();
  if (f != nullptr && cancel_due(f)) cancel_here();
  return f;
}

// While the worker itself is in the kernel for a cancellation point, a cancellation unwinds from the signal, as in glibc.
class AsyncCancel {
 public:
  explicit AsyncCancel(Fiber* f) : word_(f->cancel_word) {
    mine_ = (__atomic_fetch_or(word_, kCancelAsync, __ATOMIC_SEQ_CST) & kCancelAsync) == 0;
    if (cancel_due(f)) cancel_here();
  }
  ~AsyncCancel() {
    if (mine_) __atomic_fetch_and(word_, ~kCancelAsync, __ATOMIC_SEQ_CST);
  }
  AsyncCancel(const AsyncCancel&) = delete;
  AsyncCancel& operator=(const AsyncCancel&) = delete;

 private:
  int* word_;
  bool mine_;
};

// A call by number is no cancellation point, though the hook is that does it.
class NoCancel {
 public:
  explicit NoCancel(Fiber* f) : fiber_(f) {
    mine_ = (__atomic_load_n(f->cancel_word, __ATOMIC_RELAXED) & kCancelAsync) == 0;
    if (mine_) f->no_cancel++;
  }
  ~NoCancel() {
    if (mine_ && fiber_->no_cancel != 0)
      fiber_->no_cancel--;  // 0: a handler left by longjmp and came back here
  }
  NoCancel(const NoCancel&) = delete;
  NoCancel& operator=(const NoCancel&) = delete;

 private:
  Fiber* fiber_;
  bool mine_;
};

// A system call that the worker makes itself. The completion of another fiber's request makes some return -EINTR
// (DESIGN D3, "But"): they are repeated unless a handler of this fiber ran. `call` takes care of the time that is left.
template <class Call>
long native_call(Fiber* f, const char* name, Call call) {
  uint32_t taken = handlers_run(f);
  for (;;) {
    long r;
    {
      NativeCall mark(f, name);
      r = call();
    }
    if (r != -EINTR || handlers_run(f) != taken) return r;
  }
}
// The same for a cancellation point.
template <class Call>
long native_point(Fiber* f, const char* name, Call call) {
  return native_call(f, name, [&] {
    AsyncCancel async(f);
    return call();
  });
}

}  // namespace vthr
