// Life of fibers as seen by the hooks.
#pragma once
#include "runtime/runtime.h"

namespace vthr {

// init.cc. Brings the runtime up at the first pthread_create; false: this process runs natively.
bool runtime_ready();
void process_ends();                       // the last report; from _exit and its like, any thread
void not_supported(const char* function);  // says once that it returns ENOTSUP on a fiber
int runtime_pid();  // the process that our memory belongs to: a vfork child has another
// thread.cc
void fiber_after_fork_in_child(Fiber* f);  // f is the child's only thread now, a kernel thread with f's TCB
void last_fiber_ended();
// signal.cc
void deliver_signals(Fiber* f);  // pending and unblocked ones, on the caller's stack. The fiber, not entered
void raise_in_fiber(Fiber* f, int sig);  // as if the kernel sent it to this thread; handled before it returns
bool signal_restarts(Fiber* f);          // every handler since the last enter() had SA_RESTART
int kill_fiber(Fiber* f, int sig);       // pthread_kill's result
int kill_fiber_tid(int tid, int sig);    // tgkill's result, -errno
void cancel_here();  // a cancellation point: unwinds if pthread_cancel was called and is allowed
void cancel_from_signal(Fiber* f);  // the same for asynchronous cancellation; the handler of kAskCancel
void signals_wrap_handlers();       // of signals 32 and 33; after the first worker exists
uint64_t inherited_sigmask();       // of the caller, for a new fiber

}  // namespace vthr
