/* What signals carry to threads: pthread_sigqueue and sigqueue, real-time signals in order and each of them. */
#include "../prog/check.h"

#include <stdatomic.h>

enum { N = 20 };
static __thread int got[200], count;
static void handler(int signal_number, siginfo_t* info, void* unused) {
  (void)unused;
  CHECK(info->si_signo == signal_number && info->si_code == SI_QUEUE && info->si_pid == getpid() && info->si_uid == getuid(),
        "signal %d, code %d, from %d", info->si_signo, info->si_code, (int)info->si_pid);
  if (count < 200) got[count++] = signal_number * 1000 + info->si_value.sival_int;
}

static atomic_int ready, sent;
static void* by_handler(void* unused) {
  sigset_t set, old;
  sigfillset(&set);
  pthread_sigmask(SIG_BLOCK, &set, &old);
  ready = 1;
  while (!sent) pause_ms(1);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  CHECK(EVENTUALLY(count == 2 * N + 1), "%d handlers", count);
  /* the lowest signal first, as the kernel takes them: its handler is interrupted by the next ones, so only the order
     within one signal is sure */
  int next[65] = {0}, usr1 = 0;
  for (int i = 0; i < count; i++) {
    int s = got[i] / 1000, v = got[i] % 1000;
    if (s == SIGUSR1) {
      usr1++;
      CHECK(v == 0, "the first one counts");
    } else {
      CHECK(v == next[s], "signal %d: value %d, want %d", s, v, next[s]);
      next[s]++;
    }
  }
  CHECK(usr1 == 1, "SIGUSR1 came %d times", usr1);
  return unused;
}

static void* by_sigwait(void* unused) {
  sigset_t set;
  siginfo_t info;
  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN);
  sigaddset(&set, SIGRTMIN + 1);
  ready = 1;
  while (!sent) pause_ms(1);
  for (int i = 0; i < 2 * N; i++) {
    int s = sigwaitinfo(&set, &info);
    CHECK(s == (i < N ? SIGRTMIN : SIGRTMIN + 1), "signal %d comes as number %d, errno %d", s, i, errno);
    CHECK(info.si_value.sival_int == i % N && info.si_code == SI_QUEUE, "value %d", info.si_value.sival_int);
  }
  return unused;
}

/* Sent while the thread waits, or runs and lets them in. */
static void in_order(int s, int* next, int value) {
  CHECK(value == next[s - SIGRTMIN], "signal %d: value %d, want %d", s, value, next[s - SIGRTMIN]);
  next[s - SIGRTMIN]++;
}
static void* live_sigwait(void* unused) {
  sigset_t set;
  siginfo_t info;
  int next[2] = {0, 0};
  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN);
  sigaddset(&set, SIGRTMIN + 1);
  ready = 1;
  for (int i = 0; i < 2 * N; i++) {
    int s = sigwaitinfo(&set, &info);
    if (s < 0) CHECK(0, "sigwaitinfo: errno %d", errno);
    if (s > 0) in_order(s, next, info.si_value.sival_int);
  }
  return unused;
}
static void* live_handler(void* unused) {
  sigset_t both;
  int next[2] = {0, 0};
  sigemptyset(&both);
  sigaddset(&both, SIGRTMIN);
  sigaddset(&both, SIGRTMIN + 1);
  pthread_sigmask(SIG_UNBLOCK, &both, NULL);
  ready = 1;
  CHECK(EVENTUALLY(count == 2 * N), "%d handlers", count);
  for (int i = 0; i < count; i++) in_order(got[i] / 1000, next, got[i] % 1000);
  return unused;
}

int main(void) {
  check_begin();
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  sigfillset(&action.sa_mask);
  NEED(sigaction(SIGRTMIN, &action, NULL) == 0 && sigaction(SIGRTMIN + 1, &action, NULL) == 0 &&
       sigaction(SIGUSR1, &action, NULL) == 0);
  STAGE("to a thread, by handlers");
  pthread_t t = start_thread(by_handler, NULL);
  CHECK(EVENTUALLY(ready), "ready");
  for (int i = 0; i < N; i++) {
    union sigval v = {.sival_int = i};
    CHECK(pthread_sigqueue(t, SIGRTMIN + 1, v) == 0 && pthread_sigqueue(t, SIGRTMIN, v) == 0, "pthread_sigqueue");
    CHECK(pthread_sigqueue(t, SIGUSR1, v) == 0, "pthread_sigqueue");
  }
  union sigval none = {0};
  CHECK(pthread_sigqueue(t, 65, none) == EINVAL && pthread_sigqueue(t, 0, none) == 0, "errors");
  sent = 1;
  join_thread(t);
  sigset_t both;
  sigemptyset(&both);
  sigaddset(&both, SIGRTMIN);
  sigaddset(&both, SIGRTMIN + 1);
  pthread_sigmask(SIG_BLOCK, &both, NULL);
  for (int to_process = 0; to_process < 2; to_process++) {
    STAGE(to_process ? "to the process, by sigwait" : "to a thread, by sigwait");
    ready = sent = 0;
    t = start_thread(by_sigwait, NULL);
    CHECK(EVENTUALLY(ready), "ready");
    for (int i = 0; i < N; i++) {
      union sigval v = {.sival_int = i};
      for (int k = 1; k >= 0; k--)
        CHECK((to_process ? sigqueue(getpid(), SIGRTMIN + k, v) : pthread_sigqueue(t, SIGRTMIN + k, v)) == 0, "sigqueue");
    }
    sent = 1;
    join_thread(t);
  }
  for (int handlers = 0; handlers < 2; handlers++) {
    STAGE(handlers ? "to the process, live, by handlers" : "to the process, live, by sigwait");
    ready = 0;
    t = start_thread(handlers ? live_handler : live_sigwait, NULL);
    CHECK(EVENTUALLY(ready), "ready");
    for (int i = 0; i < N; i++) {
      union sigval v = {.sival_int = i};
      for (int k = 1; k >= 0; k--) CHECK(sigqueue(getpid(), SIGRTMIN + k, v) == 0, "sigqueue");
    }
    join_thread(t);
  }
  return check_end();
}
