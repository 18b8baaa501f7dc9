// Raw system calls: results are the kernel's (-errno), no libc function, no errno, no cancellation point.
// The runtime uses only these, so that it never meets its own hooks. Any thread, any context.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <cstdint>

namespace vthr {

inline long sys_call(long nr, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  long r;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(r)
                   : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return r;
}

template <class T>
inline long sys_arg(T* p) {
  return reinterpret_cast<long>(p);
}

// futex(2), private. rel_ns < 0: no time-out.
inline long sys_futex_wait(const void* addr, uint32_t val, int64_t rel_ns = -1) {
  timespec ts{rel_ns / 1000000000, rel_ns % 1000000000};
  return sys_call(SYS_futex, sys_arg(addr), FUTEX_WAIT_PRIVATE, val, rel_ns < 0 ? 0 : sys_arg(&ts));
}
inline long sys_futex_wake(const void* addr, int n = 1) {
  return sys_call(SYS_futex, sys_arg(addr), FUTEX_WAKE_PRIVATE, n);
}
inline int sys_gettid() { return static_cast<int>(sys_call(SYS_gettid)); }

constexpr int kSigRuntime = 32;  // glibc's SIGCANCEL: no program can use it, workers never block it
constexpr int kSigSetxid = 33;   // glibc's SIGSETXID

// This thread has a descriptor table of its own (sysmon, the diagnostics thread): the runtime's descriptors mean nothing in it.
// Set by itself.
extern __thread bool sys_own_descriptors __attribute__((tls_model("initial-exec")));

// Signal sets are the kernel's 64-bit words here.
inline uint64_t sig_bit(int sig) { return 1ull << (sig - 1); }

// rt_sigprocmask(2) with SIG_SETMASK; returns the old mask.
uint64_t sys_set_sigmask(uint64_t mask);
// The same with SIG_BLOCK: on a thread of the program, which may have blocked what we leave open (libc's timer thread waits
// for signal 32 by sigwaitinfo).
uint64_t sys_block_signals(uint64_t set);

// Anonymous private memory, zeroed, MAP_NORESERVE; nullptr when refused.
void* sys_map(uint64_t bytes);
void sys_unmap(void* p, uint64_t bytes);

}  // namespace vthr
