// Dispositions: they are the process's, so the kernel keeps them, but for handlers of faults (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS).
// Those it runs on the worker, with the handler's mask in force there. The handler may wait for a lock, or be handed off: the
// fiber goes on elsewhere, the worker keeps SIGSEGV blocked, and the next fault on it ends the process (seen: OpenJDK's
// StackOverflowError). So the kernel gets a handler of ours in place of the program's: it makes the handler's mask the
// fiber's and gives the worker its own back before anything can wait.
//
// What the kernel has is the truth about whether there is a handler; the table below only says which one ours stands for.
#include <ucontext.h>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "interpose/signal.h"

extern "C" {
int __sigaction(int sig, const struct sigaction* act, struct sigaction* old) noexcept;
sighandler_t bsd_signal(int sig, sighandler_t handler) noexcept;
}

namespace vthr {

namespace {

constexpr int kFaults[] = {SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS};
constexpr int kMaxFault = SIGSYS;

// The program's handler and whether it takes three arguments, by signal. Written before the kernel gets ours.
struct Stands {
  std::atomic<void*> handler{nullptr};
  std::atomic<bool> with_info{false};
};
Stands stands[kMaxFault + 1];
std::atomic<bool> started{false};

bool is_fault(int sig) {
  for (int s : kFaults) {
    if (s == sig) return true;
  }
  return false;
}

void call(void* handler, int sig, siginfo_t* info, void* context) {
  reinterpret_cast<void (*)(int, siginfo_t*, void*)>(handler)(sig, info, context);
}

// A fault while the thread blocks its signal ends the process, whatever its handler.
void die_of(int sig) {
  KernelAction none{};
  sys_call(SYS_rt_sigaction, sig, sys_arg(&none), 0, 8);
  if (sig != SIGTRAP && sig != SIGSYS) return;  // the instruction faults again, and a core file shows it
  sys_set_sigmask(~sig_bit(sig));
  sys_call(SYS_tgkill, sys_call(SYS_getpid), sys_gettid(), sig);
}

void on_fault(int sig, siginfo_t* info, void* context);

bool kernel_action(int sig, KernelAction* a) {
  return sys_call(SYS_rt_sigaction, sig, 0, sys_arg(a), 8) == 0;
}
bool is_ours(const KernelAction& a) { return a.handler == reinterpret_cast<void*>(on_fault); }

void handle(Fiber* f, void* handler, int sig, siginfo_t* info, ucontext_t* context) {
  KernelAction a{};
  kernel_action(sig, &a);
  uint64_t before = f->sigmask.load(std::memory_order_relaxed);
  if ((before & sig_bit(sig)) != 0 && info->si_code > 0) return die_of(sig);
  uint64_t during = (before | a.mask | ((a.flags & SA_NODEFER) != 0 ? 0 : sig_bit(sig))) & ~kUnblockable;
  uint64_t blocks = f->handler_blocks.load(std::memory_order_relaxed);
  f->handler_blocks.store(blocks | (during & ~before), std::memory_order_seq_cst);
  f->sigmask.store(during, std::memory_order_seq_cst);
  f->signals_taken.fetch_add(1, std::memory_order_relaxed);
  sys_set_sigmask(kWorkerMask);
  memcpy(&context->uc_sigmask, &before, sizeof before);
  call(handler, sig, info, context);
  uint64_t after;
  memcpy(&after, &context->uc_sigmask, sizeof after);
  memcpy(&context->uc_sigmask, &kWorkerMask, sizeof kWorkerMask);
  f->sigmask.store(after & ~kUnblockable, std::memory_order_seq_cst);
  f->handler_blocks.store(blocks, std::memory_order_seq_cst);
  if (f->in_runtime.load(std::memory_order_relaxed) != 0) return;  // what came in meanwhile waits for leave()
  int saved = errno;
  set_sigmask(f, after);
  deliver_due(f);
  errno = saved;
}

void on_fault(int sig, siginfo_t* info, void* context) {
  void* handler = stands[sig].handler.load(std::memory_order_acquire);
  Fiber* f = current;
  if (f == nullptr || f->native_only != 0 || !runtime_alive()) return call(handler, sig, info, context);
  handle(f, handler, sig, info, static_cast<ucontext_t*>(context));
}

// The kernel has the program's handler of `sig`: ours takes its place.
void stand_in(int sig) {
  KernelAction a{};
  if (!kernel_action(sig, &a) || a.handler == SIG_DFL || a.handler == SIG_IGN || is_ours(a)) return;
  stands[sig].with_info.store((a.flags & SA_SIGINFO) != 0, std::memory_order_relaxed);
  stands[sig].handler.store(a.handler, std::memory_order_release);
  a.handler = reinterpret_cast<void*>(on_fault);
  a.flags |= SA_SIGINFO;
  sys_call(SYS_rt_sigaction, sig, sys_arg(&a), 0, 8);
}

// A child of vfork has our memory, but handlers of its own.
bool stands_here(int sig) {
  if (!started.load(std::memory_order_acquire) || !is_fault(sig) || !runtime_alive()) return false;
  Fiber* f = current;
  return f == nullptr || f->native_only == (f->bound ? 1 : 0);
}

}  // namespace

void faults_start() {
  for (int sig : kFaults) stand_in(sig);
  started.store(true, std::memory_order_release);
}

void faults_after_fork() { started.store(false, std::memory_order_relaxed); }

bool get_action(int sig, KernelAction* a) {
  if (!kernel_action(sig, a)) return false;
  if (is_ours(*a)) {
    a->handler = stands[sig].handler.load(std::memory_order_acquire);
    if (!stands[sig].with_info.load(std::memory_order_relaxed))
      a->flags &= ~static_cast<unsigned long>(SA_SIGINFO);
  }
  return true;
}

long action_by_number(int sig, const void* set, void* old, size_t size) {
  KernelAction before{};
  bool ours = is_fault(sig) && get_action(sig, &before);
  long r = sys_call(SYS_rt_sigaction, sig, sys_arg(set), sys_arg(old), static_cast<long>(size));
  if (r != 0 || !ours) return r;
  if (old != nullptr) memcpy(old, &before, sizeof before);
  if (set != nullptr && stands_here(sig)) stand_in(sig);
  return r;
}

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT int sigaction(int sig, const struct sigaction* act, struct sigaction* old) noexcept {
  KernelAction before{};
  bool ours = is_fault(sig) && get_action(sig, &before);
  int r = REAL(sigaction)(sig, act, old);
  if (r != 0 || !ours) return r;
  if (old != nullptr) {
    old->sa_sigaction = reinterpret_cast<void (*)(int, siginfo_t*, void*)>(before.handler);
    old->sa_flags = static_cast<int>(before.flags);
  }
  if (act != nullptr && stands_here(sig)) stand_in(sig);
  return r;
}

VTHR_EXPORT int __sigaction(int sig, const struct sigaction* act, struct sigaction* old) noexcept {
  return sigaction(sig, act, old);
}

// The older calls give the handler that was there.
#define OLD_SIGNAL_CALL(name)                                                  \
  VTHR_EXPORT sighandler_t name(int sig, sighandler_t handler) noexcept {      \
    KernelAction before{};                                                     \
    bool ours = is_fault(sig) && get_action(sig, &before);                     \
    sighandler_t r = REAL(name)(sig, handler);                                 \
    if (r == SIG_ERR || !ours) return r;                                       \
    if (stands_here(sig)) stand_in(sig);                                       \
    return r == SIG_HOLD ? r : reinterpret_cast<sighandler_t>(before.handler); \
  }

OLD_SIGNAL_CALL(signal)
OLD_SIGNAL_CALL(bsd_signal)
OLD_SIGNAL_CALL(ssignal)
OLD_SIGNAL_CALL(sysv_signal)
OLD_SIGNAL_CALL(__sysv_signal)

// This one changes the mask too, which libc would do to the worker's.
VTHR_EXPORT sighandler_t sigset(int sig, sighandler_t handler) noexcept {
  Fiber* f = fiber_here();
  struct sigaction set {
  }, old;
  if (f == nullptr) {
    KernelAction before{};
    bool ours = is_fault(sig) && get_action(sig, &before);
    sighandler_t r = REAL_AS(sighandler_t(*)(int, sighandler_t), sigset)(sig, handler);
    if (r == SIG_ERR || r == SIG_HOLD || !ours) return r;
    if (stands_here(sig)) stand_in(sig);
    return reinterpret_cast<sighandler_t>(before.handler);
  }
  if (!is_signal(sig) || (sig_bit(sig) & kUnblockable) != 0) {
    errno = EINVAL;
    return SIG_ERR;
  }
  set.sa_handler = handler;
  if (sigaction(sig, handler == SIG_HOLD ? nullptr : &set, &old) != 0) return SIG_ERR;
  uint64_t one = sig_bit(sig), mask = 0;
  change_sigmask(f, handler == SIG_HOLD ? SIG_BLOCK : SIG_UNBLOCK, &one, &mask);
  return (mask & one) != 0 ? SIG_HOLD : old.sa_handler;
}
