// Signals of fibers (DESIGN D12): masks in user space, delivery on the fiber's own stack, or its alternate one.
#include "interpose/signal.h"

#include <pthread.h>
#include <ucontext.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace vthr {

namespace {

constexpr unsigned long kSaRestorer = 0x04000000;

// The default action, for real: the kernel ends, stops or dumps the process.
void default_action(int sig) {
  uint64_t old = sys_set_sigmask(~sig_bit(sig));
  sys_call(SYS_tgkill, sys_call(SYS_getpid), sys_gettid(), sig);
  sys_set_sigmask(old);
}

// One call of a handler.
struct Call {
  void* handler;
  bool with_info;
  int sig;
  siginfo_t* info;
  ucontext_t* context;
};

void call_handler(void* arg) {
  auto* c = static_cast<Call*>(arg);
  if (c->with_info) {
    reinterpret_cast<void (*)(int, siginfo_t*, void*)>(c->handler)(c->sig, c->info, c->context);
  } else {
    reinterpret_cast<void (*)(int)>(c->handler)(c->sig);
  }
}

// *mask: what the handler sees as the mask that it returns to, and may change.
void invoke(Call* call, void* top, uint64_t* mask) {
  ucontext_t* context = call->context;
  uint64_t kernel_mask = 0;
  if (context != nullptr) {
    memcpy(&kernel_mask, &context->uc_sigmask, sizeof kernel_mask);
    memcpy(&context->uc_sigmask, mask, sizeof *mask);
  }
  if (top != nullptr) {
    vthr_call_on_stack(call_handler, call, top);
  } else {
    call_handler(call);
  }
  if (context != nullptr) {
    memcpy(mask, &context->uc_sigmask, sizeof *mask);
    memcpy(&context->uc_sigmask, &kernel_mask, sizeof kernel_mask);
  }
}

// The kernel interrupted nothing: the fiber called, or waited in, one of our functions.
VTHR_NOINLINE void invoke_with_own_context(Call* call, void* top, uint64_t* mask) {
  ucontext_t own;
  memset(&own.uc_sigmask, 0, sizeof own.uc_sigmask);  // not one that setjmp.cc saved: its first word counts
  REAL(getcontext)(&own);
  call->context = &own;  // cppcheck-suppress autoVariables
  invoke(call, top, mask);
  call->context = nullptr;
}

// The next signal that is due, with its action; the mask for its handler is in force. 0: none. No other may be taken in
// between: they would overtake it.
struct Due {
  siginfo_t info;
  KernelAction action;
  uint64_t mask, handler_blocks;  // what the handler returns to
};
int begin_delivery(Fiber* f, Due* due) {
  Hushed hushed;
  for (;;) {
    due->mask = f->sigmask.load(std::memory_order_relaxed);
    int sig = signal_take(f, ~due->mask, &due->info);
    KernelAction& a = due->action;
    a = {};
    if (sig == 0 || !get_action(sig, &a)) return sig;
    if (discards(a, sig)) continue;
    if (a.handler == SIG_DFL) return sig;
    uint64_t during = (due->mask | a.mask | ((a.flags & SA_NODEFER) != 0 ? 0 : sig_bit(sig))) & ~kUnblockable;
    due->handler_blocks = f->handler_blocks.load(std::memory_order_relaxed);
    f->handler_blocks.store(due->handler_blocks | (during & ~due->mask), std::memory_order_seq_cst);
    f->sigmask.store(during, std::memory_order_seq_cst);
    if ((a.flags & SA_RESETHAND) != 0) {
      KernelAction reset = a;
      reset.handler = nullptr;
      sys_call(SYS_rt_sigaction, sig, sys_arg(&reset), 0, 8);
    }
    f->signals_taken.fetch_add(1, std::memory_order_relaxed);
    return sig;
  }
}

// `context`: what the kernel interrupted for this, or nullptr. The handler may leave by siglongjmp and never return here.
void run_handler(Fiber* f, int sig, Due* due, ucontext_t* context) {
  const KernelAction& a = due->action;
  int saved_errno = errno;
  bool no_restart = f->no_restart;
  Call call{a.handler, (a.flags & SA_SIGINFO) != 0, sig, &due->info, context};
  void* top = alternate_stack_for(f, a);
  if (call.with_info && context == nullptr) {
    invoke_with_own_context(&call, top, &due->mask);
  } else {
    invoke(&call, top, &due->mask);
  }
  f->no_restart = no_restart || (a.flags & SA_RESTART) == 0;  // hooks that the handler called have reset it
  errno = saved_errno;
  f->sigmask.store(due->mask & ~kUnblockable, std::memory_order_seq_cst);
  f->handler_blocks.store(due->handler_blocks, std::memory_order_seq_cst);
  set_sigmask(f, due->mask);
}

void deliver(Fiber* f, ucontext_t* context) {
  Due due;
  while (int sig = begin_delivery(f, &due)) {
    if (due.action.handler == SIG_DFL) {
      default_action(sig);
    } else {
      run_handler(f, sig, &due, context);
    }
  }
}

// Calls that end with EINTR when a handler without SA_RESTART ran, and only then (signal(7)). Others end always, or never
// (fork).
bool handler_may_end(long nr) {
  switch (nr) {
    case SYS_read:
    case SYS_readv:
    case SYS_write:
    case SYS_writev:
    case SYS_ioctl:
    case SYS_open:
    case SYS_openat:
    case SYS_openat2:
    case SYS_creat:
    case SYS_wait4:
    case SYS_waitid:
    case SYS_flock:
    case SYS_fcntl:
    case SYS_accept:
    case SYS_accept4:
    case SYS_connect:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_recvmmsg:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_sendmmsg:
    case SYS_sendfile:
    case SYS_splice:
    case SYS_tee:
    case SYS_vmsplice:
    case SYS_copy_file_range:
    case SYS_mq_timedsend:
    case SYS_mq_timedreceive:
    case SYS_getrandom:
      return true;
    default:
      return false;
  }
}

// Our signal lets the kernel make an interrupted call again, as a handler with SA_RESTART wants it: the registers stand at
// its instruction, with its number. For the others it ends here. (One that had not begun ends as if it had.)
void end_interrupted_call(ucontext_t* context) {
  auto* r = context->uc_mcontext.gregs;
  auto* code = reinterpret_cast<const unsigned char*>(r[REG_RIP]);
  if (!handler_may_end(r[REG_RAX]) || code[0] != 0x0f || code[1] != 0x05) return;
  r[REG_RAX] = -EINTR;
  r[REG_RIP] += 2;
}

KernelAction old_runtime, old_setxid;

void* real_handler_of(const KernelAction& a) {
  return a.handler == SIG_DFL || a.handler == SIG_IGN ? nullptr : a.handler;
}

// Signal 32: ours when it carries our mark, else glibc's (cancellation of a real thread).
void on_runtime_signal(int sig, siginfo_t* info, void* context) {
  auto what = reinterpret_cast<uintptr_t>(info->si_value.sival_ptr);
  bool ours = info->si_code == SI_QUEUE && info->si_pid == static_cast<pid_t>(sys_call(SYS_getpid));
  if (VTHR_UNLIKELY(brief_interrupt(info, context))) return;
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
    Worker* w = f != nullptr ? f->worker.load(std::memory_order_relaxed) : this_worker;
    if (w != nullptr) w->deliver_asked.store(false, std::memory_order_seq_cst);
    // Inside the runtime, or on another fiber by now: it stays pending for the next leave().
    if (f != nullptr && f->in_runtime.load(std::memory_order_relaxed) == 0 && due_signals(f) != 0) {
      bool before = f->no_restart;
      f->no_restart = false;
      deliver(f, static_cast<ucontext_t*>(context));
      if (f->no_restart) end_interrupted_call(static_cast<ucontext_t*>(context));
      f->no_restart |= before;
    }
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
  bool swap = w != nullptr && !w->bound;  // the kernel tid of a bound fiber is in its own TCB
  if (swap) tls_set_fs(w->tcb);
  reinterpret_cast<void (*)(int, siginfo_t*, void*)>(handler)(sig, info, context);
  if (swap) tls_set_fs(fiber_tcb);
}

void wrap(int sig, void (*handler)(int, siginfo_t*, void*), KernelAction* old, unsigned long flags) {
  KernelAction have{};
  get_action(sig, &have);
  if (have.handler == reinterpret_cast<void*>(handler)) return;
  *old = have;
  KernelAction setxid{};
  get_action(kSigSetxid, &setxid);  // glibc has installed it by the first pthread_create: its restorer serves
  KernelAction mine{};
  mine.handler = reinterpret_cast<void*>(handler);
  mine.flags = SA_SIGINFO | SA_RESTART | kSaRestorer | flags;
  mine.restorer = setxid.restorer;
  mine.mask = 0;
  sys_call(SYS_rt_sigaction, sig, sys_arg(&mine), 0, 8);
}

}  // namespace

