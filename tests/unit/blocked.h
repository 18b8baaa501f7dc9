// A thread that blocks in a place that is known, and the record that sysmon would make of it: registers from /proc, a copy
// of its stack, made before the thread ended.
#pragma once
#include <pthread.h>
#include <sys/uio.h>
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "diag/unwind.h"

namespace {

using namespace vthr;

std::atomic<int> blocked_tid{0};
uint32_t word = 0;  // the futex that inline calls wait for
int pipe_fds[2];

#define NOT_INLINED __attribute__((noinline, noclone, unused))
// Keeps a call from being the last thing of its function, and the function from being optimised away.
#define AFTER() __asm__ volatile("" ::: "memory")

long inline_futex_wait() __attribute__((always_inline));
inline long inline_futex_wait() {
  long r;
  register long r10 __asm__("r10") = 0;
  __asm__ volatile("syscall"
                   : "=a"(r)
                   : "0"(202L), "D"(&word), "S"(128L), "d"(0L), "r"(r10)
                   : "rcx", "r11", "memory");
  return r;
}

NOT_INLINED void leaf_with_inline_call() {
  while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) == 0) inline_futex_wait();
  AFTER();
}
NOT_INLINED void middle_function(int n) {
  volatile char use[200];
  use[n] = 1;
  (void)use[n];
  leaf_with_inline_call();
  AFTER();
}
NOT_INLINED void outer_function(int n) {
  middle_function(n + 1);
  AFTER();
}
NOT_INLINED void other_outer_function(int n) {
  middle_function(n + 2);
  AFTER();
}

NOT_INLINED __attribute__((optimize("no-omit-frame-pointer"))) void leaf_with_frame_pointer() {
  volatile char use[300];
  use[7] = 1;
  (void)use[7];
  while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) == 0) inline_futex_wait();
  AFTER();
}
NOT_INLINED __attribute__((optimize("no-omit-frame-pointer"))) void caller_with_frame_pointer() {
  leaf_with_frame_pointer();
  AFTER();
}

NOT_INLINED __attribute__((optimize("O0"))) void read_a_line() {
  FILE* f = fdopen(dup(pipe_fds[0]), "r");
  char line[64];
  if (fgets(line, sizeof line, f) == nullptr) abort();
  fclose(f);
  AFTER();
}
NOT_INLINED void read_many_lines() {
  read_a_line();
  AFTER();
}

struct Blocked {
  pthread_t id;
  void (*function)();
};
void* blocked_main(void* arg) {
  blocked_tid.store(gettid());
  static_cast<Blocked*>(arg)->function();
  return nullptr;
}

// Reads /proc/self/task/TID/syscall; true once the thread sleeps in `call`.
bool look(int tid, long call, PinRecord* r) {
  std::ifstream file("/proc/self/task/" + std::to_string(tid) + "/syscall");
  std::string text;
  std::getline(file, text);
  unsigned long long a[8];
  long nr;
  if (sscanf(text.c_str(), "%ld %llx %llx %llx %llx %llx %llx %llx %llx", &nr, &a[0], &a[1], &a[2], &a[3],
             &a[4], &a[5], &a[6], &a[7]) != 9 ||
      nr != call)
    return false;
  r->call = nr;
  r->call_known = true;
  for (int i = 0; i < 6; i++) r->args[i] = a[i];
  r->sp = a[6];
  r->pc = a[7];
  return true;
}

// Blocks a thread in `function`, copies its stack, ends it: the record is of a stack that is gone.
PinRecord* record_of(void (*function)(), long call) {
  auto* r = new PinRecord;
  r->stack = new char[kStackCopy];
  __atomic_store_n(&word, 0, __ATOMIC_RELEASE);
  blocked_tid.store(0);
  Blocked b{0, function};
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_create(&b.id, &attr, blocked_main, &b);
  void* stack;
  size_t size;
  pthread_getattr_np(b.id, &attr);
  pthread_attr_getstack(&attr, &stack, &size);
  while (blocked_tid.load() == 0 || !look(blocked_tid.load(), call, r)) usleep(1000);
  size_t want = static_cast<char*>(stack) + size - reinterpret_cast<char*>(r->sp);
  if (want > kStackCopy) want = kStackCopy;
  iovec to{r->stack, want}, from{reinterpret_cast<void*>(r->sp), want};
  ssize_t n = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
  r->stack_bytes = n > 0 ? static_cast<size_t>(n) : 0;
  r->has_stack = r->stack_bytes > 0;
  __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
  sys_futex_wake(&word, 100);
  if (call == SYS_read && write(pipe_fds[1], "line\n", 5) != 5) abort();
  pthread_join(b.id, nullptr);
  pthread_attr_destroy(&attr);
  r->fiber_id = 42;
  strcpy(r->fiber_name, "conn");
  r->worker_id = 3;
  r->handed_off = true;
  r->started = 1000 * kSecond;
  r->ended = r->started + 213 * kMilli;
  r->wall_started = 1714567890 * kSecond + 123 * kMilli;
  return r;
}

}  // namespace
