#include "runtime/brief.h"

#include <time.h>
#include <ucontext.h>
#include <cerrno>
#include <cstring>

#include "runtime/base.h"
#include "runtime/sys.h"

// The system call stands between two labels. A signal that finds the thread between them, before the call or about to
// restart it, sends it to the third: so one signal is enough, whenever it comes.
extern "C" long vthr_brief_syscall(long nr, long a, long b, long c, long d);
extern "C" const char vthr_brief_end[], vthr_brief_interrupted[];
__asm__(
    ".pushsection .text\n"
    ".hidden vthr_brief_syscall, vthr_brief_end, vthr_brief_interrupted\n"
    ".globl vthr_brief_syscall, vthr_brief_end, vthr_brief_interrupted\n"
    ".type vthr_brief_syscall, @function\n"
    "vthr_brief_syscall:\n"
    "  .cfi_startproc\n"
    "  movq %rdi, %rax\n"
    "  movq %rsi, %rdi\n"
    "  movq %rdx, %rsi\n"
    "  movq %rcx, %rdx\n"
    "  movq %r8, %r10\n"
    "  syscall\n"
    "vthr_brief_end:\n"
    "  ret\n"
    "vthr_brief_interrupted:\n"
    "  movq $-4, %rax\n"  // -EINTR
    "  ret\n"
    "  .cfi_endproc\n"
    ".size vthr_brief_syscall, .-vthr_brief_syscall\n"
    ".popsection\n");

namespace vthr {

bool brief_handled;

namespace {
constexpr uintptr_t kMark = 0x76746804;

bool between(uintptr_t pc) {
  return pc >= reinterpret_cast<uintptr_t>(vthr_brief_syscall) &&
         pc < reinterpret_cast<uintptr_t>(vthr_brief_end);
}
}  // namespace

bool brief_interrupt(const siginfo_t* info, void* context) {
  if (info->si_code != SI_TIMER || reinterpret_cast<uintptr_t>(info->si_value.sival_ptr) != kMark)
    return false;
  auto& pc = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
  if (between(static_cast<uintptr_t>(pc))) pc = reinterpret_cast<greg_t>(vthr_brief_interrupted);
  return true;
}

bool BriefTimer::for_this_thread() {
  int tid = sys_gettid();
  if (VTHR_LIKELY(tid == tid_)) return true;
  drop();
  sigevent event;
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = kSigRuntime;
  event.sigev_value.sival_ptr = reinterpret_cast<void*>(kMark);
  event._sigev_un._tid = tid;
  if (sys_call(SYS_timer_create, CLOCK_MONOTONIC, sys_arg(&event), sys_arg(&id_)) != 0) return false;
  tid_ = tid;
  return true;
}

void BriefTimer::drop() {
  if (tid_ != 0) sys_call(SYS_timer_delete, id_);
  tid_ = 0;
}

long BriefTimer::call(int64_t ns, long nr, long a, long b, long c, long d) {
  if (!brief_handled || !for_this_thread()) return -ENOSYS;
  itimerspec when{};
  when.it_value.tv_nsec = ns;
  when.it_interval.tv_nsec =
      kMilli;  // glibc's own handler may be in place for a moment, at its first pthread_cancel
  sys_call(SYS_timer_settime, id_, 0, sys_arg(&when), 0);
  long r = vthr_brief_syscall(nr, a, b, c, d);
  when.it_value.tv_nsec = 0;
  sys_call(SYS_timer_settime, id_, 0, sys_arg(&when), 0);
  return r;
}

}  // namespace vthr
