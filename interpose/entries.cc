#include "interpose/entries.h"

#include <pthread.h>
#include <cerrno>

#include "interpose/mutex.h"

#define HOOK_NAMED(name) extern "C" __attribute__((visibility("hidden"))) decltype(name) hook_##name
HOOK_NAMED(read);
HOOK_NAMED(write);
HOOK_NAMED(readv);
HOOK_NAMED(writev);
HOOK_NAMED(recv);
HOOK_NAMED(recvfrom);
HOOK_NAMED(recvmsg);
HOOK_NAMED(recvmmsg);
HOOK_NAMED(send);
HOOK_NAMED(sendto);
HOOK_NAMED(sendmsg);
HOOK_NAMED(sendmmsg);
HOOK_NAMED(connect);
HOOK_NAMED(accept);
HOOK_NAMED(accept4);
HOOK_NAMED(poll);
HOOK_NAMED(ppoll);
HOOK_NAMED(select);
HOOK_NAMED(pselect);
HOOK_NAMED(epoll_wait);
HOOK_NAMED(epoll_pwait);
HOOK_NAMED(epoll_pwait2);
HOOK_NAMED(clock_nanosleep);
HOOK_NAMED(sched_yield);

namespace vthr {

// glibc's own way, by its public name: while the call lasts cancellation is asynchronous, so that a pthread_cancel that
// came before acts now and one that comes later ends the sleep. Its handler unwinds from here through the callers.
VTHR_NOINLINE long cancellable(long nr, long a, long b, long c, long d, long e, long f) {
  int type = 0;
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  long r = sys_call(nr, a, b, c, d, e, f);
  pthread_setcanceltype(type, &type);
  return r;
}

namespace {

// A fiber that reads or writes without being a cancellation point. No object with a destructor: a handler of the program
// may leave by pthread_exit.
template <class F>
ssize_t without_cancel(F call) {
  int state = 0;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  ssize_t r = call();
  pthread_setcancelstate(state, &state);
  return r;
}

int to_int(long r) { return static_cast<int>(libc_result(r)); }
long len(size_t n) { return static_cast<long>(n); }

}  // namespace

// ---- read and write ----

ssize_t entry_read(int fd, void* buf, size_t n) {
  if (fiber_here() != nullptr) return hook_read(fd, buf, n);
  return libc_result(cancellable(SYS_read, fd, sys_arg(buf), len(n)));
}

ssize_t entry_write(int fd, const void* buf, size_t n) {
  if (fiber_here() != nullptr) return hook_write(fd, buf, n);
  return libc_result(cancellable(SYS_write, fd, sys_arg(buf), len(n)));
}

ssize_t entry_readv(int fd, const iovec* iov, int n) {
  if (fiber_here() != nullptr) return hook_readv(fd, iov, n);
  return libc_result(cancellable(SYS_readv, fd, sys_arg(iov), n));
}

ssize_t entry_writev(int fd, const iovec* iov, int n) {
  if (fiber_here() != nullptr) return hook_writev(fd, iov, n);
  return libc_result(cancellable(SYS_writev, fd, sys_arg(iov), n));
}

ssize_t entry_read_nocancel(int fd, void* buf, size_t n) {
  if (fiber_here() != nullptr) return without_cancel([=] { return hook_read(fd, buf, n); });
  return libc_result(sys_call(SYS_read, fd, sys_arg(buf), len(n)));
}

ssize_t entry_write_nocancel(int fd, const void* buf, size_t n) {
  if (fiber_here() != nullptr) return without_cancel([=] { return hook_write(fd, buf, n); });
  return libc_result(sys_call(SYS_write, fd, sys_arg(buf), len(n)));
}

// ---- sockets ----

ssize_t entry_recv(int fd, void* buf, size_t n, int flags) {
  if (fiber_here() != nullptr) return hook_recv(fd, buf, n, flags);
  return libc_result(cancellable(SYS_recvfrom, fd, sys_arg(buf), len(n), flags));
}

ssize_t entry_recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* from, socklen_t* from_len) {
  if (fiber_here() != nullptr) return hook_recvfrom(fd, buf, n, flags, from, from_len);
  return libc_result(
      cancellable(SYS_recvfrom, fd, sys_arg(buf), len(n), flags, sys_arg(from), sys_arg(from_len)));
}

ssize_t entry_recvmsg(int fd, msghdr* m, int flags) {
  if (fiber_here() != nullptr) return hook_recvmsg(fd, m, flags);
  return libc_result(cancellable(SYS_recvmsg, fd, sys_arg(m), flags));
}

