// sigaltstack. A fiber's alternate stack is its worker's while it runs: the scheduler sets it when another fiber had
// another one, so the kernel finds it for real faults and answers questions itself. Handlers that we call switch to it
// here.
#include <csignal>

#include "interpose/signal.h"

namespace vthr {

void* alternate_stack_for(Fiber* f, const KernelAction& a) {
  if ((a.flags & SA_ONSTACK) == 0 || f->altstack.sp == nullptr) return nullptr;
  auto low = reinterpret_cast<uintptr_t>(f->altstack.sp);
  auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  if (here > low && here - low <= f->altstack.size) return nullptr;  // on it already
  return reinterpret_cast<void*>((low + f->altstack.size) & ~15ul);
}

long altstack_fiber(Fiber* f, const void* set, void* old) {
  long r;
  {
    Hushed hushed;  // no change of worker here
    r = sys_call(SYS_sigaltstack, sys_arg(set), sys_arg(old));
    if (r == 0 && set != nullptr) {
      stack_t now{};
      sys_call(SYS_sigaltstack, 0, sys_arg(&now));
      f->altstack = {};
      if ((now.ss_flags & SS_DISABLE) == 0)
        f->altstack = {now.ss_sp, now.ss_size, now.ss_flags & ~SS_ONSTACK};
      f->worker.load(std::memory_order_relaxed)->altstack = f->altstack;
    }
  }
  deliver_due(f);
  return r;
}

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT int sigaltstack(const stack_t* set, stack_t* old) noexcept {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(sigaltstack)(set, old);
  return static_cast<int>(libc_result(altstack_fiber(f, set, old)));
}
