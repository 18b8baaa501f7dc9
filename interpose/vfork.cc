// The two halves of vfork around the system call in vfork.S.
#include <cerrno>

#include "interpose/enter.h"

namespace {
// Of the calling thread. The child, which shares them, only reads; the parent is suspended meanwhile.
__thread void* return_address __attribute__((tls_model("initial-exec")));
__thread uint64_t worker_mask __attribute__((tls_model("initial-exec")));
}  // namespace

extern "C" __attribute__((visibility("hidden"))) void vthr_vfork_before(void* from) {
  return_address = from;
  vthr::Fiber* f = vthr::current;
  if (f == nullptr || !vthr::runtime_alive()) return;
  if (f->native_only++ == 0) worker_mask = vthr::sys_set_sigmask(f->sigmask.load(std::memory_order_relaxed));
}

struct VforkResult {
  long value;
  void* to;
};

extern "C" __attribute__((visibility("hidden"))) VforkResult vthr_vfork_after(long r) {
  vthr::Fiber* f = vthr::current;
  if (r != 0 && f != nullptr && vthr::runtime_alive() && --f->native_only == 0)
    vthr::sys_set_sigmask(worker_mask);
  if (r < 0) {
    errno = static_cast<int>(-r);
    r = -1;
  }
  return {r, return_address};
}
