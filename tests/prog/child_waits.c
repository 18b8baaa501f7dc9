/*
 * Waiting for children in threads: each of several that wait gets its own, a wait ends when the child does and not before, by signal
 * handlers, by pidfds, by signalfd; SIGCHLD ignored, no zombies; errors.
 */
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>

static atomic_int ticks, stop, children_seen;

static void* ticker(void* unused) {
  sigset_t set; /* or it would be this thread that takes, and drops, what the event loop waits for */
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  while (!stop) {
    ticks++;
    usleep(300);
  }
  return unused;
}
/* A child that ends when its pipe does, so that a test decides when. */
static pid_t child_of(int code, int* end) {
  int p[2];
  NEED(pipe2(p, O_CLOEXEC) == 0);
  pid_t child = fork();
  if (child == 0) {
    char c;
    dup2(p[0], 0);
    close_range(3, ~0u, 0); /* other children's pipes among them */
    signal(SIGALRM, SIG_DFL);
    alarm(20);
    while (read(0, &c, 1) < 0) {
    }
    if (code < 0) kill(getpid(), -code);
    _exit(code);
  }
  NEED(child > 0);
  close(p[0]);
  *end = p[1];
  return child;
}

struct waiting {
  pid_t child;
  int how, code, end;
  atomic_int done;
};
static void* waiter(void* argument) {
  struct waiting* w = argument;
  int status = -1;
  siginfo_t info;
  struct rusage usage;
  memset(&info, 0, sizeof info);
  memset(&usage, 0xff, sizeof usage);
  switch (w->how) {
    case 0:
      CHECK(waitpid(w->child, &status, 0) == w->child, "waitpid: %s", strerror(errno));
      break;
    case 1:
      CHECK(wait4(w->child, &status, 0, &usage) == w->child && usage.ru_maxrss > 0, "wait4: %s", strerror(errno));
      break;
    case 2: {
      CHECK(waitid(P_PID, (id_t)w->child, &info, WEXITED | WNOWAIT) == 0 && info.si_pid == w->child, "waitid: %s", strerror(errno));
      CHECK(waitpid(w->child, &status, WNOHANG) == w->child, "the child that waitid left");
      CHECK(info.si_status == (WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status)), "si_status %d", info.si_status);
      break;
    }
    case 3: {
      int fd = (int)syscall(SYS_pidfd_open, w->child, 0);
      if (fd >= 0) {
        struct pollfd p = {fd, POLLIN, 0};
        int r;
        while ((r = poll(&p, 1, -1)) < 0 && errno == EINTR) {
        }
        CHECK(r == 1 && (p.revents & POLLIN), "poll of a pidfd: %d, %x", r, p.revents);
        close(fd);
      }
      CHECK(waitpid(w->child, &status, fd >= 0 ? WNOHANG : 0) == w->child, "the child of a pidfd");
      break;
    }
    case 4:
      while (waitpid(w->child, &status, WNOHANG) == 0) usleep(500);
      break;
  }
  CHECK(w->code < 0 ? killed_by(status, -w->code) : exited_with(status, w->code), "way %d: status %x, want %d", w->how,
        (unsigned)status, w->code);
  w->done = 1;
  return NULL;
}
static void each_its_own(void) {
  static struct waiting w[20];
  pthread_t t[COUNT_OF(w)];
  for (int i = 0; i < COUNT_OF(w); i++) {
    w[i].how = i % 5;
    w[i].code = i % 4 == 3 ? -SIGTERM : 10 + i;
    w[i].done = 0;
    w[i].child = child_of(w[i].code, &w[i].end);
    t[i] = start_thread(waiter, &w[i]);
  }
  int before = ticks;
  CHECK(EVENTUALLY(ticks > before + 10), "others do not go on while all wait");
  for (int i = 0; i < COUNT_OF(w); i++) CHECK(!w[i].done, "wait %d ended before its child", i);
  for (int i = COUNT_OF(w) - 1; i >= 0; i--) {
    close(w[i].end);
    join_thread(t[i]);
    for (int k = 0; k < i; k++) CHECK(!w[k].done, "wait %d ended with child %d", k, i);
  }
}

