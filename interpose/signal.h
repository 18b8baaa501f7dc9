// What the files of the signal family share (DESIGN D12). Dispositions are the kernel's; masks and pending signals of
// fibers are words of their records.
//   signal.cc    delivery, masks, pthread_kill      sigpend.cc    pending signals with their siginfo
//   sigthread.cc signals of the process             sigwait.cc    sigwait, sigsuspend, pause
//   altstack.cc  sigaltstack                        setjmp.cc     masks in jump buffers
//   sigaction.cc dispositions, handlers of faults
#pragma once
#include <csignal>

#include "interpose/enter.h"
#include "interpose/thread.h"

namespace vthr {

// The kernel's struct sigaction.
struct KernelAction {
  void* handler;
  unsigned long flags;
  void* restorer;
  uint64_t mask;
};
bool get_action(int sig, KernelAction* a);  // as the program set it; sigaction.cc. Any thread
void faults_start();                        // the handlers that there are; from here on those that come too
void faults_after_fork();
// Does a signal with this action do nothing?
bool discards(const KernelAction& a, int sig);

constexpr uint64_t kUnblockable =
    1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1) | 1ull << (kSigRuntime - 1) | 1ull << (kSigSetxid - 1);
constexpr int kSignals = 64;
constexpr int kFirstRealtime = 32;  // the kernel's: from here on each is queued
inline bool is_signal(int sig) { return sig >= 1 && sig <= kSignals; }

// What glibc's calls take, as the kernel's word.
uint64_t word_of(const sigset_t* set);
void set_of(uint64_t word, sigset_t* set);

// No handler of the program runs on this thread meanwhile: for short sections under a lock that a handler may want too.
class Hushed {
 public:
  Hushed() : fiber_(current) {
    if (fiber_ != nullptr) {
      was_ = fiber_->in_runtime.load(std::memory_order_relaxed);
      fiber_->in_runtime.store(1, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      mask_ = sys_block_signals(~(sig_bit(kSigRuntime) | sig_bit(kSigSetxid)));
    }
  }
  ~Hushed() {
    if (fiber_ != nullptr) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
      fiber_->in_runtime.store(was_, std::memory_order_relaxed);
    } else {
      sys_set_sigmask(mask_);
    }
  }
  Hushed(const Hushed&) = delete;
  Hushed& operator=(const Hushed&) = delete;

 private:
  Fiber* fiber_;
  uint32_t was_ = 0;
  uint64_t mask_ = 0;
};

// Signals that may be taken from f->pending now.
inline uint64_t due_signals(Fiber* f) {
  return f->pending.load(std::memory_order_seq_cst) & ~f->sigmask.load(std::memory_order_seq_cst);
}
inline void deliver_due(Fiber* f) {
  if (VTHR_UNLIKELY(due_signals(f) != 0)) deliver_signals(f);
}
// Those that f lets in or waits for.
inline uint64_t taken_signals(Fiber* f) {
  return ~f->sigmask.load(std::memory_order_seq_cst) | f->waits_for.load(std::memory_order_seq_cst);
}
// f blocks `sig`, not only for the length of a handler, and does not wait for it.
inline bool refuses(Fiber* f, int sig) {
  return ((taken_signals(f) | f->handler_blocks.load(std::memory_order_seq_cst)) & sig_bit(sig)) == 0;
}
void notify(Fiber* f);  // makes f look at its pending signals. Any thread

// The fiber's own mask; `want` nullptr: only asks. 0 or EINVAL.
int change_sigmask(Fiber* f, int how, const uint64_t* want, uint64_t* old);

// sigpend.cc. `info` nullptr: as pthread_kill of this process. `shared`: it was sent to the process, so another thread
// may take it as well. 0, or EAGAIN. Any thread.
int signal_post(Fiber* f, int sig, const siginfo_t* info, bool shared);
// The fiber itself: takes its lowest pending signal of `set`; 0: none.
int signal_take(Fiber* f, uint64_t set, siginfo_t* info);
// Takes a shared signal back that f has not taken; false: too late. The signal thread.
bool signal_take_back(Fiber* f, int sig);
// The fiber itself, after it blocked more or stopped waiting: gives shared signals back to the process that it takes no more.
void signals_give_back(Fiber* f);

// What came in for a bound fiber goes to its kernel thread. Any thread.
void signals_to_kernel(Fiber* f);

// sigthread.cc. Signals of the process of this set may be sent to fibers from now on. Cheap when that is known.
extern std::atomic<uint64_t> signals_wanted;
void signals_want(uint64_t set);
// The signal thread must know now: a fiber does not take those any more; a foreign thread blocks those.
void signals_reconsider(uint64_t set);
void signals_foreign_blocks(uint64_t set);
void signal_thread_start();
void signal_thread_after_fork();
void signal_records_after_fork();
void send_to_process(int sig, const siginfo_t* info);

// altstack.cc. The alternate stack for a handler of f that runs next on the caller's stack; nullptr: none.
void* alternate_stack_for(Fiber* f, const KernelAction& a);
extern "C" void vthr_call_on_stack(void (*function)(void*), void* arg, void* top);

}  // namespace vthr
