/*
 * Programs that become daemons, with daemon() or by hand, before or after they made threads: their threads work, and
 * whoever reads their output sees its end at once, while the daemon still runs.
 */
// run: name=log
// run: name=stderr env=VTHR_LOG=stderr env=VTHR_LOG_LEVEL=info stderr=ignore proof=own
#include "net.h"

#include <sys/stat.h>

static const char* own_name;
enum how { DAEMON_FIRST, THREADS_FIRST, FROM_THREAD, BY_HAND, HOWS };
static const char* const how_name[HOWS] = {"daemon() before threads", "daemon() after threads",
                                           "daemon() in a thread", "twice forked by hand, after threads"};

static void* square(void* argument) {
  pause_ms(1);
  return (void*)((long)argument * (long)argument);
}
static long use_threads(void) {
  pthread_t t[10];
  long sum = 0;
  for (long i = 0; i < 10; i++) t[i] = start_thread(square, (void*)i);
  for (int i = 0; i < 10; i++) sum += (long)join_thread(t[i]);
  return sum;
}

/* The daemon: tells the parent its sum over descriptor 10, then waits for the word to end on descriptor 11. */
static void be_daemon(void) {
  long sum = use_threads();
  char c;
  if (write(10, &sum, sizeof sum) != sizeof sum || read(11, &c, 1) != 1) _exit(1);
  sum = use_threads() + 1;
  if (write(10, &sum, sizeof sum) != sizeof sum) _exit(1);
}

static void* from_thread(void* unused) {
  (void)unused;
  NEED(daemon(0, 0) == 0);
  be_daemon();
  return NULL;
}

/* The program that is run: prints a line, becomes a daemon, works. */
static int program(enum how how) {
  alarm(20);
  printf("starting\n");
  fflush(stdout);
  if (how != DAEMON_FIRST) use_threads();
  switch (how) {
    case DAEMON_FIRST:
    case THREADS_FIRST:
      NEED(daemon(1, 0) == 0);
      break;
    case FROM_THREAD:
      join_thread(start_thread(from_thread, NULL));
      _exit(0); /* only the first process comes here: daemon() ends it */
    default:
      if (fork() != 0) _exit(0);
      setsid();
      if (fork() != 0) _exit(0);
      umask(0);
      for (int fd = 0; fd < 3; fd++) close(fd);
      NEED(open("/dev/null", O_RDWR) == 0 && dup(0) == 1 && dup(0) == 2);
  }
  be_daemon();
  return 0;
}

static void run(enum how how) {
  STAGE(how_name[how]);
  int out[2], up[2], down[2], status = 0;
  char text[200], number[8];
  size_t length = 0;
  ssize_t n;
  long sum = 0;
  NEED(pipe2(out, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0 && pipe2(down, O_CLOEXEC) == 0);
  snprintf(number, sizeof number, "%d", (int)how);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    /* standard output and error are one pipe, as in a shell's $(... 2>&1) */
    int a = fcntl(up[1], F_DUPFD, 20), b = fcntl(down[0], F_DUPFD, 20);
    if (dup2(out[1], 1) != 1 || dup2(out[1], 2) != 2 || dup2(a, 10) != 10 || dup2(b, 11) != 11) _exit(90);
    close(a);
    close(b);
    execl("/proc/self/exe", own_name, number, (char*)NULL);
    _exit(91);
  }
  close(out[1]);
  close(up[1]);
  close(down[0]);
  CHECK(waitpid(pid, &status, 0) == pid && exited_with(status, 0), "the first process: status %#x", status);
  while (length < sizeof text - 1 && (n = read(out[0], text + length, sizeof text - 1 - length)) > 0)
    length += (size_t)n; /* hangs here if somebody keeps the pipe open */
  text[length] = 0;
  CHECK(strstr(text, "starting\n") != NULL, "output '%s'", text);
  CHECK(read_all(up[0], &sum, sizeof sum) && sum == 285, "sum %ld", sum);
  CHECK(write(down[1], "x", 1) == 1, "the daemon is gone");
  CHECK(read_all(up[0], &sum, sizeof sum) && sum == 286, "second sum %ld", sum);
  CHECK(read(up[0], text, 1) == 0, "the end of the daemon");
  close(out[0]);
  close(up[0]);
  close(down[1]);
}

int main(int argc, char** argv) {
  own_name = argv[0];
  if (argc > 1) return program((enum how)atoi(argv[1]));
  check_begin();
  signal(SIGPIPE, SIG_IGN);
  for (int how = 0; how < HOWS; how++) run((enum how)how);
  CHECK(use_threads() == 285, "threads of the parent");
  return check_end();
}
