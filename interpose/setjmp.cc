// Signal masks in jump buffers and contexts: sigsetjmp and getcontext save the mask of the kernel thread, siglongjmp and
// setcontext restore it; for a fiber both must mean the fiber's. libc's sigset_t is larger than the kernel's set: the fiber's
// mask goes into the unused end, and the first word stays what libc gives to the kernel.
#include <ucontext.h>
#include <csetjmp>
#include <csignal>

#include "interpose/signal.h"

extern "C" {
[[noreturn]] void __longjmp_chk(struct __jmp_buf_tag* env, int value);
__attribute__((visibility("hidden"))) void* vthr_real_sigsetjmp;
}

namespace vthr {

namespace {

constexpr size_t kMark = 14,
                 kMask = 15;  // words of the saved set; glibc itself uses the first, and one of the next ten
constexpr uint64_t kMarked = 0x7674687273696764;
static_assert(sizeof(sigset_t) == 16 * sizeof(uint64_t), "the layout of jmp_buf");

uint64_t* words(sigset_t* set) { return reinterpret_cast<uint64_t*>(set); }

// Before libc saves the mask.
void save_mask(sigset_t* saved) {
  Fiber* f = fiber_here();
  words(saved)[kMark] = f != nullptr ? kMarked : 0;
  if (f != nullptr) words(saved)[kMask] = f->sigmask.load(std::memory_order_relaxed);
}

// Before libc gives the first word of `saved` to the kernel.
void restore_mask(sigset_t* saved) {
  Fiber* f = fiber_here();
  uint64_t* w = words(saved);
  uint64_t mask = w[kMark] == kMarked ? w[kMask] : w[0];
  if (f == nullptr) {
    w[0] = mask;
    return;
  }
  w[kMark] = kMarked;  // it may be restored again
  w[kMask] = mask;
  w[0] = kWorkerMask;
  set_sigmask(f, mask);
  deliver_due(f);
}

// Out of a handler, perhaps: what it blocks may stay blocked for ever then.
void leave_handler() {
  Fiber* f = fiber_here();
  if (f == nullptr) return;
  f->no_cancel = 0;
  if (f->handler_blocks.load(std::memory_order_relaxed) == 0) return;
  f->handler_blocks.store(0, std::memory_order_seq_cst);
  signals_give_back(f);
}

void before_jump(__jmp_buf_tag* env) {
  leave_handler();
  if (env->__mask_was_saved != 0) restore_mask(&env->__saved_mask);
}

}  // namespace

}  // namespace vthr

using namespace vthr;

// Before libc's sigsetjmp(env, save != 0), and the first time. Returns libc's function.
extern "C" __attribute__((visibility("hidden"))) void* vthr_before_sigsetjmp(__jmp_buf_tag* env, int save) {
  if (vthr_real_sigsetjmp == nullptr) vthr_real_sigsetjmp = real_get(real___sigsetjmp);
  if (save != 0) save_mask(&env->__saved_mask);
  return vthr_real_sigsetjmp;
}

VTHR_EXPORT void longjmp(__jmp_buf_tag* env, int value) noexcept {
  before_jump(env);
  REAL(longjmp)(env, value);
  __builtin_unreachable();
}

VTHR_EXPORT void _longjmp(__jmp_buf_tag* env, int value) noexcept {
  before_jump(env);
  REAL(_longjmp)(env, value);
  __builtin_unreachable();
}

VTHR_EXPORT void siglongjmp(__jmp_buf_tag* env, int value) noexcept {
  before_jump(env);
  REAL(siglongjmp)(env, value);
  __builtin_unreachable();
}

VTHR_EXPORT void __longjmp_chk(__jmp_buf_tag* env, int value) {
  before_jump(env);
  REAL(__longjmp_chk)(env, value);
  __builtin_unreachable();
}

// Before libc's functions of these names, which they return.
#define BEFORE(name) extern "C" __attribute__((visibility("hidden"))) void* vthr_before_##name

BEFORE(getcontext)(ucontext_t* to) {
  save_mask(&to->uc_sigmask);
  return real_get(real_getcontext);
}

BEFORE(setcontext)(ucontext_t* from) {
  leave_handler();
  restore_mask(&from->uc_sigmask);
  return real_get(real_setcontext);
}

// libc saves what the kernel's mask is by the time it is called: that of the context which it goes on in.
BEFORE(swapcontext)(ucontext_t* to, ucontext_t* from) {
  save_mask(&to->uc_sigmask);
  leave_handler();
  restore_mask(&from->uc_sigmask);
  return real_get(real_swapcontext);
}