bool discards(const KernelAction& a, int sig) {
  if (a.handler == SIG_IGN) return true;
  return a.handler == SIG_DFL && (sig == SIGCHLD || sig == SIGURG || sig == SIGWINCH || sig == SIGCONT);
}

void signals_wrap_handlers() {
  wrap(kSigSetxid, on_setxid, &old_setxid, 0);
  // A handler of the program that runs inside ours may park: the worker must not be left deaf to signal 32.
  wrap(kSigRuntime, on_runtime_signal, &old_runtime, SA_NODEFER);
  brief_handled = true;
}

void signals_start() {
  signals_wrap_handlers();
  faults_start();
  signal_thread_start();
}

void signals_after_fork() {
  faults_after_fork();
  signal_records_after_fork();
  signal_thread_after_fork();
}

uint64_t inherited_sigmask() {
  Fiber* f = fiber_here();
  if (f != nullptr) return f->sigmask.load(std::memory_order_relaxed);
  uint64_t mask = 0;
  sys_call(SYS_rt_sigprocmask, SIG_BLOCK, 0, sys_arg(&mask), 8);
  signals_foreign_blocks(mask);
  return mask;
}

void set_sigmask(Fiber* f, uint64_t mask) {
  mask &= ~kUnblockable;
  uint64_t before = f->sigmask.exchange(mask, std::memory_order_seq_cst);
  signals_want(~mask);
  signals_reconsider(mask & ~before);
  signals_give_back(f);
}

