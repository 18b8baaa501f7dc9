/* pthread_mutex_timedlock and clocklock: time-outs on both clocks, bad times, success while there is time. */
#include "check.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int lock_until(clockid_t clock, int clocklock, long ms) {
  struct timespec until = ms_from_now(clock, ms);
  return clocklock ? pthread_mutex_clocklock(&lock, clock, &until) : pthread_mutex_timedlock(&lock, &until);
}

static const struct {
  clockid_t clock;
  int clocklock;
  const char* name;
} ways[] = {{CLOCK_REALTIME, 0, "timedlock"},
            {CLOCK_REALTIME, 1, "clocklock realtime"},
            {CLOCK_MONOTONIC, 1, "clocklock monotonic"}};

/* Somebody else holds the lock. */
static void* times_out(void* argument) {
  long i = (long)argument;
  double begin = now();
  int r = lock_until(ways[i].clock, ways[i].clocklock, 80);
  double took = now() - begin;
  CHECK(r == ETIMEDOUT, "%s: %d, want ETIMEDOUT", ways[i].name, r);
  CHECK(took > 0.07 && took < 10, "%s: 80 ms took %.3f s", ways[i].name, took);
  r = lock_until(ways[i].clock, ways[i].clocklock, -1000);
  CHECK(r == ETIMEDOUT, "%s in the past: %d, want ETIMEDOUT", ways[i].name, r);
  struct timespec bad = ms_from_now(ways[i].clock, 1000);
  bad.tv_nsec = 1000000000L;
  r = ways[i].clocklock ? pthread_mutex_clocklock(&lock, ways[i].clock, &bad)
                        : pthread_mutex_timedlock(&lock, &bad);
  CHECK(r == EINVAL, "%s with 10^9 ns: %d, want EINVAL", ways[i].name, r);
  bad.tv_nsec = -1;
  r = ways[i].clocklock ? pthread_mutex_clocklock(&lock, ways[i].clock, &bad)
                        : pthread_mutex_timedlock(&lock, &bad);
  CHECK(r == EINVAL, "%s with -1 ns: %d, want EINVAL", ways[i].name, r);
  return NULL;
}

/* The lock becomes free while there is time. */
static void* gets_it(void* argument) {
  long i = (long)argument;
  int r = lock_until(ways[i].clock, ways[i].clocklock, 20000);
  CHECK(r == 0, "%s: %d although the lock became free", ways[i].name, r);
  if (r == 0) pthread_mutex_unlock(&lock);
  return NULL;
}

/* The lock is free: the time is not looked at. */
static void* free_lock(void* argument) {
  (void)argument;
  struct timespec bad = {-5, 2000000000L};
  for (int i = 0; i < COUNT_OF(ways); i++) {
    CHECK(lock_until(ways[i].clock, ways[i].clocklock, -1000) == 0, "%s in the past, free lock",
          ways[i].name);
    CHECK(pthread_mutex_unlock(&lock) == 0, "unlock");
  }
  CHECK(pthread_mutex_timedlock(&lock, &bad) == 0, "timedlock with a bad time, free lock");
  CHECK(pthread_mutex_unlock(&lock) == 0, "unlock");
  CHECK(pthread_mutex_clocklock(&lock, CLOCK_PROCESS_CPUTIME_ID, &bad) == EINVAL, "clocklock on a CPU clock");
  return NULL;
}

/* A waiter that gave up leaves nothing behind: the next unlock goes to one that still waits. */
static void* gives_up(void* argument) {
  (void)argument;
  CHECK(lock_until(CLOCK_MONOTONIC, 1, 50) == ETIMEDOUT, "lock held by main");
  return NULL;
}
static void* stays(void* argument) {
  CHECK(pthread_mutex_lock(&lock) == 0, "lock");
  ++*(int*)argument;
  CHECK(pthread_mutex_unlock(&lock) == 0, "unlock");
  return NULL;
}

int main(void) {
  check_begin();
  pthread_t t[30];
  STAGE("free lock");
  free_lock(NULL);
  join_thread(start_thread(free_lock, NULL));
  STAGE("held by main");
  pthread_mutex_lock(&lock);
  for (long i = 0; i < 30; i++) t[i] = start_thread(times_out, (void*)(i % 3));
  for (int i = 0; i < 30; i++) join_thread(t[i]);
  for (long i = 0; i < 30; i++) t[i] = start_thread(gets_it, (void*)(i % 3));
  pause_ms(50);
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < 30; i++) join_thread(t[i]);
  STAGE("some give up, some stay");
  int passed = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < 30; i++) t[i] = start_thread(i % 2 ? gives_up : stays, &passed);
  for (int i = 1; i < 30; i += 2) join_thread(t[i]);
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < 30; i += 2) join_thread(t[i]);
  CHECK(passed == 15, "%d of 15 passed", passed);
  STAGE("main waits for a thread");
  pthread_mutex_lock(&lock);
  times_out((void*)0);
  times_out((void*)2);
  pthread_mutex_unlock(&lock);
  CHECK(pthread_mutex_destroy(&lock) == 0, "destroy");
  return check_end();
}
