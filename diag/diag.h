// The diagnostics, as interpose/init.cc sees them: the lines of start and end, pin events, the report, the figures.
//
// One thread of ours does nearly all of it. It blocks every signal, and it has a descriptor table of its own
// (close_range with CLOSE_RANGE_UNSHARE): files that it opens never take the program's lowest free number, outlive the
// program's close loops, and do not drop the program's POSIX locks. The program's descriptor 2 is reached through
// pidfd_getfd for the moment of one write, after a look at st_dev and st_ino (DESIGN section 2, promise 1).
#pragma once
#include <cstddef>

#define VTHR_VERSION "0.1.0"

namespace vthr {

// Remembers which file descriptor 2 is and makes the file names of VTHR_LOG and VTHR_REPORT absolute. Prints and
// allocates nothing. Constructor, after options_parse.
void diag_init();

// How many of libc's own functions lead to our code, of how many; why none does (a static string), or nullptr.
struct LibcCoverage {
  int redirected = 0, wanted = 0;
  const char* why = nullptr;
};
// The runtime starts (native_why == nullptr, after sched_start, hooks.make_thread is set) or declines. Says so, with
// the errors in the environment, and starts the diagnostics thread in the first case. The thread of the first
// pthread_create, once per process (again in a forked child).
void diag_started(const char* native_why, const LibcCoverage& libc);

// The process is about to end: the last events and the final report. Waits at most about 200 ms for the diagnostics
// thread, then writes the report itself. Only the first call of a process does anything. Any thread, also from a
// signal handler.
void diag_at_exit();

// fork() in three parts. before: keeps the diagnostics thread out of the loader's and libunwind's locks while the
// process is copied (waits at most 50 ms). Any thread; each before is followed by one of the others.
void diag_before_fork();
void diag_after_fork_in_parent();
// The forked child: nothing of the parent's events or files is left; prints nothing.
void diag_after_fork();

// One line, "vthr: " + text + newline, if VTHR_LOG_LEVEL allows it. Once the diagnostics thread runs it is queued for
// it, so that a full pipe behind descriptor 2 stops nobody else. Any thread, any context; no lock, no allocation.
// level: kLogError, kLogWarn or kLogInfo of runtime/options.h.
__attribute__((format(printf, 2, 3))) void diag_line(int level, const char* format, ...);

// `function` (a string literal) returned ENOTSUP because its thread is a fiber: one line for each function. Any thread.
void diag_not_supported(const char* function);

}  // namespace vthr
