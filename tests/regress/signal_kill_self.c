/* kill(getpid()) by the only thread that takes the signal: its handler has run when kill returns (POSIX). */
#include "../prog/check.h"

#include <stdatomic.h>

static __thread volatile int hits;
static void handler(int unused) {
  (void)unused;
  hits++;
}
static atomic_int stop;
static void* blocked(void* unused) {
  while (!stop) pause_ms(1);
  CHECK(hits == 0, "a blocked signal was delivered");
  return unused;
}
static void* kills(void* unused) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  for (int i = 1; i <= 100; i++) {
    CHECK(kill(getpid(), SIGUSR1) == 0, "kill");
    CHECK(hits == i, "%d signals, the handler ran %d times", i, hits);
  }
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  return unused;
}

int main(void) {
  check_begin();
  signal(SIGUSR1, handler);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  pthread_t t[4];
  for (int i = 0; i < 4; i++) t[i] = start_thread(blocked, NULL);
  for (int i = 0; i < 3; i++) join_thread(start_thread(kills, NULL));
  /* main takes it: then main is who gets it */
  pthread_t other = start_thread(kills, NULL);
  join_thread(other);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  CHECK(kill(getpid(), SIGUSR1) == 0 && hits == 1, "main: %d", hits);
  stop = 1;
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  return check_end();
}
