/* Semaphores: counting, waiting with and without time limits, posts by main and threads, limits and errors. */
#include "check.h"

#include <limits.h>
#include <semaphore.h>
#include <stdatomic.h>

static sem_t sem;
static atomic_int passed;

static int value_of(sem_t* s) {
  int v = -1;
  CHECK(sem_getvalue(s, &v) == 0, "sem_getvalue");
  return v;
}

static void* wait_once(void* unused) {
  (void)unused;
  errno = 9;
  CHECK(sem_wait(&sem) == 0, "sem_wait: errno %d", errno);
  CHECK(errno == 9, "sem_wait changed errno to %d", errno);
  passed++;
  return NULL;
}

static void counting(void) {
  STAGE("counting");
  pthread_t t[40];
  sem_init(&sem, 0, 5);
  for (int i = 0; i < 40; i++) t[i] = start_thread(wait_once, NULL);
  CHECK(EVENTUALLY(passed == 5), "%d of 5 passed", (int)passed);
  pause_ms(20);
  CHECK(passed == 5 && value_of(&sem) == 0, "%d passed, value %d", (int)passed, value_of(&sem));
  for (int i = 6; i <= 40; i++) {
    CHECK(sem_post(&sem) == 0, "sem_post");
    if (i % 3 == 0) CHECK(EVENTUALLY(passed == i), "%d of %d passed", (int)passed, i);
  }
  for (int i = 0; i < 40; i++) join_thread(t[i]);
  CHECK(value_of(&sem) == 0, "value %d", value_of(&sem));
}

enum way { TRY, TIMED, CLOCK_REAL, CLOCK_MONO, WAYS };
static int take(enum way way, long ms) {
  struct timespec until = ms_from_now(way == CLOCK_MONO ? CLOCK_MONOTONIC : CLOCK_REALTIME, ms);
  switch (way) {
    case TRY:
      return sem_trywait(&sem);
    case TIMED:
      return sem_timedwait(&sem, &until);
    case CLOCK_REAL:
      return sem_clockwait(&sem, CLOCK_REALTIME, &until);
    default:
      return sem_clockwait(&sem, CLOCK_MONOTONIC, &until);
  }
}

static void* times_out(void* argument) {
  enum way way = (enum way)(long)argument;
  double begin = now();
  errno = 0;
  int r = take(way, 80);
  CHECK(r == -1 && errno == (way == TRY ? EAGAIN : ETIMEDOUT), "way %d: %d, errno %d", way, r, errno);
  double took = now() - begin;
  CHECK(way == TRY || took > 0.07, "way %d gave up after %.3f s", way, took);
  r = take(way, -50);
  CHECK(r == -1 && errno == (way == TRY ? EAGAIN : ETIMEDOUT), "way %d in the past: %d, errno %d", way, r,
        errno);
  return NULL;
}
static void* gets_one(void* argument) {
  enum way way = (enum way)(long)argument;
  int r = take(way, 22000);
  CHECK(r == 0, "way %d: errno %d although there were posts", way, errno);
  return NULL;
}

static void with_limits(void) {
  STAGE("time limits");
  pthread_t t[32];
  for (long i = 0; i < 32; i++) t[i] = start_thread(times_out, (void*)(i % WAYS));
  for (int i = 0; i < 32; i++) join_thread(t[i]);
  for (long way = 0; way < WAYS; way++) times_out((void*)way);
  for (long i = 0; i < 32; i++) t[i] = start_thread(gets_one, (void*)(TIMED + i % 3));
  pause_ms(30);
  for (int i = 0; i < 32; i++) sem_post(&sem);
  for (int i = 0; i < 32; i++) join_thread(t[i]);
  CHECK(value_of(&sem) == 0, "value %d after as many waits as posts", value_of(&sem));
  sem_post(&sem);
  for (long way = 0; way < WAYS; way++) { /* available: the time does not matter */
    CHECK(take((enum way)way, -1000) == 0, "way %d with a free semaphore: errno %d", (int)way, errno);
    sem_post(&sem);
  }
  CHECK(sem_trywait(&sem) == 0, "sem_trywait");
}

static void* errors(void* unused) {
  (void)unused;
  sem_t s;
  struct timespec bad = {0, 1000000000L}, until = ms_from_now(CLOCK_MONOTONIC, 1000);
  CHECK(sem_init(&s, 0, (unsigned)INT_MAX + 1) == -1 && errno == EINVAL, "a value too large: errno %d",
        errno);
  CHECK(sem_init(&s, 0, INT_MAX) == 0 && value_of(&s) == INT_MAX, "the largest value");
  CHECK(sem_post(&s) == -1 && errno == EOVERFLOW, "one more: errno %d", errno);
  CHECK(sem_destroy(&s) == 0, "destroy");
  sem_init(&s, 0, 0);
  CHECK(sem_timedwait(&s, &bad) == -1 && errno == EINVAL, "a bad time: errno %d", errno);
  CHECK(sem_clockwait(&s, CLOCK_PROCESS_CPUTIME_ID, &until) == -1 && errno == EINVAL, "a CPU clock: errno %d",
        errno);
  sem_post(&s);
  CHECK(value_of(&s) == 1 && sem_wait(&s) == 0, "own post");
  CHECK(sem_destroy(&s) == 0, "destroy");
  return NULL;
}

/* Two semaphores, main and a thread in turns; the waiter may free the semaphore as soon as it has it. */
static sem_t ping, pong;
static void* echo(void* argument) {
  for (long i = 0; i < (long)argument; i++) {
    sem_wait(&ping);
    sem_post(&pong);
  }
  return NULL;
}
static void* post(void* argument) {
  sem_post(argument);
  return NULL;
}

static void turns(void) {
  STAGE("in turns");
  sem_init(&ping, 0, 0);
  sem_init(&pong, 0, 0);
  pthread_t t = start_thread(echo, (void*)2000);
  for (int i = 0; i < 2000; i++) {
    sem_post(&ping);
    sem_wait(&pong);
  }
  join_thread(t);
  STAGE("freed after the wait");
  for (int i = 0; i < 300; i++) {
    sem_t* s = malloc(sizeof *s);
    sem_init(s, 0, 0);
    t = start_thread(post, s);
    CHECK(sem_wait(s) == 0, "sem_wait");
    sem_destroy(s);
    memset(s, 0xEE, sizeof *s);
    join_thread(t);
    CHECK(((unsigned char*)s)[0] == 0xEE, "the semaphore was touched after the wait");
    free(s);
  }
}

int main(void) {
  check_begin();
  counting();
  with_limits();
  STAGE("errors");
  errors(NULL);
  join_thread(start_thread(errors, NULL));
  turns();
  return check_end();
}
