// pthread_once: glibc's word, the parking lot for those who wait.
#include <unwind.h>
#include <cerrno>

#include "interpose/mutex.h"

// Calls routine(), in a frame whose personality is once_abandoned: should an exception, pthread_exit or a cancellation
// pass through, the unwinder calls it. A cleanup or catch in C++ would do the same through the _Unwind_Resume of our
// static libgcc, which need not understand the program's unwinder; this needs nothing of any unwinder.
extern "C" void once_call(void (*routine)());
extern "C" __attribute__((visibility("hidden"), used)) _Unwind_Reason_Code once_abandoned(
    int version, _Unwind_Action actions, uint64_t exception_class, void* exception, void* context);
__asm__(R"(
  .pushsection .text
  .hidden once_call
  .globl once_call
  .type once_call, @function
once_call:
  .cfi_startproc
  .cfi_personality 0x1b, once_abandoned
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call *%rdi
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  ret
  .cfi_endproc
  .size once_call, . - once_call
  .popsection
)");

namespace vthr {

namespace {

// The program's word:
//   0                  not run yet
//   process id*4 + 1   running in that process: in a forked child the thread that ran it does not exist, so the word
//                      counts as 0 there. (Every other value of the two low bits: the same, as in glibc.)
//   2                  has run
// 0 -> running: the one that runs it (acq_rel). running -> 2: after the routine (release), and running -> 0 when the
// routine was left by an exception, pthread_exit or cancellation; both then wake all. Pairs: that release with the
// acquire loads of all who return.
constexpr int kRunning = 1, kDone = 2;

// Routines under way on this thread, innermost first, as their frames are on the stack.
struct Run {
  std::atomic<int>* word;
  Run* outer;
};
__thread Run* runs = nullptr;

void finish(std::atomic<int>* word, int value) {
  word->store(value, std::memory_order_release);
  unpark_all(word);
}

VTHR_NOINLINE int once_slow(std::atomic<int>* word, void (*routine)()) {
  const int running = static_cast<int>(sys_call(SYS_getpid)) * 4 + kRunning;
  ParkArgs args;
  args.reason = Reason::once;
  args.deaf = waits_deaf();
  args.still_arg = const_cast<int*>(&running);
  args.still = [](const void* key, void* arg) {
    return static_cast<const std::atomic<int>*>(key)->load(std::memory_order_relaxed) ==
           *static_cast<int*>(arg);
  };
  for (;;) {
    int v = word->load(std::memory_order_acquire);
    if ((v & kDone) != 0) return 0;
    if (v == running) {
      park_uncancelled(word, args);
    } else if (word->compare_exchange_strong(v, running, std::memory_order_acq_rel)) {
      break;
    }
  }
  Run run{word, runs};
  runs = &run;
  once_call(routine);
  runs = run.outer;
  finish(word, kDone);
  return 0;
}

}  // namespace

}  // namespace vthr

using namespace vthr;

// In the search phase nothing is decided yet; in the second the frame is gone for good.
extern "C" _Unwind_Reason_Code once_abandoned(int, _Unwind_Action actions, uint64_t, void*, void*) {
  if ((actions & _UA_CLEANUP_PHASE) != 0 && runs != nullptr) {
    Run* run = runs;
    runs = run->outer;
    finish(run->word, 0);
  }
  return _URC_CONTINUE_UNWIND;
}

VTHR_EXPORT int pthread_once(pthread_once_t* once, void (*routine)()) {
  std::atomic<int>* word = &atomic_at(once);
  if (VTHR_LIKELY((word->load(std::memory_order_acquire) & kDone) != 0)) return 0;
  if (VTHR_UNLIKELY(native_all != 0)) return REAL(pthread_once)(once, routine);
  return once_slow(word, routine);
}

VTHR_ALIAS(__pthread_once, pthread_once);
