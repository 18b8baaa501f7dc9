/* Handlers that interrupt a computation and then wait: the threads that run meanwhile can still be interrupted. */
#include "../prog/check.h"

#include <stdatomic.h>

enum { THREADS = 6, ROUNDS = 5 };
static __thread atomic_int* mine;
static atomic_int hits[THREADS], started, stop;
static void handler(int unused) {
  (void)unused;
  (*mine)++;
  pause_ms(10);
}
static void* spins(void* counter) {
  mine = counter;
  started++;
  while (!stop) {
  }
  return NULL;
}

int main(void) {
  check_begin();
  signal(SIGUSR1, handler);
  pthread_t t[THREADS];
  for (int i = 0; i < THREADS; i++) t[i] = start_thread(spins, &hits[i]);
  CHECK(EVENTUALLY(started == THREADS), "%d of %d threads start", (int)started, THREADS);
  for (int round = 1; round <= ROUNDS; round++)
    for (int i = 0; i < THREADS; i++) {
      CHECK(pthread_kill(t[i], SIGUSR1) == 0, "pthread_kill");
      CHECK(EVENTUALLY(hits[i] == round), "thread %d: %d of %d signals", i, (int)hits[i], round);
    }
  stop = 1;
  for (int i = 0; i < THREADS; i++) join_thread(t[i]);
  return check_end();
}