void deliver_signals(Fiber* f) {
  deliver(f, nullptr);
  if (VTHR_UNLIKELY(f->cancel_asked.exchange(0, std::memory_order_acq_rel) != 0)) cancel_from_signal(f);
}

namespace {
// The kernel queues each signal 32, and runs the handlers of all that came meanwhile one inside the other: on a thread that
// had no CPU for a while thousands of them would fill the stack. So one at a time is under way, as with any plain signal.
void ask_to_deliver(Worker* w) {
  if (w->deliver_asked.exchange(true, std::memory_order_seq_cst)) return;
  if (!signal_worker(w, kAskDeliver)) w->deliver_asked.store(false, std::memory_order_seq_cst);
}
}  // namespace

void notify(Fiber* f) {
  interrupt_wait(f, false);
  if (f == current) return;
  Worker* w = f->worker.load(std::memory_order_relaxed);
  if (w != nullptr && w->running.load(std::memory_order_relaxed) == f) ask_to_deliver(w);
}

int kill_fiber(Fiber* f, int sig, const siginfo_t* info) {
  if (sig == kSigRuntime || sig == kSigSetxid) return EINVAL;
  if (fiber_has_ended(f)) return 0;  // glibc does not ask the kernel then what it thinks of the number
  if (sig < 0 || sig > kSignals) return EINVAL;
  if (sig == 0) return 0;
  bool blocked = (f->sigmask.load(std::memory_order_seq_cst) & sig_bit(sig)) != 0;
  bool waited_for = (f->waits_for.load(std::memory_order_seq_cst) & sig_bit(sig)) != 0;
  KernelAction a{};
  get_action(sig, &a);
  if (!blocked && !waited_for && discards(a, sig)) return 0;
  int err = signal_post(f, sig, info, false);
  if (err != 0) return err;
  if (VTHR_UNLIKELY(f->signal_tid.load(std::memory_order_seq_cst) != 0)) {
    signals_to_kernel(f);
  } else if (f == current) {
    deliver_due(f);
  } else if ((taken_signals(f) & sig_bit(sig)) != 0) {
    notify(f);
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

uint64_t word_of(const sigset_t* set) {
  uint64_t word;
  memcpy(&word, set, sizeof word);
  return word;
}

void set_of(uint64_t word, sigset_t* set) {
  sigemptyset(set);
  memcpy(set, &word, sizeof word);
}

// What is pending for f and, blocked by it, for the process.
uint64_t pending_of(Fiber* f) {
  uint64_t process = 0;
  sys_call(SYS_rt_sigpending, sys_arg(&process), 8);
  return (f->pending.load(std::memory_order_relaxed) | process) & f->sigmask.load(std::memory_order_relaxed);
}

// `want` nullptr: only asks. 0 or EINVAL.
int change_sigmask(Fiber* f, int how, const uint64_t* want, uint64_t* old) {
  uint64_t have = f->sigmask.load(std::memory_order_relaxed);
  if (old != nullptr) *old = have;
  if (want == nullptr) return 0;
  switch (how) {
    case SIG_BLOCK:
      set_sigmask(f, have | *want);
      break;
    case SIG_UNBLOCK:
      set_sigmask(f, have & ~*want);
      break;
    case SIG_SETMASK:
      set_sigmask(f, *want);
      break;
    default:
      return EINVAL;
  }
  deliver_due(f);
  return 0;
}

}  // namespace vthr

using namespace vthr;

namespace {

int change(Fiber* f, int how, const sigset_t* set, sigset_t* old) {
  uint64_t want = set != nullptr ? word_of(set) : 0, have = 0;
  int err = change_sigmask(f, how, set != nullptr ? &want : nullptr, &have);
  if (err == 0 && old != nullptr) set_of(have, old);
  return err;
}

int as_errno(int err) { return static_cast<int>(libc_result(-err)); }

}  // namespace

VTHR_EXPORT int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  Fiber* f = fiber_here();
  if (f != nullptr) return change(f, how, set, old);
  int err = REAL(pthread_sigmask)(how, set, old);
  if (err == 0 && set != nullptr && how != SIG_UNBLOCK) signals_foreign_blocks(word_of(set));
  return err;
}

