// Functions that take a pthread_t and cannot serve a fiber yet: glibc's would use a thread id that the kernel does not
// know. They say ENOTSUP, with one line each; for real threads they pass through.
#include <pthread.h>
#include <cerrno>
#include <csignal>

#include "interpose/enter.h"
#include "interpose/thread.h"

using namespace vthr;

#define LATER(name, params, args)                        \
  VTHR_EXPORT int name params noexcept {                 \
    if (fiber_of(id) == nullptr) return REAL(name) args; \
    not_supported(#name);                                \
    return ENOTSUP;                                      \
  }

LATER(pthread_sigqueue, (pthread_t id, int sig, const sigval value), (id, sig, value))
