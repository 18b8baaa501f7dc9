#include "runtime/context.h"

#include <boost/context/detail/fcontext.hpp>

#include "runtime/base.h"
#ifndef VTHR_NO_FS_SWITCH
#include "runtime/tls.h"
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace vthr {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

namespace {

// What the side that is entered gets: where to save the side that was left, and itself.
struct Handover {
  Context* left;
  Context* entered;
};

void trampoline(transfer_t from) {
  auto* h = static_cast<Handover*>(from.data);
  h->left->sp = from.fctx;
  h->entered->entry(h->entered->arg);
  __builtin_trap();  // a fiber's entry never returns
}

void jump(Context* from, Context* to) {
  Handover h{from, to};
  void* sp = to->sp;
#ifdef __SANITIZE_THREAD__
  // Orders what was before the switch only for the context that is entered: a fiber that another worker resumes is
  // ordered by our own words or not at all, which TSan then reports.
  from->tsan = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to->tsan, 0);
#endif
  transfer_t back = jump_fcontext(sp, &h);
  static_cast<Handover*>(back.data)->left->sp = back.fctx;
}

}  // namespace

void context_make(Context* ctx, void* top, size_t size, void (*entry)(void* arg), void* arg) {
  ctx->entry = entry;
  ctx->arg = arg;
#ifdef __SANITIZE_THREAD__
  if (ctx->tsan != nullptr) __tsan_destroy_fiber(ctx->tsan);
  ctx->tsan = __tsan_create_fiber(0);
#endif
#ifdef __SANITIZE_ADDRESS__
  // Frames that were never left, of the fiber that had this stack before.
  __asan_unpoison_memory_region(static_cast<char*>(top) - size, size);
#endif
  ctx->sp = make_fcontext(top, size, trampoline);
}

VTHR_NOINLINE void context_switch_in(Context* fiber, Context* scheduler, void* fiber_tcb, void* worker_tcb) {
#ifndef VTHR_NO_FS_SWITCH
  tls_set_fs(fiber_tcb);
  jump(scheduler, fiber);
  tls_set_fs(worker_tcb);
#else
  (void)fiber_tcb;
  (void)worker_tcb;
  jump(scheduler, fiber);
#endif
}

VTHR_NOINLINE void context_switch_out(Context* fiber, Context* scheduler) { jump(fiber, scheduler); }

// The frame that fcontext's x86-64 assembly leaves (boost 1.74, jump_x86_64_sysv_elf_gas.S): control words, r12-r15,
// rbx, rbp, return address.
void context_peek(const Context* ctx, void** sp, void** pc, void** fp) {
  auto* words = static_cast<void**>(ctx->sp);
  *fp = words[6];
  *pc = words[7];
  *sp = words + 8;
}

}  // namespace vthr
