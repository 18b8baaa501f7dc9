// Signals of fibers (DESIGN D12): masks and pending sets in user space, delivery on the fiber's own stack.
#include <pthread.h>
#include <ucontext.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "interpose/enter.h"
#include "interpose/thread.h"

namespace vthr {

namespace {

// The kernel's struct sigaction.
struct KernelAction {
  void* handler;
  unsigned long flags;
  void* restorer;
  uint64_t mask;
};
constexpr unsigned long kSaRestorer = 0x04000000;

bool get_action(int sig, KernelAction* a) { return sys_call(SYS_rt_sigaction, sig, 0, sys_arg(a), 8) == 0; }

bool ignored_by_default(int sig) {
  return sig == SIGCHLD || sig == SIGURG || sig == SIGWINCH || sig == SIGCONT;
}

// Synchronous ones stay with the kernel: they are never blocked on a worker.
constexpr uint64_t kSynchronous = 1ull << (SIGSEGV - 1) | 1ull << (SIGBUS - 1) | 1ull << (SIGFPE - 1) |
                                  1ull << (SIGILL - 1) | 1ull << (SIGTRAP - 1) | 1ull << (SIGSYS - 1);

// The default action, for real: the kernel ends, stops or dumps the process.
void default_action(int sig) {
  uint64_t old = sys_set_sigmask(0);
  uint64_t only = ~sig_bit(sig);
  sys_set_sigmask(only);
  sys_call(SYS_tgkill, sys_call(SYS_getpid), sys_gettid(), sig);
  sys_set_sigmask(old);
}

void run_handler(Fiber* f, int sig, const KernelAction& a) {
  uint64_t old = f->sigmask.load(std::memory_order_relaxed);
  uint64_t during = old | a.mask | ((a.flags & SA_NODEFER) != 0 ? 0 : sig_bit(sig));
  f->sigmask.store(during & ~(sig_bit(SIGKILL) | sig_bit(SIGSTOP)), std::memory_order_relaxed);
  if ((a.flags & SA_RESETHAND) != 0) {
    KernelAction reset = a;
    reset.handler = nullptr;
    sys_call(SYS_rt_sigaction, sig, sys_arg(&reset), 0, 8);
  }
  f->signals_taken.fetch_add(1, std::memory_order_relaxed);
  if ((a.flags & SA_RESTART) == 0) f->no_restart = true;
  int saved_errno = errno;
  if ((a.flags & SA_SIGINFO) != 0) {
    siginfo_t info{};
    info.si_signo = sig;
    info.si_code = SI_TKILL;
    info.si_pid = getpid();
    info.si_uid = getuid();
    ucontext_t uc;
    getcontext(&uc);
    memcpy(&uc.uc_sigmask, &old, sizeof old);
    reinterpret_cast<void (*)(int, siginfo_t*, void*)>(a.handler)(sig, &info, &uc);
  } else {
    reinterpret_cast<void (*)(int)>(a.handler)(sig);
  }
  errno = saved_errno;
  f->sigmask.store(old, std::memory_order_relaxed);
}

KernelAction old_runtime, old_setxid;

void* real_handler_of(const KernelAction& a) {
  return a.handler == SIG_DFL || a.handler == SIG_IGN ? nullptr : a.handler;
}

// Signal 32: ours when it carries our mark, else glibc's (cancellation of a real thread).
void on_runtime_signal(int sig, siginfo_t* info, void* context) {
  auto what = reinterpret_cast<uintptr_t>(info->si_value.sival_ptr);
  bool ours = info->si_code == SI_QUEUE && info->si_pid == static_cast<pid_t>(sys_call(SYS_getpid));
  Fiber* f = current;
  if (ours && what == kAskSample) {
    auto* uc = static_cast<ucontext_t*>(context);
    if (f != nullptr && f->in_runtime.load(std::memory_order_relaxed) == 0) {
      auto* r = uc->uc_mcontext.gregs;
      sysmon_sampled(static_cast<uint64_t>(r[REG_RIP]), static_cast<uint64_t>(r[REG_RSP]),
                     static_cast<uint64_t>(r[REG_RBP]));
    }
    return;
  }
  if (ours && what == kAskCancel) {
    // A thread in a cancellation point of glibc's own, or with asynchronous cancellation: unwound from here.
    if (f != nullptr && f->in_runtime.load(std::memory_order_relaxed) == 0) cancel_from_signal(f);
    return;
  }
  if (ours && what == kAskDeliver) {
    // Inside the runtime, or on another fiber by now: it stays pending for the next leave().
    if (f != nullptr && f->in_runtime.load(std::memory_order_relaxed) == 0 &&
        (f->pending.load(std::memory_order_relaxed) & ~f->sigmask.load(std::memory_order_relaxed)) != 0)
      deliver_signals(f);
    return;
  }
  if (void* h = real_handler_of(old_runtime))
    reinterpret_cast<void (*)(int, siginfo_t*, void*)>(h)(sig, info, context);
}

// Signal 33: glibc's handler clears a mark through THREAD_SELF, which must be the worker (HAZARDS 1).
VTHR_NOINLINE void on_setxid(int sig, siginfo_t* info, void* context) {
  void* handler = real_handler_of(old_setxid);
  if (handler == nullptr) return;
  Fiber* f = current;
  Worker* w = f != nullptr ? f->worker.load(std::memory_order_relaxed) : nullptr;
  void* fiber_tcb = f != nullptr ? f->tcb : nullptr;
  if (w != nullptr) tls_set_fs(w->tcb);
  reinterpret_cast<void (*)(int, siginfo_t*, void*)>(handler)(sig, info, context);
  if (w != nullptr) tls_set_fs(fiber_tcb);
}

void wrap(int sig, void (*handler)(int, siginfo_t*, void*), KernelAction* old) {
  KernelAction have{};
  get_action(sig, &have);
  if (have.handler == reinterpret_cast<void*>(handler)) return;
  *old = have;
  KernelAction setxid{};
  get_action(kSigSetxid, &setxid);  // glibc has installed it by the first pthread_create: its restorer serves
  KernelAction mine{};
  mine.handler = reinterpret_cast<void*>(handler);
  mine.flags = SA_SIGINFO | SA_RESTART | kSaRestorer;
  mine.restorer = setxid.restorer;
  mine.mask = 0;
  sys_call(SYS_rt_sigaction, sig, sys_arg(&mine), 0, 8);
}

// A signal for f is pending and not blocked: make f notice.
void notify(Fiber* f) {
  interrupt_wait(f, false);
  if (f == current) return;
  Worker* w = f->worker.load(std::memory_order_relaxed);
  if (w != nullptr && w->running.load(std::memory_order_relaxed) == f) signal_worker(w, kAskDeliver);
}

}  // namespace

void signals_wrap_handlers() {
  wrap(kSigSetxid, on_setxid, &old_setxid);
  wrap(kSigRuntime, on_runtime_signal, &old_runtime);
}

uint64_t inherited_sigmask() {
  Fiber* f = fiber_here();
  if (f != nullptr) return f->sigmask.load(std::memory_order_relaxed);
  uint64_t mask = 0;
  sys_call(SYS_rt_sigprocmask, SIG_BLOCK, 0, sys_arg(&mask), 8);
  return mask;
}

void deliver_signals(Fiber* f) {
  for (;;) {
    uint64_t due = f->pending.load(std::memory_order_acquire) & ~f->sigmask.load(std::memory_order_relaxed);
    if (due == 0) return;
    int sig = __builtin_ctzll(due) + 1;
    if ((f->pending.fetch_and(~sig_bit(sig), std::memory_order_acq_rel) & sig_bit(sig)) == 0) continue;
    KernelAction a{};
    get_action(sig, &a);
    if (a.handler == SIG_IGN) continue;
    if (a.handler == SIG_DFL) {
      if (!ignored_by_default(sig)) default_action(sig);
      continue;
    }
    run_handler(f, sig, a);
  }
}

int kill_fiber(Fiber* f, int sig) {
  if (sig < 0 || sig > 64 || sig == kSigRuntime || sig == kSigSetxid) return EINVAL;
  uint32_t life = f->life.load(std::memory_order_acquire);
  if (sig == 0 || life == kEnded || life == kFree) return 0;
  KernelAction a{};
  get_action(sig, &a);
  uint64_t blocked = f->sigmask.load(std::memory_order_relaxed) & sig_bit(sig);
  if (blocked == 0 && (a.handler == SIG_IGN || (a.handler == SIG_DFL && ignored_by_default(sig)))) return 0;
  f->pending.fetch_or(sig_bit(sig), std::memory_order_seq_cst);
  if (blocked == 0) {
    if (f == current) {
      deliver_signals(f);
    } else {
      notify(f);
    }
  }
  return 0;
}

void raise_in_fiber(Fiber* f, int sig) { kill_fiber(f, sig); }

int kill_fiber_tid(int tid, int sig) {
  struct Find {
    int tid;
    Fiber* found;
  } find{tid, nullptr};
  fiber_each(
      [](Fiber* f, void* arg) {
        auto* s = static_cast<Find*>(arg);
        uint32_t life = f->life.load(std::memory_order_acquire);
        if (f->tid == s->tid && (life == kJoinable || life == kDetached)) s->found = f;
      },
      &find);
  return find.found == nullptr ? -ESRCH : -kill_fiber(find.found, sig);
}

bool signal_restarts(Fiber* f) { return !f->no_restart; }

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT int pthread_kill(pthread_t id, int sig) noexcept {
  Fiber* f = fiber_of(id);
  return f != nullptr ? kill_fiber(f, sig) : REAL(pthread_kill)(id, sig);
}

VTHR_EXPORT int raise(int sig) noexcept {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(raise)(sig);
  int err = kill_fiber(f, sig);
  if (err == 0) return 0;
  errno = err;
  return -1;
}

namespace {
int change_mask(Fiber* f, int how, const sigset_t* set, sigset_t* old) {
  uint64_t want = 0, have = f->sigmask.load(std::memory_order_relaxed);
  if (set != nullptr) memcpy(&want, set, sizeof want);
  if (old != nullptr) {
    sigemptyset(old);
    memcpy(old, &have, sizeof have);
  }
  if (set == nullptr) return 0;
  // as glibc: nobody may block its own two signals
  want &= ~(sig_bit(SIGKILL) | sig_bit(SIGSTOP) | sig_bit(kSigRuntime) | sig_bit(kSigSetxid));
  switch (how) {
    case SIG_BLOCK:
      want |= have;
      break;
    case SIG_UNBLOCK:
      want = have & ~want;
      break;
    case SIG_SETMASK:
      break;
    default:
      return EINVAL;
  }
  f->sigmask.store(want, std::memory_order_seq_cst);
  if ((f->pending.load(std::memory_order_seq_cst) & ~want) != 0) deliver_signals(f);
  return 0;
}
}  // namespace

VTHR_EXPORT int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  Fiber* f = fiber_here();
  return f == nullptr ? REAL(pthread_sigmask)(how, set, old) : change_mask(f, how, set, old);
}

VTHR_EXPORT int sigprocmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(sigprocmask)(how, set, old);
  int err = change_mask(f, how, set, old);
  if (err == 0) return 0;
  errno = err;
  return -1;
}
