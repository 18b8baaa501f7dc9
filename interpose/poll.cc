// poll, select, epoll_wait and their kin. The kernel's own call with no time to wait decides what is ready, before and
// after each wait, so results, errors and revents are its own; waiting is one POLL_ADD a descriptor on the engine.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>

#include "interpose/blocking.h"
#include "interpose/entries.h"

extern "C" {
int __poll(pollfd* fds, nfds_t n, int ms);
int __poll_chk(pollfd* fds, nfds_t n, int ms, size_t fdslen);
int __ppoll_chk(pollfd* fds, nfds_t n, const timespec* limit, const sigset_t* mask, size_t fdslen);
int __select(int n, fd_set* in, fd_set* out, fd_set* ex, timeval* limit);
void __chk_fail(void) __attribute__((noreturn));
}

namespace vthr {

namespace {

constexpr uint32_t kFew = 32;     // more requests than these live in a mapping: stacks may have 16 KiB
constexpr size_t kFewWords = 16;  // an fd_set

void deliver_due(Fiber* f) {
  if ((f->pending.load(std::memory_order_seq_cst) & ~f->sigmask.load(std::memory_order_relaxed)) != 0)
    deliver_signals(f);
}

// No handler may run between the look at `taken` and the wait, which itself looks at what is pending: else the flag
// that a handler set, or the byte that it wrote to an EPOLLET pipe, would be slept over. False: one ran already.
// True: the caller enters the runtime next.
bool hold_signals(Fiber* f, uint32_t taken) {
  f->in_runtime.store(1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (handlers_run(f) == taken) return true;
  f->in_runtime.store(0, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  deliver_due(f);
  return false;
}

// The POLL_ADD requests of one call.
class Watch {
 public:
  explicit Watch(Reason reason) : reason_(reason) {}
  ~Watch() {
    if (mapped_ != 0) sys_unmap(requests_, mapped_);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  bool reserve(size_t n) {
    if (n <= kFew) return true;
    if (n > UINT32_MAX) return false;
    mapped_ = round_up(n * (sizeof(Request) + sizeof(Op)), kPage);
    void* p = sys_map(mapped_);
    if (p == nullptr) {
      mapped_ = 0;
      return false;
    }
    requests_ = static_cast<Request*>(p);
    ops_ = reinterpret_cast<Op*>(requests_ + n);
    return true;
  }
  void add(int fd, uint32_t events) {
    Request* r = new (&requests_[n_++]) Request;
    r->code = IORING_OP_POLL_ADD;
    r->fd = fd;
    r->flags = events;
  }

  // Waits until something may be ready. try_now: the kernel's call with no time to wait; its result when not 0 is ours.
  template <class Try>
  long wait(Fiber* f, int64_t deadline, uint32_t taken, Try try_now) {
    int64_t nap = kMilli;
    for (;;) {
      int64_t until = deadline;
      if (quiet_) {
        int64_t look_again = deadline_after(now_ns(), nap);
        if (look_again < until) until = look_again;
        if (nap < 16 * kMilli) nap *= 2;
      }
      if (!hold_signals(f, taken)) return -EINTR;
      long res = one_wait(f, until);
      if (res == -ENOMEM || (res == -ECANCELED && cancel_due(f))) return res;
      long got = try_now();
      if (got != 0) return got;
      if (handlers_run(f) != taken) return -EINTR;
      if (deadline != kNever && now_ns() >= deadline) return 0;
      if (res == 0) drop_false_alarms();
    }
  }

 private:
  long one_wait(Fiber* f, int64_t until) {
    if (n_ == 0) return op_sleep(f, reason_, until);
    for (uint32_t i = 0; i < n_; i++) new (&ops_[i]) Op;
    return op_wait_any(f, requests_, ops_, n_, reason_, until);
  }

  // POLL_ADD always ends on ERR, HUP and RDHUP. poll does not report RDHUP unasked, nor select a HUP to those that
  // only write: such a state lasts, and waiting for it again would spin. Those descriptors are looked at now and then.
  void drop_false_alarms() {
    for (uint32_t i = 0; i < n_;) {
      if (!ops_[i].done ||
          (ops_[i].res >= 0 && (static_cast<uint32_t>(ops_[i].res) & reported(requests_[i].flags)) != 0)) {
        i++;
        continue;
      }
      quiet_ = true;
      n_--;
      requests_[i] = requests_[n_];
      ops_[i] = ops_[n_];
    }
  }
  uint32_t reported(uint32_t events) const {
    if (reason_ != Reason::select) return events | POLLERR | POLLHUP | POLLNVAL;
    return events | POLLNVAL | ((events & POLLIN) != 0 ? POLLHUP | POLLERR : 0) |
           ((events & POLLOUT) != 0 ? POLLERR : 0);
  }

  Reason reason_;
  uint32_t n_ = 0;
  bool quiet_ = false;
  size_t mapped_ = 0;
  alignas(Request) char few_requests_[kFew * sizeof(Request)];
  alignas(Op) char few_ops_[kFew * sizeof(Op)];
  Request* requests_ = reinterpret_cast<Request*>(few_requests_);
  Op* ops_ = reinterpret_cast<Op*>(few_ops_);
};

// The mask of a p-call, in force from here to the end of the scope. What the kernel does in this order: something
// ready wins over a signal and lets none through; so this begins after the first look.
class MaskedWait {
 public:
  MaskedWait(Fiber* f, const sigset_t* mask) : fiber_(f), masked_(mask != nullptr) {
    if (!masked_) return;
    uint64_t want = 0;
    memcpy(&want, mask, sizeof want);
    old_ = f->sigmask.load(std::memory_order_relaxed);
    set_sigmask(f, want);
    deliver_due(f);
  }
  ~MaskedWait() {
    if (!masked_) return;
    set_sigmask(fiber_, old_);
    deliver_due(fiber_);
  }
  MaskedWait(const MaskedWait&) = delete;
  MaskedWait& operator=(const MaskedWait&) = delete;

 private:
  Fiber* fiber_;
  bool masked_;
  uint64_t old_ = 0;
};

int64_t ns_of_ms(int ms) { return ms < 0 ? kNever : ms * kMilli; }

// A time limit in ns, kNever for none; false: not a valid time.
bool ns_of(const timespec* limit, int64_t* ns) {
  *ns = kNever;
  if (limit == nullptr) return true;
  if (limit->tv_sec < 0 || !valid_nsec(limit)) return false;
  if (limit->tv_sec < kNever / kSecond) *ns = limit->tv_sec * kSecond + limit->tv_nsec;
  return true;
}

// The result of a wait as libc gives it. Last act of a hook, when nothing is left to be given back.
int conclude(long r) {
  if (r == -ECANCELED) cancel_here();
  return static_cast<int>(libc_result(r));
}

// --- poll ------------------------------------------------------------------------------------------

VTHR_NOINLINE long poll_wait(Fiber* f, pollfd* fds, nfds_t n, int64_t limit, const sigset_t* mask,
                             uint32_t taken) {
  int64_t deadline = deadline_after(now_ns(), limit);
  MaskedWait masked(f, mask);
  if (handlers_run(f) != taken) return -EINTR;
  if (limit == 0) return 0;
  Watch watch(Reason::poll);
  if (!watch.reserve(n)) return -ENOMEM;
  for (nfds_t i = 0; i < n; i++) {
    if (fds[i].fd >= 0) watch.add(fds[i].fd, static_cast<uint16_t>(fds[i].events));
  }
  return watch.wait(f, deadline, taken,
                    [=] { return sys_call(SYS_poll, sys_arg(fds), static_cast<long>(n), 0); });
}

long poll_fiber(Fiber* f, pollfd* fds, nfds_t n, int64_t limit, const sigset_t* mask) {
  uint32_t taken = handlers_run(f);
  if (mask != nullptr && !readable(mask)) return -EFAULT;
  long r = sys_call(SYS_poll, sys_arg(fds), static_cast<long>(n), 0);
  if (r != 0 || (limit == 0 && mask == nullptr)) return r;
  return poll_wait(f, fds, n, limit, mask, taken);
}

// --- select ----------------------------------------------------------------------------------------

// Copies of the sets of one call, which the first look clears.
class Sets {
 public:
  Sets(int n, fd_set* in, fd_set* out, fd_set* ex) : n_(n), user_{in, out, ex} {}
  ~Sets() {
    if (mapped_ != 0) sys_unmap(saved_[0], mapped_);
  }
  Sets(const Sets&) = delete;
  Sets& operator=(const Sets&) = delete;

  // The kernel reads no more of a set than there are descriptors: programs give getdtablesize() and a plain fd_set.
  // So this stops at the first unreadable page; the first look says whether that is an error.
  bool save() {
    size_t words = n_ <= 0 ? 0 : (static_cast<size_t>(n_) + 63) / 64;
    if (words > kFewWords) {
      rlimit lim{};
      sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, sys_arg(&lim));
      size_t most = lim.rlim_max < (1u << 30) ? round_up(2 * lim.rlim_max, 1024) / 64 : (1u << 30) / 64;
      if (words > most) words = most < kFewWords ? kFewWords : most;
      mapped_ = round_up(3 * words * 8, kPage);
      void* p = sys_map(mapped_);
      if (p == nullptr) {
        mapped_ = 0;
        return false;
      }
      for (size_t s = 0; s < 3; s++) saved_[s] = static_cast<uint64_t*>(p) + s * words;
    } else {
      for (size_t s = 0; s < 3; s++) {
        saved_[s] = few_[s];
        memset(few_[s], 0, words * 8);
      }
    }
    words_ = words;
    for (size_t s = 0; s < 3; s++) {
      if (user_[s] != nullptr)
        copy_in(reinterpret_cast<char*>(saved_[s]), reinterpret_cast<char*>(user_[s]), words * 8);
    }
    return true;
  }

  // The kernel's call with no time to wait, on the program's sets.
  long look() {
    timespec zero{};
    return sys_call(SYS_pselect6, n_, sys_arg(user_[0]), sys_arg(user_[1]), sys_arg(user_[2]), sys_arg(&zero),
                    0);
  }

  // After a first look that found nothing: from now on only up to the highest descriptor that is open. All below it is
  // what the kernel looks at, and so what it read and wrote; numbers beyond its table it ignores.
  void narrow() {
    for (size_t w = words_; w-- > 0;) {
      for (uint64_t bits = any(w); bits != 0;) {
        int bit = 63 - __builtin_clzll(bits);
        bits &= ~(1ull << bit);
        int fd = static_cast<int>(w * 64) + bit;
        if (fd >= n_ || sys_call(SYS_fcntl, fd, F_GETFD) == -EBADF) continue;
        n_ = fd + 1;
        words_ = w + 1;
        return;
      }
    }
    n_ = 0;
    words_ = 0;
  }

  void restore() {
    for (size_t s = 0; s < 3; s++) {
      if (user_[s] != nullptr) memcpy(user_[s], saved_[s], words_ * 8);
    }
  }

  bool fill(Watch* watch) const {
    size_t count = 0;
    for (size_t w = 0; w < words_; w++) count += static_cast<size_t>(__builtin_popcountll(any(w)));
    if (!watch->reserve(count)) return false;
    for (size_t w = 0; w < words_; w++) {
      for (uint64_t bits = any(w); bits != 0; bits &= bits - 1) {
        int bit = __builtin_ctzll(bits), fd = static_cast<int>(w * 64) + bit;
        if (fd >= n_) break;
        uint32_t events = 0;
        if ((saved_[0][w] >> bit & 1) != 0) events |= POLLIN | POLLRDNORM | POLLRDBAND;
        if ((saved_[1][w] >> bit & 1) != 0) events |= POLLOUT | POLLWRNORM | POLLWRBAND;
        if ((saved_[2][w] >> bit & 1) != 0) events |= POLLPRI;
        watch->add(fd, events);
      }
    }
    return true;
  }

 private:
  uint64_t any(size_t w) const { return saved_[0][w] | saved_[1][w] | saved_[2][w]; }

  static void copy_in(char* to, const char* from, size_t bytes) {
    while (bytes != 0 && readable(from)) {
      size_t part = kPage - (reinterpret_cast<uintptr_t>(from) & (kPage - 1));
      if (part > bytes) part = bytes;
      memcpy(to, from, part);
      to += part;
      from += part;
      bytes -= part;
    }
  }

  int n_;
  fd_set* user_[3];
  size_t words_ = 0, mapped_ = 0;
  uint64_t* saved_[3] = {};
  uint64_t few_[3][kFewWords];
};

VTHR_NOINLINE long select_wait(Fiber* f, Sets* sets, int64_t limit, int64_t deadline, const sigset_t* mask,
                               uint32_t taken) {
  MaskedWait masked(f, mask);
  long r = 0;
  if (handlers_run(f) != taken) {
    r = -EINTR;
  } else if (limit == 0) {
    return 0;
  } else {
    Watch watch(Reason::select);
    r = !sets->fill(&watch) ? -ENOMEM : watch.wait(f, deadline, taken, [=] {
      sets->restore();
      return sets->look();
    });
  }
  if (r < 0) sets->restore();
  return r;
}

// *left: what is left of the limit.
VTHR_NOINLINE long select_fiber(Fiber* f, int n, fd_set* in, fd_set* out, fd_set* ex, int64_t limit,
                                const sigset_t* mask, int64_t* left) {
  uint32_t taken = handlers_run(f);
  *left = limit;
  if (mask != nullptr && !readable(mask)) return -EFAULT;
  Sets sets(n, in, out, ex);
  if (limit == 0 && mask == nullptr) return sets.look();
  if (!sets.save()) return -ENOMEM;
  int64_t deadline = deadline_after(now_ns(), limit);
  long r = sets.look();
  if (r == 0) {
    sets.narrow();
    r = select_wait(f, &sets, limit, deadline, mask, taken);
  }
  if (deadline != kNever) {
    *left = deadline - now_ns();
    if (*left < 0) *left = 0;
  }
  return r;
}

// --- epoll -----------------------------------------------------------------------------------------

VTHR_NOINLINE long epoll_wait_slow(Fiber* f, int ep, epoll_event* events, int most, int64_t limit,
                                   const sigset_t* mask, uint32_t taken) {
  int64_t deadline = deadline_after(now_ns(), limit);
  MaskedWait masked(f, mask);
  if (handlers_run(f) != taken) return -EINTR;
  // All waiters wake and look, not one (EPOLLEXCLUSIVE): what one leaves in the ready list wakes only those that sleep
  // in epoll_wait itself.
  Watch watch(Reason::epoll);
  watch.add(ep, POLLIN);
  return watch.wait(f, deadline, taken,
                    [=] { return sys_call(SYS_epoll_pwait, ep, sys_arg(events), most, 0, 0, 8); });
}

long epoll_fiber(Fiber* f, int ep, epoll_event* events, int most, int64_t limit, const sigset_t* mask) {
  uint32_t taken = handlers_run(f);
  if (mask != nullptr && !readable(mask)) return -EFAULT;
  long r = sys_call(SYS_epoll_pwait, ep, sys_arg(events), most, 0, 0, 8);
  if (r != 0 || limit == 0) return r;  // unlike ppoll, without time it does not look at signals
  return epoll_wait_slow(f, ep, events, most, limit, mask, taken);
}

}  // namespace

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT int poll(pollfd* fds, nfds_t n, int ms) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(poll)(fds, n, ms);
  return conclude(poll_fiber(f, fds, n, ns_of_ms(ms), nullptr));
}

VTHR_EXPORT int __poll(pollfd* fds, nfds_t n, int ms) { return poll(fds, n, ms); }

VTHR_EXPORT int __poll_chk(pollfd* fds, nfds_t n, int ms, size_t fdslen) {
  if (fdslen / sizeof *fds < n) __chk_fail();
  return poll(fds, n, ms);
}

VTHR_EXPORT int ppoll(pollfd* fds, nfds_t n, const timespec* limit, const sigset_t* mask) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(ppoll)(fds, n, limit, mask);
  int64_t ns = 0;
  if (!ns_of(limit, &ns)) return conclude(-EINVAL);
  return conclude(poll_fiber(f, fds, n, ns, mask));
}

VTHR_EXPORT int __ppoll_chk(pollfd* fds, nfds_t n, const timespec* limit, const sigset_t* mask,
                            size_t fdslen) {
  if (fdslen / sizeof *fds < n) __chk_fail();
  return ppoll(fds, n, limit, mask);
}

VTHR_EXPORT int select(int n, fd_set* in, fd_set* out, fd_set* ex, timeval* limit) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(select)(n, in, out, ex, limit);
  int64_t ns = kNever, left = 0;
  if (limit != nullptr) {
    if (limit->tv_sec < 0 || limit->tv_usec < 0) return conclude(-EINVAL);
    int64_t s = deadline_after(limit->tv_sec, limit->tv_usec / 1000000), us = limit->tv_usec % 1000000;
    if (s < kNever / kSecond) ns = s * kSecond + us * kMicro;
  }
  long r = select_fiber(f, n, in, out, ex, ns, nullptr, &left);
  if (limit != nullptr && left != kNever) {
    limit->tv_sec = left / kSecond;
    limit->tv_usec = left % kSecond / kMicro;
  }
  return conclude(r);
}

