/*
 * A handler without SA_RESTART ends calls that have no hook, or that a hook makes natively, with EINTR; one with SA_RESTART does
 * not: the call goes on, and has its result.
 */
#include "../prog/check.h"

#include <fcntl.h>
#include <mqueue.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static atomic_int handled, begun;
static char path[] = "/tmp/signal_ends_call.XXXXXX", fifo[100];
static int silent[2], holder_fd, go;
static pid_t child;
static mqd_t queue = (mqd_t)-1;

static void on_signal(int unused) {
  (void)unused;
  handled++;
}

static long inline_read(int fd, void* to, long n) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"((long)SYS_read), "D"((long)fd), "S"(to), "d"(n) : "rcx", "r11", "memory");
  if (result >= 0) return result;
  errno = (int)-result;
  return -1;
}

enum { WAITPID, WAITID, OPEN, FLOCK, SETLKW, INLINE_READ, MQ, SYSCALL_WAIT, CALLS };
static const char* const names[CALLS] = {"waitpid", "waitid", "open of a FIFO", "flock", "fcntl", "read, inline", "mq_receive", "wait4 by number"};

static long call(int which) {
  char text[64];
  int fd;
  long r;
  struct flock whole = {.l_type = F_WRLCK};
  siginfo_t info;
  switch (which) {
    case WAITPID:
      return waitpid(child, NULL, 0) == child ? 0 : -1;
    case WAITID:
      return waitid(P_PID, (id_t)child, &info, WEXITED);
    case OPEN:
      if ((fd = open(fifo, O_RDONLY)) < 0) return -1;
      close(fd);
      return 0;
    case FLOCK:
      fd = open(path, O_RDWR);
      r = flock(fd, LOCK_EX);
      close(fd);
      return r;
    case SETLKW: /* process-wide: its owner is the child */
      fd = open(path, O_RDWR);
      r = fcntl(fd, F_SETLKW, &whole);
      int saved = errno;
      close(fd);
      errno = saved;
      return r;
    case INLINE_READ:
      return inline_read(silent[0], text, 1) == 1 ? 0 : -1;
    case MQ:
      return mq_receive(queue, text, sizeof text, NULL) == 1 ? 0 : -1;
    default:
      return syscall(SYS_wait4, child, NULL, 0, NULL) == child ? 0 : -1;
  }
}

/* What the call waits for comes when the descriptor `go` is closed. */
static void prepare(int which) {
  int p[2], locked[2];
  char c;
  NEED(pipe2(p, O_CLOEXEC) == 0 && pipe2(locked, O_CLOEXEC) == 0);
  child = fork();
  if (child == 0) {
    struct flock whole = {.l_type = F_WRLCK};
    signal(SIGALRM, SIG_DFL);
    alarm(25);
    close(p[1]);
    int fd = open(path, O_RDWR);
    if (which == SETLKW && fcntl(fd, F_SETLK, &whole) != 0) _exit(1);
    if (write(locked[1], "l", 1) != 1) _exit(1);
    while (read(p[0], &c, 1) < 0) {
    }
    if (which == OPEN) fd = open(fifo, O_WRONLY | O_NONBLOCK);
    _exit(0);
  }
  NEED(child > 0 && read(locked[0], &c, 1) == 1);
  close(locked[0]);
  close(locked[1]);
  close(p[0]);
  go = p[1];
  if (which == FLOCK) NEED((holder_fd = open(path, O_RDWR | O_CLOEXEC)) >= 0 && flock(holder_fd, LOCK_EX) == 0);
}
static void fulfil(int which) {
  close(go);
  if (which == FLOCK) close(holder_fd);
  if (which == INLINE_READ) NEED(write(silent[1], "x", 1) == 1);
  if (which == MQ) NEED(mq_send(queue, "x", 1, 0) == 0);
}

struct test {
  int which, restart;
  atomic_int ended;
};
static void* caller(void* argument) {
  struct test* t = argument;
  begun = 1;
  errno = 0;
  long r = call(t->which);
  if (t->restart) CHECK(r == 0, "%s with SA_RESTART: %ld, %s", names[t->which], r, strerror(errno));
  else CHECK(r == -1 && errno == EINTR, "%s without SA_RESTART: %ld, %s", names[t->which], r, strerror(errno));
  t->ended = 1;
  return NULL;
}

static void one(int which, int restart) {
  static struct test t;
  struct sigaction set;
  memset(&set, 0, sizeof set);
  set.sa_handler = on_signal;
  set.sa_flags = restart ? SA_RESTART : 0;
  sigaction(SIGUSR1, &set, NULL);
  t.which = which;
  t.restart = restart;
  t.ended = begun = handled = 0;
  prepare(which);
  pthread_t id = start_thread(caller, &t);
  CHECK(EVENTUALLY(begun), "the thread does not begin");
  pause_ms(3);
  for (int i = 0; restart ? i < 5 : i < 5000 && !t.ended; i++) {
    int before = handled;
    pthread_kill(id, SIGUSR1);
    CHECK(EVENTUALLY(handled > before || t.ended), "%s: the handler does not run", names[which]);
    pause_ms(1);
  }
  CHECK(t.ended == !restart, "%s %s SA_RESTART: %s", names[which], restart ? "with" : "without", t.ended ? "ended" : "goes on");
  fulfil(which);
  join_thread(id);
  while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
  }
  char c;
  if (which == INLINE_READ && !restart) NEED(read(silent[0], &c, 1) == 1);
  char text[64];
  if (which == MQ && !restart) NEED(mq_receive(queue, text, sizeof text, NULL) == 1);
}

int main(void) {
  check_begin();
  char name[64];
  struct mq_attr attr = {.mq_maxmsg = 2, .mq_msgsize = 64};
  NEED(pipe2(silent, O_CLOEXEC) == 0);
  NEED(close(mkstemp(path)) == 0);
  snprintf(fifo, sizeof fifo, "%s.fifo", path);
  NEED(mkfifo(fifo, 0600) == 0);
  snprintf(name, sizeof name, "/signal_ends_call.%d", (int)getpid());
  queue = mq_open(name, O_CREAT | O_RDWR, 0600, &attr);
  if (queue != (mqd_t)-1) mq_unlink(name);
  for (int which = 0; which < CALLS; which++) {
    if (which == MQ && queue == (mqd_t)-1) continue; /* not everywhere there are such */
    for (int restart = 0; restart < 2; restart++) {
      STAGE(names[which]);
      one(which, restart);
    }
  }
  unlink(fifo);
  unlink(path);
  return check_end();
}
