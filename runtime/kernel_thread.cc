// pthread_create gets the new thread's dtv from the program's calloc. A malloc that locks a mutex of its own (jemalloc) may
// leave that mutex with a fiber that has no kernel thread to run on, while the service thread makes the very thread: both
// would wait for ever (seen: all workers in fgets, the service thread in calloc). A stock of ended threads in glibc's
// cache, whose dtv is there already, only made it rarer (1 hang in 120 runs instead of 1 in 10). So workers get stack and
// TLS from us: a copy of the TLS block that glibc made for the first one.
#include "runtime/kernel_thread.h"

#include <sched.h>
#include <sys/mman.h>

#include "runtime/base.h"
#include "runtime/sys.h"
#include "runtime/tls.h"

namespace vthr {

Lock kernel_threads_lock;

namespace {

constexpr size_t kStackBytes = 256 << 10;

// At the top of a thread's memory, under its TLS block.
struct Block {
  Block* next;
  void* tcb;
  // 1 from before the clone until the thread has ended; the kernel clears it then (CLONE_CHILD_CLEARTID), off the stack.
  std::atomic<int> alive;
};
Block* blocks;  // all ever made, under the lock

Block* make_block() {
  size_t tls = tls_block_size(), bytes = round_up(kStackBytes + tls, kPage);
  auto* low = static_cast<char*>(sys_map(bytes));
  if (low == nullptr) return nullptr;
  if (sys_call(SYS_mprotect, sys_arg(low), kPage, PROT_NONE) != 0) {
    sys_unmap(low, bytes);
    return nullptr;
  }
  char* tls_block = low + bytes - tls;
  auto* b = reinterpret_cast<Block*>(tls_block - round_up(sizeof(Block), kCacheLine));
  b->tcb = tls_create_for_worker(tls_block);
  b->next = blocks;
  blocks = b;
  return b;
}

Block* dead_block() {
  for (Block* b = blocks; b != nullptr; b = b->next) {
    if (b->alive.load(std::memory_order_acquire) != 0) continue;
    tls_renew_for_worker(b->tcb);
    return b;
  }
  return nullptr;
}

// clone(2) as the kernel takes it: in the child the new stack holds the function and its argument.
VTHR_NOINLINE long clone_thread(void* stack, int* tid, void* cleared, void* tcb, void* (*start)(void*),
                                void* arg) {
  constexpr long kFlags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                          CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
  auto** top = static_cast<void**>(stack);
  *--top = arg;
  *--top = reinterpret_cast<void*>(start);
  long r;
  register void* r10 __asm__("r10") = cleared;
  register void* r8 __asm__("r8") = tcb;
  __asm__ volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "pop %%rax\n\t"
      "pop %%rdi\n\t"
      "call *%%rax\n\t"
      "xor %%edi, %%edi\n\t"
      "mov %[exit], %%eax\n\t"
      "syscall\n\t"
      "hlt\n"
      "1:"
      : "=a"(r)
      : "a"(SYS_clone), "D"(kFlags), "S"(top), "d"(tid), "r"(r10), "r"(r8), [exit] "i"(SYS_exit)
      : "rcx", "r11", "memory");
  return r;
}

}  // namespace

bool kernel_thread_start(void* (*start)(void*), void* arg) {
  Locked hold(kernel_threads_lock);
  Block* b = dead_block();
  if (b == nullptr) b = make_block();
  if (b == nullptr) return false;
  b->alive.store(1, std::memory_order_relaxed);
  if (clone_thread(b, tls_tid_word(b->tcb), &b->alive, b->tcb, start, arg) > 0) return true;
  b->alive.store(0, std::memory_order_relaxed);
  return false;
}

void kernel_threads_after_fork() {
  kernel_threads_lock.reset();
  blocks = nullptr;  // its thread is the parent's
}

}  // namespace vthr
