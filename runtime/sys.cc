#include "runtime/sys.h"

#include <signal.h>
#include <sys/mman.h>

namespace vthr {

__thread bool sys_own_descriptors __attribute__((tls_model("initial-exec"))) = false;

uint64_t sys_set_sigmask(uint64_t mask) {
  uint64_t old = 0;
  sys_call(SYS_rt_sigprocmask, SIG_SETMASK, sys_arg(&mask), sys_arg(&old), 8);
  return old;
}

uint64_t sys_block_signals(uint64_t set) {
  uint64_t old = 0;
  sys_call(SYS_rt_sigprocmask, SIG_BLOCK, sys_arg(&set), sys_arg(&old), 8);
  return old;
}

#ifdef __SANITIZE_THREAD__
// By names that TSan knows: fresh memory has no past.
void* sys_map(uint64_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

void sys_unmap(void* p, uint64_t bytes) { munmap(p, bytes); }
#else
void* sys_map(uint64_t bytes) {
  long r = sys_call(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
  return r < 0 && r > -4096 ? nullptr : reinterpret_cast<void*>(r);
}

void sys_unmap(void* p, uint64_t bytes) { sys_call(SYS_munmap, sys_arg(p), bytes); }
#endif

}  // namespace vthr
