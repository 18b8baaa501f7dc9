#include "runtime/context.h"

#include <boost/context/detail/fcontext.hpp>

#include "runtime/base.h"
#ifndef VTHR_NO_FS_SWITCH
#include "runtime/tls.h"
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
  transfer_t back = jump_fcontext(to->sp, &h);
  static_cast<Handover*>(back.data)->left->sp = back.fctx;
}

}  // namespace

void context_make(Context* ctx, void* top, size_t size, void (*entry)(void* arg), void* arg) {
  ctx->entry = entry;
  ctx->arg = arg;
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