VTHR_EXPORT int sigprocmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  Fiber* f = fiber_here();
  if (f != nullptr) return as_errno(change(f, how, set, old));
  int r = REAL(sigprocmask)(how, set, old);
  if (r == 0 && set != nullptr && how != SIG_UNBLOCK) signals_foreign_blocks(word_of(set));
  return r;
}

VTHR_EXPORT int sigpending(sigset_t* set) noexcept {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(sigpending)(set);
  set_of(pending_of(f), set);
  return 0;
}

using KillFn = int (*)(pthread_t, int);
VTHR_EXPORT int kill_new(pthread_t id, int sig) {
  Fiber* f = fiber_of(id);
  return f != nullptr ? kill_fiber(f, sig) : REAL_AS(KillFn, kill_new)(id, sig);
}
// Of programs older than glibc 2.34: a thread that has ended is not found.
VTHR_EXPORT int kill_old(pthread_t id, int sig) {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL_AS(KillFn, kill_old)(id, sig);
  int err = kill_fiber(f, sig);
  return err == 0 && fiber_has_ended(f) ? ESRCH : err;
}
__asm__(".symver kill_new, pthread_kill@@GLIBC_2.34");
__asm__(".symver kill_old, pthread_kill@GLIBC_2.2.5");

VTHR_EXPORT int pthread_sigqueue(pthread_t id, int sig, const sigval value) noexcept {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL(pthread_sigqueue)(id, sig, value);
  if (fiber_has_ended(f)) return ESRCH;
  siginfo_t info{};
  info.si_signo = sig;
  info.si_code = SI_QUEUE;
  info.si_pid = static_cast<pid_t>(sys_call(SYS_getpid));
  info.si_uid = static_cast<uid_t>(sys_call(SYS_getuid));
  info.si_value = value;
  return kill_fiber(f, sig, &info);
}

VTHR_EXPORT int raise(int sig) noexcept {
  Fiber* f = fiber_here();
  return f == nullptr ? REAL(raise)(sig) : as_errno(sig == 0 ? 0 : kill_fiber(f, sig));
}

VTHR_EXPORT int gsignal(int sig) noexcept { return raise(sig); }

VTHR_EXPORT int tgkill(pid_t process, pid_t thread, int sig) {
  if (thread < kFirstTid || !sched_running()) return REAL(tgkill)(process, thread, sig);
  if (process != static_cast<pid_t>(sys_call(SYS_getpid))) return as_errno(ESRCH);
  return as_errno(-kill_fiber_tid(thread, sig));
}

// ---- the old calls, on masks of 32 signals or one signal ----

VTHR_EXPORT int sigblock(int mask) noexcept {
  Fiber* f = fiber_here();
  if (f == nullptr) return static_cast<int>(REAL_AS(int (*)(int), sigblock)(mask));
  uint64_t want = static_cast<uint32_t>(mask), old = 0;
  change_sigmask(f, SIG_BLOCK, &want, &old);
  return static_cast<int>(old);
}

VTHR_EXPORT int sigsetmask(int mask) noexcept {
  Fiber* f = fiber_here();
  if (f == nullptr) return static_cast<int>(REAL_AS(int (*)(int), sigsetmask)(mask));
  uint64_t want = static_cast<uint32_t>(mask), old = 0;
  change_sigmask(f, SIG_SETMASK, &want, &old);
  return static_cast<int>(old);
}

namespace {
int change_one(Fiber* f, int how, int sig) {
  if (!is_signal(sig)) return as_errno(EINVAL);
  uint64_t only = sig_bit(sig);
  return as_errno(change_sigmask(f, how, &only, nullptr));
}
}  // namespace

VTHR_EXPORT int sighold(int sig) noexcept {
  Fiber* f = fiber_here();
  return f == nullptr ? REAL_AS(int (*)(int), sighold)(sig) : change_one(f, SIG_BLOCK, sig);
}

VTHR_EXPORT int sigrelse(int sig) noexcept {
  Fiber* f = fiber_here();
  return f == nullptr ? REAL_AS(int (*)(int), sigrelse)(sig) : change_one(f, SIG_UNBLOCK, sig);
}
