// syscall(2) and gettid: what programs ask of the kernel by number. Above all futex, on which Rust, OpenJDK, libstdc++
// and many others build their locks: private futexes wait in the parking lot.
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>

#include "interpose/blocking.h"
#include "interpose/mutex.h"
#include "interpose/native.h"

namespace vthr {

namespace {

// futex(2)'s arguments by their names in the manual page; val2 is the time-out of other operations.
struct Futex {
  const uint32_t* uaddr;
  int op;
  uint32_t val;
  long val2;
  const uint32_t* uaddr2;
  uint32_t val3;

  const timespec* timeout() const { return reinterpret_cast<const timespec*>(val2); }
  // The kernel's own answer: for operations that are not ours, for mistakes, which it does not wait for, and for waiters
  // that sleep in the kernel (by an inline instruction, futex_waitv, from before the runtime started).
  long kernel() const { return sys_call(SYS_futex, sys_arg(uaddr), op, val, val2, sys_arg(uaddr2), val3); }
};

bool aligned(const void* p) { return (reinterpret_cast<uintptr_t>(p) & 3) == 0; }
uint32_t value_of(const void* p) {
  return __atomic_load_n(static_cast<const uint32_t*>(p), __ATOMIC_SEQ_CST);
}

// Can *p be read? The kernel answers EFAULT where a load would kill the program. Asking it costs as much as a wait, so
// pages that it said yes to are remembered; one that was unmapped since is the program's bug, natively too a rare one.
constexpr size_t kPages = 256;
std::atomic<uintptr_t> readable_pages[kPages];
bool readable(const uint32_t* p) {
  uintptr_t page = reinterpret_cast<uintptr_t>(p) / kPage;
  std::atomic<uintptr_t>& slot = readable_pages[page % kPages];
  if (VTHR_LIKELY(page != 0 && slot.load(std::memory_order_relaxed) == page)) return true;
  // compares *p with 0 and, equal or not, neither wakes nor moves anybody
  if (sys_call(SYS_futex, sys_arg(p), FUTEX_CMP_REQUEUE_PRIVATE, 0, 0, sys_arg(p), 0) == -EFAULT)
    return false;
  slot.store(page, std::memory_order_relaxed);
  return true;
}

// FUTEX_WAIT (relative time) and FUTEX_WAIT_BITSET (absolute).
long futex_wait(const Futex& x, bool relative, uint32_t bits) {
  const timespec* t = x.timeout();
  if (!aligned(x.uaddr) || bits == 0) return x.kernel();
  if (t != nullptr && (reinterpret_cast<uintptr_t>(t) < kPage || t->tv_sec < 0 || !valid_nsec(t)))
    return x.kernel();
  if (!readable(x.uaddr)) return -EFAULT;
  if (value_of(x.uaddr) != x.val) return -EAGAIN;
  Until until{(x.op & FUTEX_CLOCK_REALTIME) != 0 ? CLOCK_REALTIME : CLOCK_MONOTONIC, t};
  uint32_t val = x.val;
  ParkArgs args;
  args.reason = Reason::futex;
  args.still = [](const void* key, void* arg) { return value_of(key) == *static_cast<uint32_t*>(arg); };
  args.still_arg = &val;
  args.deadline = relative ? deadline_in(t) : until.deadline();
  args.tag = bits;
  Fiber* f = fiber_here();
  for (;;) {
    switch (park_uncancelled(x.uaddr, args)) {
      case Wake::woken:
        return 0;
      case Wake::invalid:
        return -EAGAIN;
      case Wake::timed_out:
        if (relative || until.over()) return -ETIMEDOUT;
        args.deadline = until.deadline();
        break;
      case Wake::interrupted:
        // The kernel restarts waits without a time-out only; it has done so already for a foreign thread.
        if (f == nullptr || t != nullptr || !signal_restarts(f)) return -EINTR;
        break;
      case Wake::cancelled:
        break;
    }
  }
}

// At least one, as the kernel does for counts below 1.
size_t wake_count(long n) { return n < 1 ? 1 : static_cast<size_t>(n); }

long futex_wake(Futex x, uint32_t bits) {
  if (!aligned(x.uaddr) || bits == 0) return x.kernel();
  size_t most = wake_count(static_cast<int>(x.val)), n = unpark_some(x.uaddr, most, bits);
  long r = 0;
  if (n < most) {
    x.val = static_cast<uint32_t>(most - n);
    r = x.kernel();
  }
  if (n != 0) step_aside(x.uaddr);
  return r >= 0 ? static_cast<long>(n) + r : n != 0 ? static_cast<long>(n) : r;
}

long futex_requeue(const Futex& x, bool compare) {
  int wake = static_cast<int>(x.val), move = static_cast<int>(x.val2);
  if (!aligned(x.uaddr) || !aligned(x.uaddr2) || wake < 0 || move < 0) return x.kernel();
  if (compare && !readable(x.uaddr)) return -EFAULT;
  uint32_t val = x.val3;
  auto* still = +[](const void* key, void* arg) { return value_of(key) == *static_cast<uint32_t*>(arg); };
  size_t most = x.uaddr == x.uaddr2 ? 0 : static_cast<size_t>(move);  // to itself: they are there already
  long n =
      unpark_requeue(x.uaddr, static_cast<size_t>(wake), x.uaddr2, most, compare ? still : nullptr, &val);
  return n < 0 ? -EAGAIN : n;
}

// What FUTEX_WAKE_OP does to *uaddr2; false: no such operation or comparison.
bool wake_op(uint32_t* p, uint32_t encoded, bool* compared) {
  auto signed12 = [](uint32_t v) { return static_cast<int32_t>(v << 20) >> 20; };
  uint32_t op = encoded >> 28 & 7, cmp = encoded >> 24 & 15;
  int32_t arg = signed12(encoded >> 12), limit = signed12(encoded);
  if ((encoded >> 28 & FUTEX_OP_OPARG_SHIFT) != 0) arg = static_cast<int32_t>(1u << (arg & 31));
  if (op > FUTEX_OP_XOR || cmp > FUTEX_OP_CMP_GE) return false;
  auto v = static_cast<uint32_t>(arg);
  uint32_t was = op == FUTEX_OP_SET    ? __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST)
                 : op == FUTEX_OP_ADD  ? __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST)
                 : op == FUTEX_OP_OR   ? __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST)
                 : op == FUTEX_OP_ANDN ? __atomic_fetch_and(p, ~v, __ATOMIC_SEQ_CST)
                                       : __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST);
  auto old = static_cast<int32_t>(was);
  *compared = cmp == FUTEX_OP_CMP_EQ   ? old == limit
              : cmp == FUTEX_OP_CMP_NE ? old != limit
              : cmp == FUTEX_OP_CMP_LT ? old < limit
              : cmp == FUTEX_OP_CMP_LE ? old <= limit
              : cmp == FUTEX_OP_CMP_GT ? old > limit
                                       : old >= limit;
  return true;
}

