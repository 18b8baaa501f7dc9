// A call that has no form without blocking (accept and connect of a blocking socket, reads of terminals), made in a way that
// cannot block its thread for long: a timer's signal ends it. The file's O_NONBLOCK belongs to the program.
#pragma once
#include <signal.h>
#include <cstdint>

namespace vthr {

// One timer, for one thread at a time. It moves to the thread that calls.
class BriefTimer {
 public:
  // The result of the system call, or -EINTR when it would not end within `ns`. The runtime's own code, with the program's
  // signals held off. Without a handler that calls brief_interrupt, or where the kernel refuses a timer: -ENOSYS, and
  // the call was not made.
  long call(int64_t ns, long nr, long a, long b = 0, long c = 0, long d = 0);
  void drop();  // gives the timer back

 private:
  bool for_this_thread();
  int tid_ = 0, id_ = 0;
};

// The handler of kSigRuntime asks this first: true when the signal was such a timer's. Async-signal-safe.
bool brief_interrupt(const siginfo_t* info, void* context);
extern bool brief_handled;  // that handler is installed; set at start

}  // namespace vthr