VTHR_EXPORT int __select(int n, fd_set* in, fd_set* out, fd_set* ex, timeval* limit) {
  return select(n, in, out, ex, limit);
}

VTHR_EXPORT int pselect(int n, fd_set* in, fd_set* out, fd_set* ex, const timespec* limit,
                        const sigset_t* mask) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(pselect)(n, in, out, ex, limit, mask);
  int64_t ns = 0, left = 0;
  if (!ns_of(limit, &ns)) return conclude(-EINVAL);
  return conclude(select_fiber(f, n, in, out, ex, ns, mask, &left));
}

VTHR_EXPORT int epoll_wait(int ep, epoll_event* events, int most, int ms) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(epoll_wait)(ep, events, most, ms);
  return conclude(epoll_fiber(f, ep, events, most, ns_of_ms(ms), nullptr));
}

VTHR_EXPORT int epoll_pwait(int ep, epoll_event* events, int most, int ms, const sigset_t* mask) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(epoll_pwait)(ep, events, most, ms, mask);
  return conclude(epoll_fiber(f, ep, events, most, ns_of_ms(ms), mask));
}

VTHR_EXPORT int epoll_pwait2(int ep, epoll_event* events, int most, const timespec* limit,
                             const sigset_t* mask) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(epoll_pwait2)(ep, events, most, limit, mask);
  int64_t ns = 0;
  if (limit != nullptr && !readable(limit)) return conclude(-EFAULT);
  if (!ns_of(limit, &ns)) return conclude(-EINVAL);
  return conclude(epoll_fiber(f, ep, events, most, ns, mask));
}

VTHR_HOOK_NAME(poll);
VTHR_HOOK_NAME(ppoll);
VTHR_HOOK_NAME(select);
VTHR_HOOK_NAME(pselect);
VTHR_HOOK_NAME(epoll_wait);
VTHR_HOOK_NAME(epoll_pwait);
VTHR_HOOK_NAME(epoll_pwait2);
