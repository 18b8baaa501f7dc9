/*
 * A server that drops its privileges after it has made threads: every thread has the new ids at once, whatever it does,
 * and all go on. As another user than root the ids stay what they are, and the calls still have to end.
 */
#include "net.h"

#include <grp.h>
#include <stdatomic.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>

enum { THREADS = 20 };
static uid_t wanted;
static atomic_int started, look, looked, stop;
static int park[2];

static void ids(const char* who) {
  CHECK((uid_t)syscall(SYS_getuid) == wanted && (uid_t)syscall(SYS_geteuid) == wanted,
        "%s: user %ld, effective %ld, want %d", who, syscall(SYS_getuid), syscall(SYS_geteuid), (int)wanted);
  CHECK((gid_t)syscall(SYS_getegid) == wanted || wanted != 65534, "%s: group %ld", who, syscall(SYS_getegid));
}

static void* thread(void* argument) {
  char c;
  started++;
  switch ((long)argument % 4) {
    case 0: /* sleeps in read until after the change */
      CHECK(read(park[0], &c, 1) == 1, "read");
      break;
    case 1:
      while (!look) pause_ms(1);
      break;
    case 2:
      while (!look) {
      }
      break;
    case 3: { /* in the kernel by its own instruction */
      struct timespec span = ms_span(150);
      long result;
      __asm__ volatile("syscall"
                       : "=a"(result)
                       : "a"((long)SYS_nanosleep), "D"(&span), "S"(0L)
                       : "rcx", "r11", "memory");
      while (!look) pause_ms(1);
      break;
    }
  }
  ids("thread");
  looked++;
  while (!stop) pause_ms(1);
  return NULL;
}

static void* late(void* unused) {
  (void)unused;
  ids("a thread made later");
  return NULL;
}

static void* drop(void* unused) {
  (void)unused;
  if (getuid() == 0) {
    CHECK(setgroups(0, NULL) == 0, "setgroups: errno %d", errno);
    CHECK(setresgid(wanted, wanted, wanted) == 0, "setresgid: errno %d", errno);
  }
  CHECK(setuid(wanted) == 0, "setuid: errno %d", errno);
  ids("the caller");
  if (wanted == 65534) /* no way back */
    CHECK(setuid(0) == -1 && errno == EPERM, "setuid(0): errno %d", errno);
  return NULL;
}

static int server(void* by_thread) {
  pthread_t t[THREADS];
  wanted = getuid() == 0 ? 65534 : getuid();
  NEED(pipe(park) == 0);
  for (long i = 0; i < THREADS; i++)
    t[i] = start_thread(thread, (void*)(i % 4 == 2 && i > 2 ? i + 1 : i)); /* one spinner is enough */
  CHECK(EVENTUALLY(started == THREADS), "threads start");
  pause_ms(10);
  if (by_thread)
    join_thread(start_thread(drop, NULL));
  else
    drop(NULL);
  ids("main");
  look = 1;
  for (int i = 0; i < THREADS; i++) CHECK(write(park[1], "x", 1) == 1, "write");
  CHECK(EVENTUALLY(looked == THREADS), "%d of %d threads go on", (int)looked, THREADS);
  for (int i = 0; i < 5; i++) join_thread(start_thread(late, NULL));
  stop = 1;
  for (int i = 0; i < THREADS; i++) join_thread(t[i]);
  return check_findings != 0;
}

int main(void) {
  check_begin();
  for (long by_thread = 0; by_thread < 2; by_thread++) {
    STAGE(by_thread ? "dropped by a thread" : "dropped by main");
    CHECK(exited_with(in_child(server, (void*)by_thread), 0), "the server");
  }
  return check_end();
}