long futex_wake_op(const Futex& x) {
  if (!aligned(x.uaddr) || !aligned(x.uaddr2)) return x.kernel();
  if (!readable(x.uaddr2)) return -EFAULT;
  bool compared = false;
  if (!wake_op(const_cast<uint32_t*>(x.uaddr2), x.val3, &compared)) return -ENOSYS;
  size_t n = unpark_some(x.uaddr, wake_count(static_cast<int>(x.val)));
  if (compared) n += unpark_some(x.uaddr2, wake_count(static_cast<int>(x.val2)));
  return static_cast<long>(n);
}

long futex(const Futex& x) {
  int op = x.op & ~(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME);
  bool ours =
      (x.op & FUTEX_PRIVATE_FLAG) != 0 && ((x.op & FUTEX_CLOCK_REALTIME) == 0 || op == FUTEX_WAIT_BITSET);
  if (!ours) return pinned("futex", [&x] { return x.kernel(); });
  switch (op) {
    case FUTEX_WAIT:
      return futex_wait(x, true, ~0u);
    case FUTEX_WAIT_BITSET:
      return futex_wait(x, false, x.val3);
    case FUTEX_WAKE:
      return futex_wake(x, ~0u);
    case FUTEX_WAKE_BITSET:
      return futex_wake(x, x.val3);
    case FUTEX_REQUEUE:
      return futex_requeue(x, false);
    case FUTEX_CMP_REQUEUE:
      return futex_requeue(x, true);
    case FUTEX_WAKE_OP:
      return futex_wake_op(x);
    default:  // priority inheritance needs the kernel
      return pinned("futex", [&x] { return x.kernel(); });
  }
}

template <class T>
T* ptr(long v) {
  return reinterpret_cast<T*>(v);
}

