// Life of fibers as seen by the hooks.
#pragma once
#include <csignal>

#include "runtime/runtime.h"

namespace vthr {

// init.cc. Brings the runtime up at the first pthread_create; false: this process runs natively.
bool runtime_ready();
void process_ends();                       // the last report; from _exit and its like, any thread
void not_supported(const char* function);  // says once that it returns ENOTSUP on a fiber
const char* linked_sanitizer();            // sanitizer.cc: which one the program contains, or nullptr
int runtime_pid();  // the process that our memory belongs to: a vfork child has another
// thread.cc
void fiber_after_fork_in_child(Fiber* f);  // f is the child's only thread now, a kernel thread with f's TCB
void last_fiber_ended();
void child_after_fork();  // child.cc
// signal.cc and its family
void deliver_signals(Fiber* f);  // pending and unblocked ones, on the caller's stack. The fiber, not entered
void raise_in_fiber(Fiber* f, int sig);  // as if the kernel sent it to this thread; handled before it returns
bool signal_restarts(Fiber* f);          // every handler since the last enter() had SA_RESTART
int kill_fiber(Fiber* f, int sig, const siginfo_t* info = nullptr);  // pthread_kill's result
int kill_fiber_tid(int tid, int sig);                                // tgkill's result, -errno
void cancel_here();  // a cancellation point: unwinds if pthread_cancel was called and is allowed
void cancel_from_signal(Fiber* f);  // the same for asynchronous cancellation; the handler of kAskCancel
void signals_wrap_handlers();       // of signals 32 and 33; after the first worker exists
void signals_start();               // that, and the signal thread
void signals_after_fork();
uint64_t inherited_sigmask();               // of the caller, for a new fiber
void set_sigmask(Fiber* f, uint64_t mask);  // of f, by itself or before it runs; delivers nothing yet
void signals_fiber_bound(Fiber* f);         // by itself, on the kernel thread that is its own from now on
void signals_fiber_ends(Fiber* f);          // by itself, after its last destructor: it takes none any more
// Calls by number: the result or -errno. Sets are the kernel's eight bytes.
long wait_for_signal(Fiber* f, const void* set, siginfo_t* info, const timespec* limit);
long suspend_fiber(Fiber* f, const void* mask);  // sigsuspend; nullptr: pause
long altstack_fiber(Fiber* f, const void* set, void* old);
long action_by_number(int sig, const void* set, void* old, size_t size);  // rt_sigaction. Any thread
uint64_t pending_of(Fiber* f);

// The kernel's signal mask of workers and all threads of ours: everything but faults and glibc's own two.
constexpr uint64_t kWorkerMask =
    ~(1ull << (kSigRuntime - 1) | 1ull << (kSigSetxid - 1) | 1ull << (SIGSEGV - 1) | 1ull << (SIGBUS - 1) |
      1ull << (SIGFPE - 1) | 1ull << (SIGILL - 1) | 1ull << (SIGTRAP - 1) | 1ull << (SIGSYS - 1));

}  // namespace vthr
