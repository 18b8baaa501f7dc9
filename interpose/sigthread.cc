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
// That a bit stays for a while after the last one blocked the signal costs a detour. Only real-time signals could lose
// their order by it. So the signal thread takes no more of them than are wanted: who waits for one (and not for the next)
// is served once; and where a foreign thread may be the one that they wait for, fibers that block them say so.
std::atomic<uint64_t> signals_wanted{0};

namespace {

std::atomic<int> thread_tid{0};  // set before its first look at the word

// Faults come to the thread that makes them, and workers never block them.
constexpr uint64_t kNotPassedOn = kUnblockable | 1ull << (SIGSEGV - 1) | 1ull << (SIGBUS - 1) |
                                  1ull << (SIGFPE - 1) | 1ull << (SIGILL - 1) | 1ull << (SIGTRAP - 1) |
                                  1ull << (SIGSYS - 1);

bool lives(Fiber* f) {
  uint32_t life = f->life.load(std::memory_order_acquire);
  return life == kJoinable || life == kDetached;
}

// What f takes from the process.
uint64_t wanted_by(Fiber* f) {
  if (!lives(f)) return 0;
  uint64_t set =
      ~f->sigmask.load(std::memory_order_seq_cst) | f->handler_blocks.load(std::memory_order_seq_cst);
  uint64_t waits_for = f->waits_for.load(std::memory_order_seq_cst);
  return waits_for != 0 && !f->wait_claimed.load(std::memory_order_seq_cst) ? set | waits_for : set;
}

// How well f would take the signal; 0: not at all.
int fitness(Fiber* f, int sig) {
  if ((wanted_by(f) & sig_bit(sig)) == 0) return 0;
  if ((f->waits_for.load(std::memory_order_relaxed) & sig_bit(sig)) != 0) return 5;
  if ((f->sigmask.load(std::memory_order_relaxed) & sig_bit(sig)) != 0) return 1;  // after a handler
  switch (WaitWord::state_of(f->wait.load())) {
    case WaitWord::waiting:
    case WaitWord::requesting:
      return 4;
    default:
      break;
  }
  Worker* w = f->worker.load(std::memory_order_relaxed);
  return w != nullptr && w->running.load(std::memory_order_relaxed) == f ? 3 : 2;
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

// Takes those of `set` out of the word that nobody wants any more.
void reconsider(uint64_t set) {
  signals_wanted.fetch_and(~set, std::memory_order_seq_cst);
  uint64_t all = 0;
  fiber_each([](Fiber* f, void* arg) { *static_cast<uint64_t*>(arg) |= wanted_by(f); }, &all);
  signals_wanted.fetch_or(all & set & ~kNotPassedOn, std::memory_order_seq_cst);
}

void pass_on(int sig, const siginfo_t& info) {
  for (;;) {
    Fiber* f = choose(sig);
    if (f == nullptr) {
      reconsider(sig_bit(sig));
      if ((signals_wanted.load(std::memory_order_seq_cst) & sig_bit(sig)) != 0) continue;  // somebody came
      send_to_process(sig, &info);
      return;
    }
    uint64_t waits_for = f->waits_for.load(std::memory_order_seq_cst);
    bool waiter = (waits_for & sig_bit(sig)) != 0;
    KernelAction a{};
    get_action(sig, &a);
    if (!waiter && discards(a, sig)) return;
    if (waiter) f->wait_claimed.store(true, std::memory_order_seq_cst);
    if (signal_post(f, sig, &info, true) != 0) return;
    if (waiter) reconsider(waits_for);
    // When it is not there any more, f took it, or gave it back itself.
    if ((!refuses(f, sig) && lives(f)) || !signal_take_back(f, sig)) {
      if ((taken_signals(f) & sig_bit(sig)) != 0) notify(f);
      return;
    }
  }
}

std::atomic<uint64_t> to_reconsider{0};
// Real-time signals that a foreign thread was seen to block; only grows.
std::atomic<uint64_t> foreign_blocks{0};

void wake_signal_thread() {
  int tid = thread_tid.load(std::memory_order_seq_cst);
  if (tid != 0) sys_call(SYS_tgkill, sys_call(SYS_getpid), tid, kSigRuntime);
}

void* signal_main(void*) {
  sys_call(SYS_prctl, PR_SET_NAME, sys_arg("vthr-signals"));
  sys_set_sigmask(~sig_bit(kSigSetxid));
  thread_tid.store(sys_gettid(), std::memory_order_seq_cst);
  for (;;) {
    uint64_t again = to_reconsider.exchange(0, std::memory_order_seq_cst);
    if (again != 0) reconsider(again);
    uint64_t set = signals_wanted.load(std::memory_order_seq_cst) | sig_bit(kSigRuntime);
    siginfo_t info;
    long sig = sys_call(SYS_rt_sigtimedwait, sys_arg(&set), sys_arg(&info), 0, 8);
    if (sig > 0 && sig != kSigRuntime) pass_on(static_cast<int>(sig), info);
  }
  return nullptr;
}

void send(int sig, siginfo_t* info) {
  // By the sender's own thread id the kernel believes every siginfo, and sends to the process all the same.
  sys_call(SYS_rt_sigqueueinfo, sys_gettid(), sig, sys_arg(info));
}

Lock return_lock;  // who gives real-time signals back
constexpr size_t kHeld = 128;
siginfo_t held[kHeld];

}  // namespace

// It was the first: those of its kind that came meanwhile go behind it again.
void send_to_process(int sig, const siginfo_t* info) {
  siginfo_t copy = *info;
  if (sig < kFirstRealtime) {
    send(sig, &copy);
    return;
  }
  Hushed hushed;
  Locked hold(return_lock);
  size_t n = 0;
  uint64_t only = sig_bit(sig);
  timespec zero{};
  while (n < kHeld &&
         sys_call(SYS_rt_sigtimedwait, sys_arg(&only), sys_arg(&held[n]), sys_arg(&zero), 8) == sig)
    n++;
  send(sig, &copy);
  for (size_t i = 0; i < n; i++) send(sig, &held[i]);
}

void signals_want(uint64_t set) {
  set &= ~kNotPassedOn;
  if (VTHR_LIKELY((set & ~signals_wanted.load(std::memory_order_seq_cst)) == 0)) return;
  signals_wanted.fetch_or(set, std::memory_order_seq_cst);
  wake_signal_thread();
}

void signals_reconsider(uint64_t set) {
  set &= foreign_blocks.load(std::memory_order_relaxed);
  if (VTHR_LIKELY(set == 0)) return;
  set &= signals_wanted.load(std::memory_order_seq_cst);
  if (set == 0) return;
  to_reconsider.fetch_or(set, std::memory_order_seq_cst);
  wake_signal_thread();
}

void signals_foreign_blocks(uint64_t set) {
  constexpr uint64_t kRealtime = ~0ull << (kFirstRealtime - 1);
  set &= kRealtime & ~foreign_blocks.load(std::memory_order_relaxed);
  if (VTHR_LIKELY(set == 0)) return;
  foreign_blocks.fetch_or(set, std::memory_order_relaxed);
  signals_reconsider(set);
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
  return_lock.reset();
  to_reconsider.store(0, std::memory_order_relaxed);
  thread_tid.store(0, std::memory_order_relaxed);
  signals_wanted.store(0, std::memory_order_relaxed);
}

}  // namespace vthr

using namespace vthr;

// A process that signals itself has handled the signal when kill returns, if the caller takes it and nobody else has to
// (POSIX). The kernel would find the signal thread, which the caller cannot wait for: so it takes the signal itself, as one of
// the threads that the kernel may choose. Real-time signals keep to the kernel's queue, for their order.
VTHR_EXPORT int kill(pid_t pid, int sig) noexcept {
  Fiber* f = fiber_here();
  if (f == nullptr || pid != static_cast<pid_t>(sys_call(SYS_getpid)) || !is_signal(sig) ||
      sig >= kFirstRealtime || (sig_bit(sig) & kNotPassedOn) != 0 ||
      (f->sigmask.load(std::memory_order_relaxed) & sig_bit(sig)) != 0 || !initial_thread_blocks(sig)) {
    return REAL(kill)(pid, sig);
  }
  siginfo_t info{};
  info.si_signo = sig;
  info.si_code = SI_USER;
  info.si_pid = pid;
  info.si_uid = static_cast<uid_t>(sys_call(SYS_getuid));
  int err = signal_post(f, sig, &info, true);
  deliver_due(f);
  return static_cast<int>(libc_result(-err));
}
