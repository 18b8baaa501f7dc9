/*
 * Threads that sleep in the kernel by a system call instruction of their own, as a closed library would: 50 other
 * threads go on meanwhile, each of them, with sleeps, locks and pipes.
 */
#include "check.h"

#include <stdatomic.h>
#include <sys/file.h>
#include <sys/syscall.h>

static long inline_syscall(long number, long a, long b, long c) {
  long result;
  register long fourth __asm__("r10") = 0;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                   : "rcx", "r11", "memory");
  return result;
}

enum { TICKERS = 50 };
static atomic_int stop, pinned;
static atomic_long ticks[TICKERS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void* tick(void* argument) {
  long id = (long)argument;
  int p[2];
  char c;
  NEED(pipe(p) == 0);
  while (!stop) {
    switch (id % 3) {
      case 0:
        pause_ms(1);
        break;
      case 1:
        pthread_mutex_lock(&lock);
        usleep(20);
        pthread_mutex_unlock(&lock);
        usleep(500);
        break;
      case 2:
        CHECK(write(p[1], "x", 1) == 1 && read(p[0], &c, 1) == 1, "pipe");
        usleep(500);
        break;
    }
    ticks[id]++;
  }
  close(p[0]);
  close(p[1]);
  return NULL;
}

static int never[2], wake_up[2], lock_fd[2];
static char file_name[128];

enum pin { NANOSLEEP, READ, FLOCK, WAIT4, PINS };
static const char* const pin_name[PINS] = {"nanosleep", "read of a pipe", "flock", "wait4"};
/* Each ends when main says so, but for the sleep, which is long enough. */
static void* pin(void* argument) {
  struct timespec span = ms_span(1000);
  char c;
  pinned++;
  switch ((enum pin)(long)argument) {
    case NANOSLEEP:
      CHECK(inline_syscall(SYS_nanosleep, (long)&span, 0, 0) == 0, "nanosleep");
      break;
    case READ:
      CHECK(inline_syscall(SYS_read, wake_up[0], (long)&c, 1) == 1, "read");
      break;
    case FLOCK:
      CHECK(inline_syscall(SYS_flock, lock_fd[1], LOCK_EX, 0) == 0, "flock");
      CHECK(inline_syscall(SYS_flock, lock_fd[1], LOCK_UN, 0) == 0, "flock");
      break;
    default: {
      pid_t pid = fork();
      if (pid == 0) {
        if (read(never[0], &c, 1)) {
        }
        _exit(3);
      }
      int status = 0;
      CHECK(inline_syscall(SYS_wait4, pid, (long)&status, 0) == pid, "wait4");
      CHECK(exited_with(status, 3), "status %#x", status);
    }
  }
  pinned--;
  return NULL;
}

static int all_ticked(const long* before, long more) {
  for (int i = 0; i < TICKERS; i++)
    if (ticks[i] < before[i] + more) return 0;
  return 1;
}

static void with_pins(enum pin kind, int n) {
  STAGE(pin_name[kind]);
  pthread_t t[20];
  long before[TICKERS];
  if (kind == FLOCK) NEED(flock(lock_fd[0], LOCK_EX) == 0);
  if (kind == WAIT4) NEED(pipe(never) == 0);
  for (int i = 0; i < n; i++) t[i] = start_thread(pin, (void*)(long)kind);
  CHECK(EVENTUALLY(pinned == n), "%d of %d are pinned", (int)pinned, n);
  pause_ms(30);
  for (int i = 0; i < TICKERS; i++) before[i] = ticks[i];
  CHECK(EVENTUALLY(all_ticked(before, 20)), "somebody does not tick while %d threads are in the kernel", n);
  if (kind != NANOSLEEP) CHECK(pinned == n, "%d of %d are pinned", (int)pinned, n);
  for (int i = 0; i < n && kind == READ; i++) CHECK(write(wake_up[1], "x", 1) == 1, "write");
  if (kind == FLOCK) NEED(flock(lock_fd[0], LOCK_UN) == 0);
  if (kind == WAIT4)
    for (int i = 0; i < n; i++) CHECK(write(never[1], "x", 1) == 1, "write");
  for (int i = 0; i < n; i++) join_thread(t[i]);
}

int main(void) {
  check_begin();
  pthread_t t[TICKERS];
  const char* dir = getenv("TMPDIR");
  snprintf(file_name, sizeof file_name, "%.80s/check-pins-%d", dir ? dir : "/tmp", (int)getpid());
  for (int i = 0; i < 2; i++) {
    FILE* f = fopen(file_name, "a");
    NEED(f);
    lock_fd[i] = dup(fileno(f));
    fclose(f);
  }
  unlink(file_name);
  NEED(lock_fd[0] >= 0 && lock_fd[1] >= 0 && pipe(wake_up) == 0);
  for (long i = 0; i < TICKERS; i++) t[i] = start_thread(tick, (void*)i);
  with_pins(NANOSLEEP, 1);
  with_pins(READ, 1);
  with_pins(READ, 20);
  with_pins(FLOCK, 3);
  with_pins(NANOSLEEP, 20);
  with_pins(WAIT4, 5);
  stop = 1;
  for (int i = 0; i < TICKERS; i++) join_thread(t[i]);
  return check_end();
}
