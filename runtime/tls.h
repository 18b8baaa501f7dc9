// glibc's thread control block and TLS block of a fiber (DESIGN D1). No offset is a literal: they come from the
// _thread_db_* descriptors that glibc exports for debuggers, or are measured on a real thread.
#pragma once
#include <cstddef>
#include <cstdint>

namespace vthr {

// The calling thread's FS base: its TCB, which is also its pthread_t. Any thread.
inline void* tls_self() {
  void* p;
  __asm__("mov %%fs:0x10, %0" : "=r"(p));
  return p;
}

// Looks everything up with `find` (dlsym). False with *why when this glibc is not understood. Constructor only.
bool tls_init(void* (*find)(const char* name), const char** why);
// Measures, on a real pthread (a worker), what a fiber's TCB must contain. First worker, before any fiber exists.
void tls_measure_on_worker();

size_t tls_block_size();  // bytes of a block, TCB included; the TCB sits at a fixed offset in it
void* tls_tcb_of_block(void* block);

// Makes the TCB and TLS of a new fiber in zeroed memory `block`, and links it into _dl_stack_user for life.
// nullptr when out of memory (the dtv comes from the program's malloc: hold no runtime lock). Fiber or foreign thread.
void* tls_create(void* block, int tid);
// The same for a kernel thread of ours that glibc does not make: a copy of the first worker's block as it was at its birth.
// Its dtv is the first worker's: code on it must not use dynamic TLS. Allocates nothing. Threads of ours.
void* tls_create_for_worker(void* block);
void tls_renew_for_worker(void* tcb);  // for the next thread on that block; the one before has ended
int* tls_tid_word(void* tcb);
void tls_set_tid(void* tcb, int tid);
int tls_tid(void* tcb);
// On a fresh kernel thread that a fiber will be bound to: glibc's own code finds the kernel's tid in the fiber's TCB, and only
// there, and the kernel the fiber's robust mutexes.
void tls_bind(void* tcb, int kernel_tid);
// On a bound fiber, as its last use of locks: robust mutexes that it still holds are left to their next owners, as the kernel
// does it when a thread ends. The kernel comes too late, after who joined the fiber may go on.
void tls_leave_robust(void* tcb);
// On the fiber, before its start function for the first time.
void tls_first_run();
// On the fiber at its end: C++ thread_local destructors, then the destructors of pthread keys in up to four rounds.
void tls_run_destructors();
// On the fiber, after the destructors: what the next fiber of this block must not see (TLS variables, keys, locale,
// resolver, dlerror, errno). malloc's cache stays.
void tls_recycle();

// `here`, an address of a thread-local variable of the caller, as it is in the thread whose TCB is `tcb`.
template <class T>
T* tls_elsewhere(void* tcb, T* here) {
  return reinterpret_cast<T*>(static_cast<char*>(tcb) +
                              (reinterpret_cast<char*>(here) - static_cast<char*>(tls_self())));
}

// Cancellation bits of the caller's TCB (glibc's cancelhandling word).
int* tls_cancelhandling(void* tcb);
// After fork in a fiber: glibc moved the TCB to its list of used stacks; put it back among the user stacks.
void tls_after_fork_in_fiber();
// In every forked child: the locks of this file may have been held by threads that are gone.
void tls_after_fork();
// Ends the registration of restartable sequences of the calling worker.
void tls_unregister_rseq();

// FS base changes. `fast`: the kernel lets user code do it (AT_HWCAP2 bit 1).
extern bool tls_fast_fs;
void tls_set_fs_slow(void* tcb);
inline void tls_set_fs(void* tcb) {
  if (__builtin_expect(tls_fast_fs, 1)) {
    __asm__ volatile("wrfsbase %0" : : "r"(tcb) : "memory");
  } else {
    tls_set_fs_slow(tcb);
  }
}

}  // namespace vthr
