// Waiting for signals: sigwait and its like, sigsuspend, pause. The fiber parks; who sends it a signal wakes it, and for
// those of the process that is the signal thread.
#include <unistd.h>
#include <cerrno>
#include <cstring>

#include "interpose/blocking.h"
#include "interpose/signal.h"

extern "C" {
int __sigsuspend(const sigset_t* set);
int __sigpause(int sig_or_mask, int is_sig);
int __xpg_sigpause(int sig);
__attribute__((visibility("default"))) int bsd_sigpause(int mask) __asm__("sigpause");
}

namespace vthr {

namespace {

// Parks until a signal is there that f takes, from `set` or by a handler; or a handler ran since `taken` was read; or the
// deadline. A signal of the set is taken before any handler can run. > 0: that signal; 0: look again; or -errno.
long park_for_signal(Fiber* f, uint64_t set, uint32_t taken, int64_t deadline, siginfo_t* info) {
  enter(f);
  uint64_t ticket = f->wait.begin(WaitWord::waiting);
  if (deadline != kNever && !arm_timer(f, ticket, deadline)) {
    f->wait.finish();
    leave(f);
    return -ENOMEM;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool due = due_signals(f) != 0 || (f->pending.load(std::memory_order_seq_cst) & set) != 0 ||
             handlers_run(f) != taken;
  if (VTHR_LIKELY(!due) || !f->wait.end(ticket, WaitWord::interrupted)) park(f, Reason::signal, nullptr);
  WaitWord::State s = f->wait.finish();
  if (deadline != kNever) TimerHeap::disarm(&f->timer);
  long got = set != 0 ? signal_take(f, set, info) : 0;
  leave(f);
  if (got != 0) return got;
  return s == WaitWord::cancelled ? -ECANCELED : s == WaitWord::timed_out ? -EAGAIN : 0;
}

}  // namespace

// rt_sigtimedwait(2) of a fiber: the signal or -errno. `program_set`: the kernel's word.
long wait_for_signal(Fiber* f, const void* program_set, siginfo_t* info, const timespec* limit) {
  uint64_t set;
  if (!readable(program_set) || (limit != nullptr && !readable(limit))) return -EFAULT;
  memcpy(&set, program_set, sizeof set);
  set &= ~kUnblockable;
  if (limit != nullptr && (limit->tv_sec < 0 || !valid_nsec(limit))) return -EINVAL;
  siginfo_t got;
  uint32_t taken = handlers_run(f);
  long r = signal_take(f, set, &got);
  if (r == 0) {  // what is pending for the process already
    timespec zero{};
    r = sys_call(SYS_rt_sigtimedwait, sys_arg(&set), sys_arg(&got), sys_arg(&zero), 8);
  }
  if (r <= 0 && (limit == nullptr || limit->tv_sec != 0 || limit->tv_nsec != 0)) {
    int64_t deadline = deadline_in(limit);
    f->wait_claimed.store(false, std::memory_order_relaxed);
    f->waits_for.store(set, std::memory_order_seq_cst);
    signals_want(set);
    do {
      r = park_for_signal(f, set, taken, deadline, &got);
      if (r == -ECANCELED && !cancel_due(f)) r = 0;
      if (r == 0 && handlers_run(f) != taken) r = -EINTR;
    } while (r == 0);
    f->waits_for.store(0, std::memory_order_seq_cst);
    if (r < 0) {  // at the last moment
      int late = signal_take(f, set, &got);
      if (late != 0) r = late;
    }
    signals_give_back(f);
    signals_reconsider(set);
    if (r == -ECANCELED) cancel_here();
  }
  if (r > 0 && info != nullptr) *info = got;
  return r;
}

namespace {

// Until a handler ran; always -EINTR. masked: with `mask` in force meanwhile.
long suspend(Fiber* f, bool masked, uint64_t mask) {
  uint64_t old = 0;
  uint32_t taken;
  {
    Hushed hushed;
    taken = handlers_run(f);
    if (masked) {
      old = f->sigmask.load(std::memory_order_relaxed);
      set_sigmask(f, mask);
    }
  }
  deliver_due(f);
  long r = 0;
  while (r == 0 && handlers_run(f) == taken) {
    r = park_for_signal(f, 0, taken, kNever, nullptr);
    if (r == -ECANCELED && !cancel_due(f)) r = 0;
  }
  if (masked) {
    set_sigmask(f, old);
    deliver_due(f);
  }
  if (r == -ECANCELED) cancel_here();
  return -EINTR;
}

int suspend_as(Fiber* f, uint64_t mask) { return static_cast<int>(libc_result(suspend(f, true, mask))); }

}  // namespace

long suspend_fiber(Fiber* f, const void* mask) {
  if (mask == nullptr) return suspend(f, false, 0);
  if (!readable(mask)) return -EFAULT;
  uint64_t word;
  memcpy(&word, mask, sizeof word);
  return suspend(f, true, word);
}

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT int sigtimedwait(const sigset_t* set, siginfo_t* info, const timespec* limit) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(sigtimedwait)(set, info, limit);
  long r = wait_for_signal(f, set, info, limit);
  if (r > 0 && info != nullptr && info->si_code == SI_TKILL) info->si_code = SI_USER;  // as glibc
  return static_cast<int>(libc_result(r));
}

VTHR_EXPORT int sigwaitinfo(const sigset_t* set, siginfo_t* info) {
  return fiber_at_point() == nullptr ? REAL(sigwaitinfo)(set, info) : sigtimedwait(set, info, nullptr);
}

VTHR_EXPORT int sigwait(const sigset_t* set, int* sig) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(sigwait)(set, sig);
  long r;
  do {
    r = wait_for_signal(f, set, nullptr, nullptr);
  } while (r == -EINTR);
  if (r < 0) return static_cast<int>(-r);
  *sig = static_cast<int>(r);
  return 0;
}

VTHR_EXPORT int sigsuspend(const sigset_t* set) {
  Fiber* f = fiber_at_point();
  return f == nullptr ? REAL(sigsuspend)(set) : static_cast<int>(libc_result(suspend_fiber(f, set)));
}

VTHR_EXPORT int __sigsuspend(const sigset_t* set) { return sigsuspend(set); }

VTHR_EXPORT int pause(void) {
  Fiber* f = fiber_at_point();
  return f == nullptr ? REAL(pause)() : static_cast<int>(libc_result(suspend(f, false, 0)));
}

// BSD's takes a mask, X/Open's a signal to unblock.
VTHR_EXPORT int __sigpause(int sig_or_mask, int is_sig) {
  Fiber* f = fiber_at_point();
  if (f == nullptr) return REAL(__sigpause)(sig_or_mask, is_sig);
  if (is_sig == 0) return suspend_as(f, static_cast<uint32_t>(sig_or_mask));
  if (!is_signal(sig_or_mask)) return static_cast<int>(libc_result(-EINVAL));
  return suspend_as(f, f->sigmask.load(std::memory_order_relaxed) & ~sig_bit(sig_or_mask));
}

VTHR_EXPORT int __xpg_sigpause(int sig) { return __sigpause(sig, 1); }

int bsd_sigpause(int mask) { return __sigpause(mask, 0); }
