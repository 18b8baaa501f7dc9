// Signals of the process (DESIGN D12). The kernel gives them to a thread that does not block them, and workers block all.
// So one thread of ours waits for what some fiber would take, by sigtimedwait: the kernel prefers the initial thread, if
// that takes the signal itself, and else wakes ours, which passes it on as a signal of one fiber.
#include <fcntl.h>
#include <sys/prctl.h>
#include <csignal>
#include <cstring>

#include "interpose/signal.h"

namespace vthr {

// Grows when a fiber unblocks a signal or waits for it; only the signal thread takes one out, when it finds nobody for
// it. Pairs (Dekker): a fiber stores its mask, then reads this word; the signal thread clears a bit, then reads the masks.
std::atomic<uint64_t> signals_wanted{0};

namespace {

std::atomic<int> thread_tid{0};  // set before its first look at the word

// Faults come to the thread that makes them, and workers never block them.
constexpr uint64_t kNever_ = kUnblockable | 1ull << (SIGSEGV - 1) | 1ull << (SIGBUS - 1) |
                             1ull << (SIGFPE - 1) | 1ull << (SIGILL - 1) | 1ull << (SIGTRAP - 1) |
                             1ull << (SIGSYS - 1);

// How well f would take the signal; 0: not at all.
int fitness(Fiber* f, int sig) {
  uint32_t life = f->life.load(std::memory_order_acquire);
  if ((life != kJoinable && life != kDetached) || refuses(f, sig)) return 0;
  if ((f->waits_for.load(std::memory_order_relaxed) & sig_bit(sig)) != 0) return 4;
  switch (WaitWord::state_of(f->wait.load())) {
    case WaitWord::waiting:
    case WaitWord::requesting:
      return 3;
    default:
      break;
  }
  Worker* w = f->worker.load(std::memory_order_relaxed);
  return w != nullptr && w->running.load(std::memory_order_relaxed) == f ? 2 : 1;
}

Fiber* choose(int sig) {
  struct Choice {
    int sig, best;
    Fiber* fiber;
  } choice{sig, 0, nullptr};
  fiber_each(
      [](Fiber* f, void* arg) {
        auto* c = static_cast<Choice*>(arg);
        int fit = fitness(f, c->sig);
        if (fit <= c->best) return;
        c->best = fit;
        c->fiber = f;
      },
      &choice);
  return choice.fiber;
}

// Nobody may want it any more: then it goes back to the process. True: somebody came.
bool still_wanted(int sig) {
  signals_wanted.fetch_and(~sig_bit(sig), std::memory_order_seq_cst);
  if (choose(sig) == nullptr) return false;
  signals_wanted.fetch_or(sig_bit(sig), std::memory_order_seq_cst);
  return true;
}

void pass_on(int sig, const siginfo_t& info) {
  for (;;) {
    Fiber* f = choose(sig);
    if (f == nullptr) {
      if (still_wanted(sig)) continue;
      send_to_process(sig, &info);
      return;
    }
    KernelAction a{};
    get_action(sig, &a);
    if ((f->waits_for.load(std::memory_order_relaxed) & sig_bit(sig)) == 0 && discards(a, sig)) return;
    if (signal_post(f, sig, &info, true) != 0) return;
    uint32_t life = f->life.load(std::memory_order_acquire);
    bool takes = !refuses(f, sig) && (life == kJoinable || life == kDetached);
    // It took it, or gave it back itself, when it is not there any more.
    if (takes || !signal_take_back(f, sig)) {
      notify(f);
      return;
    }
  }
}

void* signal_main(void*) {
  sys_call(SYS_prctl, PR_SET_NAME, sys_arg("vthr-signals"));
  sys_set_sigmask(~sig_bit(kSigSetxid));
  thread_tid.store(sys_gettid(), std::memory_order_seq_cst);
  for (;;) {
    uint64_t set = signals_wanted.load(std::memory_order_seq_cst) | sig_bit(kSigRuntime);
    siginfo_t info;
    long sig = sys_call(SYS_rt_sigtimedwait, sys_arg(&set), sys_arg(&info), 0, 8);
    if (sig > 0 && sig != kSigRuntime) pass_on(static_cast<int>(sig), info);
  }
  return nullptr;
}

}  // namespace

// By the sender's own thread id the kernel believes every siginfo, and sends to the process all the same.
void send_to_process(int sig, const siginfo_t* info) {
  siginfo_t copy = *info;
  sys_call(SYS_rt_sigqueueinfo, sys_gettid(), sig, sys_arg(&copy));
}

void signals_want(uint64_t set) {
  set &= ~kNever_;
  if (VTHR_LIKELY((set & ~signals_wanted.load(std::memory_order_seq_cst)) == 0)) return;
  signals_wanted.fetch_or(set, std::memory_order_seq_cst);
  int tid = thread_tid.load(std::memory_order_seq_cst);
  if (tid != 0) sys_call(SYS_tgkill, sys_call(SYS_getpid), tid, kSigRuntime);
}

void signal_thread_start() { hooks.make_thread(signal_main, nullptr); }

// Does the initial thread block `sig`? Also true when it has ended. By /proc; without it: false.
bool initial_thread_blocks(int sig) {
  char text[2048];
  long fd = sys_call(SYS_openat, AT_FDCWD, sys_arg("/proc/self/status"), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  long n = sys_call(SYS_read, fd, sys_arg(text), sizeof text - 1);
  sys_call(SYS_close, fd);
  if (n <= 0) return false;
  text[n] = 0;
  const char* state = strstr(text, "\nState:\t");
  if (state != nullptr && (state[8] == 'Z' || state[8] == 'X')) return true;
  const char* blocked = strstr(text, "\nSigBlk:\t");
  if (blocked == nullptr) return false;
  uint64_t mask = 0;
  for (const char* p = blocked + 9; *p != '\n' && *p != 0; p++) {
    mask = mask << 4 | static_cast<uint64_t>(*p <= '9' ? *p - '0' : *p - 'a' + 10);
  }
  return (mask & sig_bit(sig)) != 0;
}

void signal_thread_after_fork() {
  thread_tid.store(0, std::memory_order_relaxed);
  signals_wanted.store(0, std::memory_order_relaxed);
}

}  // namespace vthr

using namespace vthr;

// A process that signals itself has handled the signal when kill returns, if the caller takes it and nobody else has to
// (POSIX). Natively the kernel finds the caller; here it finds the signal thread, which the caller overtakes.
VTHR_EXPORT int kill(pid_t pid, int sig) noexcept {
  Fiber* f = fiber_here();
  int r = REAL(kill)(pid, sig);
  if (f == nullptr || r != 0 || pid != static_cast<pid_t>(sys_call(SYS_getpid)) || !is_signal(sig)) return r;
  if ((sig_bit(sig) & kNever_) != 0 || (f->sigmask.load(std::memory_order_relaxed) & sig_bit(sig)) != 0)
    return r;
  if (!initial_thread_blocks(sig)) return r;
  uint64_t only = sig_bit(sig);
  timespec zero{};
  siginfo_t info;
  if (sys_call(SYS_rt_sigtimedwait, sys_arg(&only), sys_arg(&info), sys_arg(&zero), 8) == sig)
    signal_post(f, sig, &info, true);
  deliver_due(f);
  return r;
}
