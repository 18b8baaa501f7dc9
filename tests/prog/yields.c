/* Threads that wait by spinning, with sched_yield or without: those they wait for run all the same. */
#include "check.h"

#include <sched.h>
#include <stdatomic.h>

static atomic_int flag, stage, ready, turn, beats;

static void* yield_until_set(void* unused) {
  (void)unused;
  ready++;
  while (!flag) CHECK(sched_yield() == 0, "sched_yield");
  return NULL;
}
static void* spin_until_set(void* unused) {
  (void)unused;
  ready++;
  while (!flag) {
  }
  return NULL;
}
static void* set_flag(void* argument) {
  CHECK(EVENTUALLY(ready == (int)(long)argument), "only %d spinners run", (int)ready);
  flag = 1;
  return NULL;
}

/* `n` spinners, made before the thread that sets their flag. */
static void spin(const char* name, void* (*body)(void*), int n) {
  STAGE(name);
  pthread_t t[64];
  flag = ready = 0;
  for (int i = 0; i < n; i++) t[i] = start_thread(body, NULL);
  join_thread(start_thread(set_flag, (void*)(long)n));
  for (int i = 0; i < n; i++) join_thread(t[i]);
}

/* A ring of threads, each yields until its turn comes. */
enum { RING = 8, LAPS = 30 };
static void* yield_in_turn(void* argument) {
  int id = (int)(long)argument;
  for (int lap = 0; lap < LAPS; lap++) {
    while (turn % RING != id) sched_yield();
    turn++;
  }
  return NULL;
}

/* The chain: thread i spins, without yielding, until thread i + 1 has set its stage. All must run together. */
enum { CHAIN = 12 };
static void* spin_in_chain(void* argument) {
  int id = (int)(long)argument;
  while (stage != CHAIN - id) {
  }
  stage++;
  return NULL;
}

/* Beside endless spinners others still sleep, lock and talk. */
static int pipe_fds[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void* beat(void* unused) {
  (void)unused;
  char c;
  for (int i = 0; i < 10; i++) {
    pause_ms(1);
    pthread_mutex_lock(&lock);
    beats++;
    pthread_mutex_unlock(&lock);
    CHECK(write(pipe_fds[1], "x", 1) == 1 && read(pipe_fds[0], &c, 1) == 1, "pipe");
  }
  return NULL;
}

static void beside_spinners(void) {
  STAGE("work beside spinners");
  pthread_t spinner[6], worker[10];
  flag = ready = 0;
  NEED(pipe(pipe_fds) == 0);
  for (int i = 0; i < 6; i++) spinner[i] = start_thread(spin_until_set, NULL);
  for (int i = 0; i < 10; i++) worker[i] = start_thread(beat, NULL);
  for (int i = 0; i < 10; i++) join_thread(worker[i]);
  flag = 1;
  for (int i = 0; i < 6; i++) join_thread(spinner[i]);
  CHECK(beats == 100, "%d beats", (int)beats);
}

/* A thread that computes without pause does not keep others of the same count from running. */
static atomic_long counts[6];
static void* compute(void* argument) {
  while (!flag) counts[(long)argument]++;
  return NULL;
}
static void all_compute(void) {
  STAGE("more computing threads than processors");
  pthread_t t[6];
  flag = 0;
  for (long i = 0; i < 6; i++) t[i] = start_thread(compute, (void*)i);
  for (int i = 0; i < 6; i++) CHECK(EVENTUALLY(counts[i] > 1000), "thread %d does not run", i);
  flag = 1;
  for (int i = 0; i < 6; i++) join_thread(t[i]);
}

int main(void) {
  check_begin();
  spin("one yields", yield_until_set, 1);
  spin("64 yield", yield_until_set, 64);
  spin("one spins", spin_until_set, 1);
  spin("12 spin", spin_until_set, 12);
  STAGE("yields in turn");
  pthread_t t[CHAIN];
  for (long i = RING - 1; i >= 0; i--) t[i] = start_thread(yield_in_turn, (void*)i);
  for (int i = 0; i < RING; i++) join_thread(t[i]);
  CHECK(turn == RING * LAPS, "turn %d", (int)turn);
  STAGE("chain of spinners");
  stage = 1;
  for (long i = 0; i < CHAIN; i++) t[i] = start_thread(spin_in_chain, (void*)i);
  for (int i = 0; i < CHAIN; i++) join_thread(t[i]);
  beside_spinners();
  all_compute();
  return check_end();
}
