// Signal masks in jump buffers: sigsetjmp saves the mask of the kernel thread, siglongjmp restores it; for a fiber both
// must mean the fiber's. libc's sigset_t is larger than the kernel's set: the fiber's mask goes into the unused end.
#include <csetjmp>
#include <csignal>

#include "interpose/signal.h"

extern "C" {
int __sigsetjmp(struct __jmp_buf_tag* env, int save) noexcept;
[[noreturn]] void __longjmp_chk(struct __jmp_buf_tag* env, int value);
__attribute__((visibility("hidden"))) void* vthr_real_sigsetjmp;
}

namespace vthr {

namespace {

constexpr size_t kMark = 14,
                 kMask = 15;  // words of the saved set; glibc itself uses the first, and one of the next ten
constexpr uint64_t kMarked = 0x7674687273696764;
static_assert(sizeof(sigset_t) == 16 * sizeof(uint64_t), "the layout of jmp_buf");

uint64_t* words(__jmp_buf_tag* env) { return reinterpret_cast<uint64_t*>(&env->__saved_mask); }

// Before libc's longjmp, which sets the mask of the kernel thread to the first word.
void restore_mask(__jmp_buf_tag* env) {
  Fiber* f = fiber_here();
  // Out of a handler, perhaps: what it blocks may stay blocked for ever then.
  if (f != nullptr && f->handler_blocks.load(std::memory_order_relaxed) != 0) {
    f->handler_blocks.store(0, std::memory_order_seq_cst);
    signals_give_back(f);
  }
  if (env->__mask_was_saved == 0) return;
  uint64_t* w = words(env);
  bool of_fiber = w[kMark] == kMarked;
  if (f == nullptr) {
    if (of_fiber) w[0] = w[kMask];  // saved before fork
    return;
  }
  uint64_t mask = of_fiber ? w[kMask] : w[0];
  w[0] = kWorkerMask;
  set_sigmask(f, mask);
  deliver_due(f);
}

}  // namespace

}  // namespace vthr

using namespace vthr;

// Before libc's sigsetjmp(env, save != 0), and the first time. Returns libc's function.
extern "C" __attribute__((visibility("hidden"))) void* vthr_before_sigsetjmp(__jmp_buf_tag* env, int save) {
  if (vthr_real_sigsetjmp == nullptr) vthr_real_sigsetjmp = real_get(real___sigsetjmp);
  if (save != 0) {
    Fiber* f = fiber_here();
    words(env)[kMark] = f != nullptr ? kMarked : 0;
    if (f != nullptr) words(env)[kMask] = f->sigmask.load(std::memory_order_relaxed);
  }
  return vthr_real_sigsetjmp;
}

VTHR_EXPORT void longjmp(__jmp_buf_tag* env, int value) noexcept(false) {
  restore_mask(env);
  REAL(longjmp)(env, value);
  __builtin_unreachable();
}

VTHR_EXPORT void _longjmp(__jmp_buf_tag* env, int value) noexcept(false) {
  restore_mask(env);
  REAL(_longjmp)(env, value);
  __builtin_unreachable();
}

VTHR_EXPORT void siglongjmp(__jmp_buf_tag* env, int value) noexcept(false) {
  restore_mask(env);
  REAL(siglongjmp)(env, value);
  __builtin_unreachable();
}

VTHR_EXPORT void __longjmp_chk(__jmp_buf_tag* env, int value) {
  restore_mask(env);
  REAL(__longjmp_chk)(env, value);
  __builtin_unreachable();
}
