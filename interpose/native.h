// Calls by number that native.cc repeats, for futex.cc. Result or -errno.
#pragma once
#include <ctime>

namespace vthr {

struct Fiber;
// nr: SYS_io_getevents or SYS_io_pgetevents
long native_io_getevents(Fiber* f, long nr, long context, long least, long most, long events, long timeout,
                         long set);

}  // namespace vthr