static void on_child(int unused) {
  int saved = errno, status;
  (void)unused;
  while (waitpid(-1, &status, WNOHANG) > 0) children_seen++;
  errno = saved;
}
static void* spawner(void* argument) {
  for (int i = 0; i < 10; i++) {
    int end;
    child_of(5, &end);
    usleep(200);
    close(end);
  }
  return argument;
}
static void by_handler(void) {
  struct sigaction set;
  pthread_t t[4];
  memset(&set, 0, sizeof set);
  set.sa_handler = on_child;
  set.sa_flags = SA_RESTART;
  sigaction(SIGCHLD, &set, NULL);
  for (int i = 0; i < 4; i++) t[i] = start_thread(spawner, NULL);
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  CHECK(EVENTUALLY(children_seen == 40), "%d of 40 children seen", (int)children_seen);
  signal(SIGCHLD, SIG_IGN);
  for (int i = 0; i < 4; i++) t[i] = start_thread(spawner, NULL);
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  errno = 0;
  CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD, "zombies although SIGCHLD is ignored");
  signal(SIGCHLD, SIG_DFL);
}

/* A thread that reads SIGCHLD from a descriptor, as event loops do; all threads block the signal. */
static void* by_signalfd(void* unused) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  int fd = signalfd(-1, &set, SFD_CLOEXEC), seen = 0, status;
  NEED(fd >= 0);
  while (seen < 20) {
    struct signalfd_siginfo info;
    if (read(fd, &info, sizeof info) != sizeof info) continue;
    CHECK(info.ssi_signo == SIGCHLD, "signal %u", info.ssi_signo);
    while (waitpid(-1, &status, WNOHANG) > 0) seen++;
  }
  close(fd);
  return unused;
}
static void event_loop(void) {
  sigset_t set, old;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &set, &old);
  pthread_t loop = start_thread(by_signalfd, NULL), t[2];
  for (int i = 0; i < 2; i++) t[i] = start_thread(spawner, NULL);
  for (int i = 0; i < 2; i++) join_thread(t[i]);
  join_thread(loop);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void nothing(int unused) { (void)unused; }
static void* interrupted(void* argument) {
  struct waiting* w = argument;
  int status;
  CHECK(waitpid(w->child, &status, 0) == -1 && errno == EINTR, "a wait that a handler interrupts");
  w->done = 1;
  return NULL;
}
static void errors(void) {
  static struct waiting w;
  siginfo_t info;
  struct sigaction set;
  CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD, "no child: %s", strerror(errno));
  CHECK(waitid(P_ALL, 0, &info, 0) == -1 && errno == EINVAL, "waitid without options");
  memset(&set, 0, sizeof set);
  set.sa_handler = nothing;
  sigaction(SIGUSR1, &set, NULL);
  w.child = child_of(3, &w.end);
  w.done = 0;
  pthread_t t = start_thread(interrupted, &w);
  for (int i = 0; i < 3000 && !w.done; i++) {
    pthread_kill(t, SIGUSR1);
    usleep(1000);
  }
  join_thread(t);
  close(w.end);
  CHECK(waitpid(w.child, NULL, 0) == w.child, "the child is still there");
}
static void* errors_in_thread(void* unused) {
  errors();
  return unused;
}

int main(void) {
  check_begin();
  pthread_t k = start_thread(ticker, NULL);
  for (int i = 0; i < 2; i++) {
    STAGE("each its own");
    each_its_own();
    STAGE("handlers");
    children_seen = 0;
    by_handler();
    STAGE("signalfd");
    event_loop();
    STAGE("errors");
    join_thread(start_thread(errors_in_thread, NULL));
    errors();
  }
  stop = 1;
  join_thread(k);
  return check_end();
}
