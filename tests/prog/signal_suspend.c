/* Signals sent to one thread that waits for them: sigwait, sigsuspend, and ppoll and pselect with a mask. */
#include "check.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/select.h>

/* sigsuspend in a thread: exactly the signal that the temporary mask lets through. */
static __thread volatile int hits;
static atomic_int suspended;
static void handler(int unused) {
  (void)unused;
  hits++;
}
static void* suspend(void* unused) {
  (void)unused;
  sigset_t almost_all;
  sigfillset(&almost_all);
  sigdelset(&almost_all, SIGUSR2);
  for (int i = 1; i <= 3; i++) {
    suspended = i;
    CHECK(sigsuspend(&almost_all) == -1 && errno == EINTR, "sigsuspend: errno %d", errno);
    CHECK(hits == i, "the handler ran %d times, want %d", hits, i);
  }
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, NULL, &mask);
  CHECK(sigismember(&mask, SIGUSR2) && !sigismember(&mask, SIGWINCH), "the old mask is back");
  return NULL;
}

/* ppoll or pselect with a mask: the signal is only let in while it waits. */
static void* masked_poll(void* by_select) {
  sigset_t open;
  struct timespec limit = ms_span(20000);
  pthread_sigmask(SIG_BLOCK, NULL, &open);
  sigdelset(&open, SIGUSR2);
  hits = 0;
  suspended = 9;
  if (by_select)
    CHECK(pselect(0, NULL, NULL, NULL, &limit, &open) == -1 && errno == EINTR, "pselect: errno %d", errno);
  else
    CHECK(ppoll(NULL, 0, &limit, &open) == -1 && errno == EINTR, "ppoll: errno %d", errno);
  CHECK(hits == 1, "the handler ran %d times", hits);
  return NULL;
}

static void* wait_for_usr2(void* unused) {
  (void)unused;
  sigset_t set;
  int number = 0;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  for (int i = 1; i <= 5; i++) {
    suspended = i;
    CHECK(sigwait(&set, &number) == 0 && number == SIGUSR2, "sigwait gave %d", number);
  }
  CHECK(hits == 0, "the handler ran although the signal was waited for");
  return NULL;
}

/* Sends one signal for each step that the thread makes. */
static void send_to(pthread_t t, int steps) {
  for (int i = 1; i <= steps; i++) {
    CHECK(EVENTUALLY(suspended == (steps == 1 ? 9 : i)), "step %d", i);
    pause_ms(5);
    CHECK(pthread_kill(t, SIGUSR2) == 0, "pthread_kill"); /* blocked or let in: it is not lost */
  }
  join_thread(t);
  suspended = 0;
}

int main(void) {
  check_begin();
  sigset_t usr2;
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &usr2, NULL);
  signal(SIGUSR2, handler);
  STAGE("sigwait");
  send_to(start_thread(wait_for_usr2, NULL), 5);
  STAGE("sigsuspend");
  send_to(start_thread(suspend, NULL), 3);
  STAGE("ppoll with a mask");
  send_to(start_thread(masked_poll, NULL), 1);
  STAGE("pselect with a mask");
  send_to(start_thread(masked_poll, &usr2), 1);
  return check_end();
}
