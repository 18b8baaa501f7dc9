/*
 * A server that closes descriptors 0, 1 and 2: clients' connections get these numbers. Threads sleep, spin and block in
 * the kernel meanwhile, and every client receives the server's bytes and not one more.
 */
// run: name=log
// run: name=stderr env=VTHR_LOG=stderr env=VTHR_LOG_LEVEL=info env=VTHR_STATS=50ms proof=own
#include "net.h"

#include <stdatomic.h>
#include <sys/syscall.h>

enum { CLIENTS = 3 };
static struct sockaddr_in address;
static atomic_int stop;

static long inline_sleep(long ms) {
  struct timespec span = ms_span(ms);
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"((long)SYS_nanosleep), "D"(&span), "S"(0L)
                   : "rcx", "r11", "memory");
  return result;
}

static void* pinned(void* unused) {
  (void)unused;
  while (!stop) CHECK(inline_sleep(60) == 0, "inline nanosleep");
  return NULL;
}
static void* ticker(void* unused) {
  (void)unused;
  while (!stop) pause_ms(1);
  return NULL;
}

static void* serve(void* argument) {
  int fd = (int)(long)argument;
  char line[64];
  for (int i = 0; i < 10; i++) {
    int n = snprintf(line, sizeof line, "answer %d on %d\n", i, fd);
    CHECK(write(fd, line, (size_t)n) == n, "write");
    pause_ms(40);
  }
  close(fd);
  return NULL;
}

/* Runs in another process, which has its own descriptors. Exit code 0: all three got exactly their lines. */
static int clients(void* unused) {
  (void)unused;
  int fds[CLIENTS], bad = 0;
  for (int i = 0; i < CLIENTS; i++) fds[i] = connected_to(&address);
  for (int i = 0; i < CLIENTS; i++) {
    char got[2000] = "", want[2000] = "";
    size_t length = 0;
    ssize_t n;
    int number = -1;
    while ((n = read(fds[i], got + length, sizeof got - 1 - length)) > 0) length += (size_t)n;
    got[length] = 0;
    if (sscanf(got, "answer 0 on %d", &number) != 1 || number < 0 || number > 2) bad = 1;
    length = 0;
    for (int k = 0; k < 10; k++)
      length += (size_t)snprintf(want + length, sizeof want - length, "answer %d on %d\n", k, number);
    if (strcmp(got, want) != 0) bad = 2 + i;
  }
  return bad;
}

int main(void) {
  check_begin();
  int out = fcntl(1, F_DUPFD_CLOEXEC, 60), lfd = listener(&address, 8);
  NEED(out == 60);
  if (lfd < 20) NEED(dup2(lfd, 20) == 20 && close(lfd) == 0);
  lfd = lfd < 20 ? 20 : lfd;
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    signal(SIGALRM, SIG_DFL);
    alarm(20);
    _exit(clients(NULL));
  }
  for (int fd = 0; fd < 3; fd++) close(fd);
  /* the first threads of the process: whatever starts with them finds no standard descriptors */
  pthread_t t[CLIENTS], p[3], k[5];
  for (int i = 0; i < 3; i++) p[i] = start_thread(pinned, NULL);
  for (int i = 0; i < 5; i++) k[i] = start_thread(ticker, NULL);
  pause_ms(100);
  for (int i = 0; i < CLIENTS; i++) {
    int fd = accept(lfd, NULL, NULL);
    if (fd != i) _exit(50 + fd);
    t[i] = start_thread(serve, (void*)(long)fd);
  }
  for (int i = 0; i < CLIENTS; i++) join_thread(t[i]);
  stop = 1;
  for (int i = 0; i < 3; i++) join_thread(p[i]);
  for (int i = 0; i < 5; i++) join_thread(k[i]);
  int status = 0;
  if (waitpid(child, &status, 0) != child || !exited_with(status, 0))
    _exit(WIFEXITED(status) ? 70 + WEXITSTATUS(status) : 69);
  NEED(dup2(out, 1) == 1);
  return check_end();
}
