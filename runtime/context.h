// Switching stacks: Boost.Context's fcontext (which keeps the callee-saved registers, MXCSR and the x87 control word)
// plus the FS base. With VTHR_NO_FS_SWITCH (ThreadSanitizer builds of the unit tests) the stack moves and FS stays:
// TSan keeps its state in TLS, and is told of the switch.
#pragma once
#include <cstddef>

namespace vthr {

struct Context {
  void* sp = nullptr;  // saved stack pointer while switched out, else stale
  void (*entry)(void* arg) = nullptr;
  void* arg = nullptr;
#ifdef __SANITIZE_THREAD__
  void* tsan = nullptr;  // what it knows of this context
#endif
};

// Prepares `ctx` so that the first switch to it calls entry(arg) on the stack that ends at `top`. The new context
// starts with the floating-point control words of the caller, as a new thread does.
void context_make(Context* ctx, void* top, size_t size, void (*entry)(void* arg), void* arg);

// From the scheduler's stack to a fiber's and, when the fiber switches out, back. tcb: FS bases; ignored without FS
// switching. Worker only.
void context_switch_in(Context* fiber, Context* scheduler, void* fiber_tcb, void* worker_tcb);
// From a fiber to the scheduler that runs it now; returns when the fiber is switched in again, maybe by another one.
// Fiber only.
void context_switch_out(Context* fiber, Context* scheduler);

// The saved stack pointer and program counter of a context that is switched out, for unwinding. Any thread that keeps
// the fiber from running, or that can live with garbage.
void context_peek(const Context* ctx, void** sp, void** pc, void** fp);

}  // namespace vthr
