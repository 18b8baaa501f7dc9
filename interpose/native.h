// Calls by number that native.cc repeats or child.cc waits for, for futex.cc. Result or -errno.
#pragma once
#include <ctime>

namespace vthr {

struct Fiber;
// nr: SYS_io_getevents or SYS_io_pgetevents
long native_io_getevents(Fiber* f, long nr, long context, long least, long most, long events, long timeout,
                         long set);

// child.cc. nr: SYS_wait4 or SYS_waitid
long child_by_number(Fiber* f, long nr, long a, long b, long c, long d, long e);

}  // namespace vthr