int entry_recvmmsg(int fd, mmsghdr* v, unsigned n, int flags, timespec* limit) {
  if (fiber_here() != nullptr) return hook_recvmmsg(fd, v, n, flags, limit);
  return to_int(cancellable(SYS_recvmmsg, fd, sys_arg(v), n, flags, sys_arg(limit)));
}

ssize_t entry_send(int fd, const void* buf, size_t n, int flags) {
  if (fiber_here() != nullptr) return hook_send(fd, buf, n, flags);
  return libc_result(cancellable(SYS_sendto, fd, sys_arg(buf), len(n), flags));
}

ssize_t entry_sendto(int fd, const void* buf, size_t n, int flags, const sockaddr* to, socklen_t to_len) {
  if (fiber_here() != nullptr) return hook_sendto(fd, buf, n, flags, to, to_len);
  return libc_result(cancellable(SYS_sendto, fd, sys_arg(buf), len(n), flags, sys_arg(to), to_len));
}

ssize_t entry_sendmsg(int fd, const msghdr* m, int flags) {
  if (fiber_here() != nullptr) return hook_sendmsg(fd, m, flags);
  return libc_result(cancellable(SYS_sendmsg, fd, sys_arg(m), flags));
}

int entry_sendmmsg(int fd, mmsghdr* v, unsigned n, int flags) {
  if (fiber_here() != nullptr) return hook_sendmmsg(fd, v, n, flags);
  return to_int(cancellable(SYS_sendmmsg, fd, sys_arg(v), n, flags));
}

int entry_connect(int fd, const sockaddr* addr, socklen_t n) {
  if (fiber_here() != nullptr) return hook_connect(fd, addr, n);
  return to_int(cancellable(SYS_connect, fd, sys_arg(addr), n));
}

int entry_accept(int fd, sockaddr* addr, socklen_t* n) {
  if (fiber_here() != nullptr) return hook_accept(fd, addr, n);
  return to_int(cancellable(SYS_accept, fd, sys_arg(addr), sys_arg(n)));
}

int entry_accept4(int fd, sockaddr* addr, socklen_t* n, int flags) {
  if (fiber_here() != nullptr) return hook_accept4(fd, addr, n, flags);
  return to_int(cancellable(SYS_accept4, fd, sys_arg(addr), sys_arg(n), flags));
}

// ---- poll and its kin: the kernel's set of signals has 8 bytes; it writes what is left of a time limit, where libc's
// functions leave the caller's alone (but for select) ----

int entry_poll(pollfd* fds, nfds_t n, int ms) {
  if (fiber_here() != nullptr) return hook_poll(fds, n, ms);
  return to_int(cancellable(SYS_poll, sys_arg(fds), len(n), ms));
}

int entry_ppoll(pollfd* fds, nfds_t n, const timespec* limit, const sigset_t* mask) {
  if (fiber_here() != nullptr) return hook_ppoll(fds, n, limit, mask);
  timespec left{};
  if (limit != nullptr) left = *limit;
  return to_int(
      cancellable(SYS_ppoll, sys_arg(fds), len(n), limit != nullptr ? sys_arg(&left) : 0, sys_arg(mask), 8));
}

int entry_select(int n, fd_set* in, fd_set* out, fd_set* ex, timeval* limit) {
  if (fiber_here() != nullptr) return hook_select(n, in, out, ex, limit);
  return to_int(cancellable(SYS_select, n, sys_arg(in), sys_arg(out), sys_arg(ex), sys_arg(limit)));
}

int entry_pselect(int n, fd_set* in, fd_set* out, fd_set* ex, const timespec* limit, const sigset_t* mask) {
  if (fiber_here() != nullptr) return hook_pselect(n, in, out, ex, limit, mask);
  timespec left{};
  if (limit != nullptr) left = *limit;
  struct {
    const sigset_t* set;
    size_t size;
  } sixth{mask, 8};
  return to_int(cancellable(SYS_pselect6, n, sys_arg(in), sys_arg(out), sys_arg(ex),
                            limit != nullptr ? sys_arg(&left) : 0, sys_arg(&sixth)));
}

int entry_epoll_wait(int ep, epoll_event* events, int most, int ms) {
  if (fiber_here() != nullptr) return hook_epoll_wait(ep, events, most, ms);
  return to_int(cancellable(SYS_epoll_wait, ep, sys_arg(events), most, ms));
}

int entry_epoll_pwait(int ep, epoll_event* events, int most, int ms, const sigset_t* mask) {
  if (fiber_here() != nullptr) return hook_epoll_pwait(ep, events, most, ms, mask);
  return to_int(cancellable(SYS_epoll_pwait, ep, sys_arg(events), most, ms, sys_arg(mask), 8));
}

