/* Many signals to a thread that has no CPU meanwhile: pending ones of one number are one, so its stack does not fill. */
#include "../prog/check.h"

#include <sched.h>
#include <stdatomic.h>

static atomic_int stop, running;
static atomic_long hits;
static void handler(int unused) {
  (void)unused;
  hits++;
}
static void* spins(void* unused) {
  running = 1;
  for (volatile long turns = 0; !stop;) turns++;
  return unused;
}

int main(void) {
  check_begin();
  signal(SIGUSR1, handler);
  signal(SIGUSR2, handler);
  /* On one processor the sender has it for a while, then the spinning thread. */
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof all, &all);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &all)) {
      CPU_SET(cpu, &one);
      break;
    }
  NEED(sched_setaffinity(0, sizeof one, &one) == 0);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 65536);
  pthread_t t;
  NEED(pthread_create(&t, &attr, spins, NULL) == 0);
  CHECK(EVENTUALLY(running), "it does not run");
  for (int round = 0; round < 20; round++) {
    STAGE("flood");
    for (int i = 0; i < 2000; i++) pthread_kill(t, i % 2 ? SIGUSR1 : SIGUSR2);
    long seen = hits;
    STAGE("one more");
    pthread_kill(t, SIGUSR1);
    CHECK(EVENTUALLY(hits > seen), "round %d: a signal was lost", round);
  }
  stop = 1;
  join_thread(t);
  return check_end();
}