// The kernel's signal sets are eight bytes, glibc's are 128.
const sigset_t* full_set(const void* kernel_set, sigset_t* full) {
  if (kernel_set == nullptr) return nullptr;
  sigemptyset(full);
  __builtin_memcpy(full, kernel_set, 8);
  return full;
}

long change_mask(int how, const void* set, void* old) {
  sigset_t in, out;
  int err = pthread_sigmask(how, full_set(set, &in), &out);
  if (err != 0) return -err;
  if (old != nullptr) __builtin_memcpy(old, &out, 8);
  return 0;
}

// Calls of a fiber that have a hook go there: they must park as if called by name. -1 with errno set, as the hooks.
// *other: no such number.
long by_name(Fiber* self, bool* other, long nr, long a, long b, long c, long d, long e, long f) {
  auto i = [](long v) { return static_cast<int>(v); };
  auto n = [](long v) { return static_cast<size_t>(v); };
  sigset_t set;
  switch (nr) {
    case SYS_gettid:
      return self->tid;
    case SYS_read:
      return read(i(a), ptr<void>(b), n(c));
    case SYS_write:
      return write(i(a), ptr<void>(b), n(c));
    case SYS_readv:
      return readv(i(a), ptr<iovec>(b), i(c));
    case SYS_writev:
      return writev(i(a), ptr<iovec>(b), i(c));
    case SYS_recvfrom:
      return recvfrom(i(a), ptr<void>(b), n(c), i(d), ptr<sockaddr>(e), ptr<socklen_t>(f));
    case SYS_sendto:
      return sendto(i(a), ptr<void>(b), n(c), i(d), ptr<sockaddr>(e), static_cast<socklen_t>(f));
    case SYS_recvmsg:
      return recvmsg(i(a), ptr<msghdr>(b), i(c));
    case SYS_sendmsg:
      return sendmsg(i(a), ptr<msghdr>(b), i(c));
    case SYS_recvmmsg:
      return recvmmsg(i(a), ptr<mmsghdr>(b), static_cast<unsigned>(c), i(d), ptr<timespec>(e));
    case SYS_sendmmsg:
      return sendmmsg(i(a), ptr<mmsghdr>(b), static_cast<unsigned>(c), i(d));
    case SYS_sendfile:
      return sendfile(i(a), i(b), ptr<off_t>(c), n(d));
    case SYS_getrandom:
      return getrandom(ptr<void>(a), n(b), static_cast<unsigned>(c));
    case SYS_semop:
      return semop(i(a), ptr<sembuf>(b), n(c));
    case SYS_semtimedop:
      return semtimedop(i(a), ptr<sembuf>(b), n(c), ptr<timespec>(d));
    case SYS_rt_sigtimedwait:
      if (d == 8)
        return libc_result(wait_for_signal(self, ptr<void>(a), ptr<siginfo_t>(b), ptr<timespec>(c)));
      break;
    case SYS_rt_sigsuspend:
      if (b == 8) return libc_result(suspend_fiber(self, ptr<void>(a)));
      break;
    case SYS_pause:
      return pause();
    case SYS_sigaltstack:
      return libc_result(altstack_fiber(self, ptr<void>(a), ptr<void>(b)));
    case SYS_rt_sigpending:
      if (b == 8) {
        *ptr<uint64_t>(a) = pending_of(self);
        return 0;
      }
      break;
    case SYS_kill:
      return kill(i(a), i(b));
    case SYS_io_getevents:
    case SYS_io_pgetevents:
      return libc_result(native_io_getevents(self, nr, a, b, c, d, e, f));
    case SYS_connect:
      return connect(i(a), ptr<sockaddr>(b), static_cast<socklen_t>(c));
    case SYS_accept:
      return accept(i(a), ptr<sockaddr>(b), ptr<socklen_t>(c));
    case SYS_accept4:
      return accept4(i(a), ptr<sockaddr>(b), ptr<socklen_t>(c), i(d));
    case SYS_shutdown:
      return shutdown(i(a), i(b));
    case SYS_poll:
      return poll(ptr<pollfd>(a), static_cast<nfds_t>(b), i(c));
    case SYS_ppoll:
      return ppoll(ptr<pollfd>(a), static_cast<nfds_t>(b), ptr<timespec>(c), full_set(ptr<void>(d), &set));
    case SYS_select:
      return select(i(a), ptr<fd_set>(b), ptr<fd_set>(c), ptr<fd_set>(d), ptr<timeval>(e));
    case SYS_epoll_wait:
      return epoll_wait(i(a), ptr<epoll_event>(b), i(c), i(d));
    case SYS_epoll_pwait:
      return epoll_pwait(i(a), ptr<epoll_event>(b), i(c), i(d), full_set(ptr<void>(e), &set));
    case SYS_epoll_pwait2:
      return epoll_pwait2(i(a), ptr<epoll_event>(b), i(c), ptr<timespec>(d), full_set(ptr<void>(e), &set));
    case SYS_nanosleep:
      return nanosleep(ptr<timespec>(a), ptr<timespec>(b));
    case SYS_clock_nanosleep:
      return libc_result(-clock_nanosleep(i(a), i(b), ptr<timespec>(c), ptr<timespec>(d)));
    case SYS_sched_yield:
      return sched_yield();
    case SYS_wait4:
    case SYS_waitid:
      return libc_result(child_by_number(self, nr, a, b, c, d, e));
    case SYS_rt_sigprocmask:  // the worker's mask is not the fiber's
      if (e == 0 && d == 8) return libc_result(change_mask(i(a), ptr<void>(b), ptr<void>(c)));
      break;
    case SYS_exit:  // it would end the worker
      pthread_exit(nullptr);
    case SYS_exit_group:
      _exit(i(a));
    default:
      break;
  }
  *other = true;
  return 0;
}

