/* The common layout of servers: all threads block the signals, one takes them by sigwait, sigtimedwait or signalfd. */
#include "check.h"

#include <stdatomic.h>
#include <sys/signalfd.h>

static sigset_t set;
static atomic_int stop, taken[65];

static void* work(void* unused) {
  (void)unused;
  while (!stop) pause_ms(1);
  return NULL;
}

enum way { SIGWAIT, SIGWAITINFO, SIGTIMEDWAIT, SIGNALFD, WAYS };
static const char* const way_name[WAYS] = {"sigwait", "sigwaitinfo", "sigtimedwait", "signalfd"};
static void* take_signals(void* argument) {
  enum way way = (enum way)(long)argument;
  int fd = way == SIGNALFD ? signalfd(-1, &set, SFD_CLOEXEC) : -1;
  for (;;) {
    int number = 0;
    siginfo_t info;
    struct signalfd_siginfo from_fd;
    struct timespec limit = ms_span(5);
    memset(&info, 0, sizeof info);
    switch (way) {
      case SIGWAIT:
        CHECK(sigwait(&set, &number) == 0, "sigwait");
        break;
      case SIGWAITINFO:
        number = sigwaitinfo(&set, &info);
        break;
      case SIGTIMEDWAIT:
        do {
          errno = 0;
          number = sigtimedwait(&set, &info, &limit);
        } while (number == -1 && errno == EAGAIN);
        break;
      default:
        CHECK(read(fd, &from_fd, sizeof from_fd) == sizeof from_fd, "signalfd: errno %d", errno);
        number = (int)from_fd.ssi_signo;
        info.si_pid = (pid_t)from_fd.ssi_pid;
        info.si_signo = number;
    }
    CHECK(number > 0 && number <= 64, "%s gave %d, errno %d", way_name[way], number, errno);
    if (number <= 0) break;
    if (way != SIGWAIT)
      CHECK(info.si_signo == number && info.si_pid == getpid(), "signal %d from process %d", info.si_signo,
            (int)info.si_pid);
    taken[number]++;
    if (number == SIGTERM) break;
  }
  if (fd >= 0) close(fd);
  return NULL;
}

static void layout(enum way way) {
  STAGE(way_name[way]);
  pthread_t worker[10];
  stop = 0;
  memset(taken, 0, sizeof taken);
  pthread_t taker = start_thread(take_signals, (void*)(long)way);
  for (int i = 0; i < 10; i++) worker[i] = start_thread(work, NULL);
  for (int i = 1; i <= 10; i++) {
    int number = i % 2 ? SIGHUP : SIGUSR1, before = taken[number];
    CHECK(kill(getpid(), number) == 0, "kill");
    CHECK(EVENTUALLY(taken[number] == before + 1), "signal %d was not taken", number);
  }
  CHECK(kill(getpid(), SIGTERM) == 0, "kill");
  join_thread(taker);
  stop = 1;
  for (int i = 0; i < 10; i++) join_thread(worker[i]);
  CHECK(taken[SIGHUP] == 5 && taken[SIGUSR1] == 5 && taken[SIGTERM] == 1, "taken %d %d %d",
        (int)taken[SIGHUP], (int)taken[SIGUSR1], (int)taken[SIGTERM]);
}

static void* no_signal(void* unused) {
  (void)unused;
  struct timespec limit = ms_span(60), zero = {0, 0}, bad = {0, 1000000000L};
  double begin = now();
  CHECK(sigtimedwait(&set, NULL, &limit) == -1 && errno == EAGAIN, "time-out: errno %d", errno);
  CHECK(now() - begin >= 0.059, "60 ms took %.4f s", now() - begin);
  CHECK(sigtimedwait(&set, NULL, &zero) == -1 && errno == EAGAIN, "no time: errno %d", errno);
  CHECK(sigtimedwait(&set, NULL, &bad) == -1 && errno == EINVAL, "a bad time: errno %d", errno);
  return NULL;
}

int main(void) {
  check_begin();
  sigemptyset(&set);
  sigaddset(&set, SIGHUP);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGTERM);
  NEED(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
  for (int way = 0; way < WAYS; way++) layout((enum way)way);
  STAGE("no signal");
  no_signal(NULL);
  join_thread(start_thread(no_signal, NULL));
  return check_end();
}
