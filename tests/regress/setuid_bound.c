/*
 * set*id from the first thread and from another one while a thread has an affinity of its own and new threads block all the
 * time (so that kernel threads are being made): every call ends, and every thread has the new ids.
 */
#include "../prog/net.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum { ROUNDS = 20, BLOCKED = 16 };
static atomic_int stop, waiting;
static int hold[2];

static void* has_affinity(void* unused) {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  CHECK(pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0, "affinity");
  waiting++;
  while (!stop) pause_ms(1);
  CHECK(syscall(SYS_geteuid) == geteuid(), "effective user of the one with an affinity");
  return unused;
}

/* An inline instruction: each of them holds a kernel thread. */
static void* blocked(void* unused) {
  char c;
  long r;
  __asm__ volatile("syscall" : "=a"(r) : "a"((long)SYS_read), "D"((long)hold[0]), "S"(&c), "d"(1L) : "rcx", "r11", "memory");
  CHECK(r == 1, "read: %ld", r);
  CHECK(syscall(SYS_geteuid) == geteuid(), "effective user of a blocked one");
  return unused;
}

static void* changes(void* unused) {
  uid_t other = getuid() == 0 ? 65534 : geteuid();
  for (int i = 0; i < ROUNDS; i++) {
    CHECK(seteuid(other) == 0, "seteuid(%d)", (int)other);
    CHECK(seteuid(getuid()) == 0, "seteuid back");
  }
  return unused;
}

int main(void) {
  check_begin();
  pthread_t bound = start_thread(has_affinity, NULL), t[BLOCKED];
  CHECK(EVENTUALLY(waiting == 1), "bound");
  for (int round = 0; round < 3; round++) {
    NEED(pipe(hold) == 0);
    for (int i = 0; i < BLOCKED; i++) t[i] = start_thread(blocked, NULL);
    changes(NULL);
    join_thread(start_thread(changes, NULL));
    for (int i = 0; i < BLOCKED; i++) CHECK(write(hold[1], "x", 1) == 1, "write");
    for (int i = 0; i < BLOCKED; i++) join_thread(t[i]);
    close(hold[0]);
    close(hold[1]);
  }
  stop = 1;
  join_thread(bound);
  return check_end();
}