// Any thread could close a descriptor of the runtime.
bool closes(long nr) { return nr == SYS_close || nr == SYS_dup2 || nr == SYS_dup3 || nr == SYS_close_range; }
long close_by_number(long nr, long a, long b, long c) {
  int x = static_cast<int>(a), y = static_cast<int>(b), z = static_cast<int>(c);
  switch (nr) {
    case SYS_close:
      return close(x);
    case SYS_dup2:
      return dup2(x, y);
    case SYS_dup3:
      return dup3(x, y, z);
    default:
      return close_range(static_cast<unsigned>(a), static_cast<unsigned>(b), z);
  }
}

// tkill and tgkill with a fiber's id; *other: not one.
long kill_by_tid(bool* other, long nr, long a, long b, long c) {
  int tid = static_cast<int>(nr == SYS_tkill ? a : b), sig = static_cast<int>(nr == SYS_tkill ? b : c);
  if (tid < kFirstTid) {
    *other = true;
    return 0;
  }
  if (nr == SYS_tgkill && a != sys_call(SYS_getpid)) return -ESRCH;
  return kill_fiber_tid(tid, sig);
}

}  // namespace

}  // namespace vthr

using namespace vthr;

// long syscall(long nr, ...): the callers put six arguments where a function without "..." finds them. The sixth is on the
// stack, where something always is.
extern "C" __attribute__((visibility("default"))) long syscall_hook(long nr, long a, long b, long c, long d,
                                                                    long e, long f) __asm__("syscall");
extern "C" long syscall_hook(long nr, long a, long b, long c, long d, long e, long f) {
  bool other = false;
  if (nr == SYS_gettid) return gettid();
  if (VTHR_LIKELY(native_now() == 0 && sched_running())) {
    if (VTHR_LIKELY(nr == SYS_futex)) {
      return libc_result(futex({ptr<uint32_t>(a), static_cast<int>(b), static_cast<uint32_t>(c), d,
                                ptr<uint32_t>(e), static_cast<uint32_t>(f)}));
    }
    Fiber* self = fiber_here();
    if (nr == SYS_tkill || nr == SYS_tgkill) {
      long r = kill_by_tid(&other, nr, a, b, c);
      if (!other) return libc_result(r);
    } else if (nr == SYS_rt_sigaction) {
      return libc_result(
          action_by_number(static_cast<int>(a), ptr<void>(b), ptr<void>(c), static_cast<size_t>(d)));
    } else if (closes(nr)) {
      if (self == nullptr) return close_by_number(nr, a, b, c);
      NoCancel no_cancel(self);
      return close_by_number(nr, a, b, c);
    } else if (self != nullptr) {
      NoCancel no_cancel(self);
      long r = by_name(self, &other, nr, a, b, c, d, e, f);
      if (!other) return r;
    }
  }
  return libc_result(sys_call(nr, a, b, c, d, e, f));
}

VTHR_EXPORT pid_t gettid() noexcept {
  Fiber* f = current;  // not fiber_here(): a bound fiber keeps its id
  return f != nullptr && runtime_alive() ? f->tid : sys_gettid();
}
