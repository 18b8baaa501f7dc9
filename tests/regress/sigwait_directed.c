/* sigwait, sigwaitinfo and sigtimedwait take what pthread_kill sends to their thread, and a handler of another signal
 * makes them return EINTR. */
#include "../prog/check.h"

#include <stdatomic.h>

static sigset_t set;
static atomic_int taken, handled, ready;
static void handler(int number) {
  (void)number;
  handled++;
}

static void* take(void* argument) {
  long way = (long)argument;
  for (int i = 0; i < 20; i++) {
    int number = -1;
    siginfo_t info;
    struct timespec limit = ms_span(10000);
    memset(&info, 0, sizeof info);
    ready++;
    if (way == 0)
      CHECK(sigwait(&set, &number) == 0, "sigwait");
    else if (way == 1)
      number = sigwaitinfo(&set, &info);
    else
      number = sigtimedwait(&set, &info, &limit);
    CHECK(number == SIGUSR1, "way %ld: %d, errno %d", way, number, errno);
    if (way != 0) CHECK(info.si_signo == SIGUSR1 && info.si_pid == getpid(), "info");
    taken++;
  }
  return NULL;
}

static void* interrupted(void* unused) {
  (void)unused;
  struct timespec limit = ms_span(10000);
  ready++;
  CHECK(sigtimedwait(&set, NULL, &limit) == -1 && errno == EINTR, "not interrupted: errno %d", errno);
  CHECK(handled == 1, "the handler ran %d times", (int)handled);
  return NULL;
}

int main(void) {
  check_begin();
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  NEED(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
  struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART};
  sigaction(SIGUSR2, &a, NULL);
  for (long way = 0; way < 3; way++) {
    taken = ready = 0;
    pthread_t t = start_thread(take, (void*)way);
    for (int i = 0; i < 20; i++) {
      if (i % 2) pause_ms(3); /* else often before it waits */
      CHECK(EVENTUALLY(ready > i || i % 3 == 0), "the thread goes on");
      CHECK(pthread_kill(t, SIGUSR1) == 0, "pthread_kill");
      CHECK(EVENTUALLY(taken == i + 1), "way %ld: signal %d was not taken", way, i);
    }
    join_thread(t);
  }
  ready = 0;
  pthread_t t = start_thread(interrupted, NULL);
  CHECK(EVENTUALLY(ready == 1), "ready");
  pause_ms(50);
  CHECK(pthread_kill(t, SIGUSR2) == 0, "pthread_kill");
  join_thread(t);
  return check_end();
}
