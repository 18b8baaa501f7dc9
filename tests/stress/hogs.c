/*
 * Threads that compute without pause, spin and yield beside ones that sleep, lock and talk: all make progress, and the
 * spinners see what they wait for.
 */
// run: modes=default,carriers1
#include "stress.h"

#include <sched.h>
#include <stdatomic.h>

enum { COMPUTERS = 6, TALKERS = 20, PAIRS = 4 };
static atomic_int stop;
static atomic_long computed[COMPUTERS], talked[TALKERS];
static atomic_long turn[PAIRS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_spinlock_t spin;
static long spun;

static void* compute(void* argument) {
  volatile double x = 1;
  while (!stop) {
    for (int i = 0; i < 1000; i++) x = x * 1.0000001 + 0.0001;
    computed[(long)argument]++;
  }
  return NULL;
}

static void* talk(void* argument) {
  int s[2];
  char c = 'x', back;
  stream_pair(s);
  for (int i = 0; i < scaled(60); i++) {
    CHECK(write(s[1], &c, 1) == 1 && read(s[0], &back, 1) == 1, "socket");
    usleep(100);
    pthread_mutex_lock(&lock);
    talked[(long)argument]++;
    pthread_mutex_unlock(&lock);
    if (i % 10 == 0) {
      pthread_spin_lock(&spin);
      spun++;
      pthread_spin_unlock(&spin);
    }
  }
  close(s[0]);
  close(s[1]);
  return NULL;
}

/* Two threads that wait for each other by spinning, one of each pair yields. */
static void* alternate(void* argument) {
  long pair = (long)argument / 2, side = (long)argument % 2;
  for (int i = 0; i < scaled(30); i++) {
    while (turn[pair] % 2 != side)
      if (pair % 2) sched_yield();
    turn[pair]++;
  }
  return NULL;
}

int main(void) {
  stress_begin();
  STAGE("progress");
  pthread_t c[COMPUTERS], t[TALKERS], a[2 * PAIRS];
  pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE);
  for (long i = 0; i < COMPUTERS; i++) c[i] = start_thread(compute, (void*)i);
  for (long i = 0; i < TALKERS; i++) t[i] = start_thread(talk, (void*)i);
  for (long i = 0; i < 2 * PAIRS; i++) a[i] = start_thread(alternate, (void*)i);
  for (int i = 0; i < TALKERS; i++) join_thread(t[i]);
  for (int i = 0; i < 2 * PAIRS; i++) join_thread(a[i]);
  for (int i = 0; i < COMPUTERS; i++) CHECK(EVENTUALLY(computed[i] > 0), "computer %d does not run", i);
  stop = 1;
  STAGE("the end");
  for (int i = 0; i < COMPUTERS; i++) join_thread(c[i]);
  for (int i = 0; i < TALKERS; i++) CHECK(talked[i] == scaled(60), "talker %d: %ld", i, (long)talked[i]);
  CHECK(spun == TALKERS * scaled(60) / 10, "spin lock: %ld", spun);
  return check_end();
}