int entry_epoll_pwait2(int ep, epoll_event* events, int most, const timespec* limit, const sigset_t* mask) {
  if (fiber_here() != nullptr) return hook_epoll_pwait2(ep, events, most, limit, mask);
  return to_int(cancellable(SYS_epoll_pwait2, ep, sys_arg(events), most, sys_arg(limit), sys_arg(mask), 8));
}

// ---- time ----

int entry_clock_nanosleep(clockid_t clock, int flags, const timespec* req, timespec* rem) {
  if (fiber_here() != nullptr) return hook_clock_nanosleep(clock, flags, req, rem);
  if (clock == CLOCK_THREAD_CPUTIME_ID) return EINVAL;
  return static_cast<int>(-cancellable(SYS_clock_nanosleep, clock, flags, sys_arg(req), sys_arg(rem)));
}

int entry_sched_yield() {
  if (fiber_here() != nullptr) return hook_sched_yield();
  return static_cast<int>(sys_call(SYS_sched_yield));
}

// ---- libc's low-level lock ----
//
// Its word, as libc's inline code uses it:
//   0 -> 1    lock (acquire)
//   any -> 2  a waiter that is about to sleep (acquire when the old value was 0): who gets it this way leaves it at 2,
//             because others may still wait
//   any -> 0  unlock (release); whoever unlocks a 2 wakes one waiter
// Fibers wait in the parking lot, all other threads, also a fiber around vfork and fork, in the kernel; any unlock may have
// to wake either. Whoever is woken takes the lock as 2 or finds a new holder whom it makes unlock a 2: so a wake-up of one
// kind of waiter is passed on to the other. A fiber woken never means that a thread was not, though, or a busy lock
// would leave the threads asleep: if any sleeps in the kernel both are woken.
// Pairs (Dekker): the unlocker's exchange of the word, then its look at kernel_sleepers; the sleeper counts itself, then the
// kernel looks at the word. In the parking lot the bucket lock does the same.
//
// A mutex of the program that libc's own code locks (RTLD_DEEPBIND) has our states (mutex.cc) and meets our code: its
// kYielding is free.

namespace {

constexpr int kUnlocked = 0, kWaiters = 2, kUnlockedTurn = 3;
std::atomic<int> kernel_sleepers{0};  // in a forked child perhaps too many: costs a system call a wake-up

bool held(int was) { return was != kUnlocked && was != kUnlockedTurn; }

bool still_waited_for(const void* key, void*) {
  return __atomic_load_n(static_cast<const int*>(key), __ATOMIC_RELAXED) == kWaiters;
}
void park_on_word(int* word) {
  ParkArgs args;
  args.reason = Reason::libc_lock;
  args.still = still_waited_for;
  args.deaf = waits_deaf();
  if (park_uncancelled(word, args) == Wake::cancelled) park_uncancelled(word, args);
}

bool may_park() {
  Fiber* f = fiber_here();
  return f != nullptr && f->in_runtime.load(std::memory_order_relaxed) == 0;
}

void sleep_in_kernel(int* word) {
  kernel_sleepers.fetch_add(1, std::memory_order_seq_cst);
  sys_futex_wait(word, kWaiters);
  kernel_sleepers.fetch_sub(1, std::memory_order_relaxed);
}

bool taken(int* word) { return !held(__atomic_exchange_n(word, kWaiters, __ATOMIC_ACQUIRE)); }

}  // namespace

void entry_lock_wait_private(int* word) {
  while (!taken(word)) may_park() ? park_on_word(word) : sleep_in_kernel(word);
}

void entry_lock_wake_private(int* word) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  size_t woken = runtime_alive() ? unpark_one(word) : 0;
  if (woken == 0 || kernel_sleepers.load(std::memory_order_relaxed) != 0) sys_futex_wake(word);
  if (woken != 0 && may_park()) step_aside(word);
}

// The word of a mutex. shared: FUTEX_PRIVATE_FLAG (128) when other processes use it too, else 0. Our own unlock of a mutex
// looks for waiters in the parking lot only, so everybody waits there.
void entry_lock_wait(int* word, int shared) {
  if (VTHR_LIKELY(shared == 0)) {
    while (!taken(word)) park_on_word(word);
    return;
  }
  while (__atomic_exchange_n(word, kWaiters, __ATOMIC_ACQUIRE) != kUnlocked)
    sys_call(SYS_futex, sys_arg(word), FUTEX_WAIT, kWaiters, 0);
}

void entry_lock_wake(int* word, int shared) {
  if (VTHR_UNLIKELY(shared != 0)) {
    sys_call(SYS_futex, sys_arg(word), FUTEX_WAKE, 1);
    return;
  }
  if (unpark_one(word) == 0) {
    sys_futex_wake(word);  // who came by pthread_mutex_timedlock of libc
  } else if (may_park()) {
    step_aside(word);
  }
}

}  // namespace vthr
