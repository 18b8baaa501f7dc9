// What the blocking hooks share: what kind of file a descriptor is, time-outs of sockets, and the loop around one
// request (DESIGN D5: try, park, retry).
#pragma once
#include <sys/uio.h>

#include "interpose/enter.h"
#include "interpose/thread.h"

namespace vthr {

// A hint per descriptor, never trusted: descriptors are reused without our seeing it. A wrong one costs a system call.
enum class FdKind : uint8_t { unknown, socket, stream, file };
FdKind fd_hint(int fd);
void fd_set_hint(int fd, FdKind kind);
void fd_forget(int fd);

// Is O_NONBLOCK set on the open file? Asked only when a try would have blocked.
bool fd_nonblocking(int fd);

// The time-out of a socket as a deadline; kNever when none. optname SO_RCVTIMEO or SO_SNDTIMEO. Costs nothing while
// no socket of the process ever had one.
int64_t socket_deadline(int fd, int optname);
void note_socket_timeouts();       // some socket has one: ask each time from now on
void blocking_scan_inherited();    // start, one thread: did our parent leave us a socket with a time-out?

// One request that waits for `fd`; result or -errno. A signal whose handlers all had SA_RESTART starts it again, unless
// there is a deadline (signal(7)); -ETIMEDOUT when the deadline passed.
long wait_request(Fiber* f, const Request& r, Reason reason, int64_t deadline);

// Before `fd` is closed or replaced: requests that name it by number must have reached the kernel.
void settle_requests(Fiber* f, int fd);

// EPIPE: the signal that the kernel would have sent to the writing thread. `consume`: it left one pending on the worker.
void sigpipe(Fiber* f, bool consume);

// A copy of a vector without its first `skip` bytes, at most kVectorChunk entries of it; returns their number.
constexpr int kVectorChunk = 64;
int vector_rest(const iovec* iov, size_t n, size_t skip, iovec* out);
size_t vector_bytes(const iovec* iov, size_t n);

}  // namespace vthr
