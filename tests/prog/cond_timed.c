/* Timed waits on condition variables: both clocks, bad times, wake-ups in time, a mutex held again after each. */
#include "check.h"

static pthread_mutex_t lock;
static pthread_cond_t on_realtime = PTHREAD_COND_INITIALIZER, on_monotonic;
static int go;

enum way { REALTIME, MONOTONIC, CLOCKWAIT_REAL, CLOCKWAIT_MONO, WAYS };
static const char* const way_name[WAYS] = {"timedwait", "timedwait monotonic", "clockwait realtime",
                                           "clockwait monotonic"};

static clockid_t clock_of(enum way way) {
  return way == REALTIME || way == CLOCKWAIT_REAL ? CLOCK_REALTIME : CLOCK_MONOTONIC;
}

static int wait_until(enum way way, const struct timespec* until) {
  switch (way) {
    case REALTIME:
      return pthread_cond_timedwait(&on_realtime, &lock, until);
    case MONOTONIC:
      return pthread_cond_timedwait(&on_monotonic, &lock, until);
    case CLOCKWAIT_REAL: /* the clock of the object does not matter for these two */
      return pthread_cond_clockwait(&on_monotonic, &lock, CLOCK_REALTIME, until);
    default:
      return pthread_cond_clockwait(&on_realtime, &lock, CLOCK_MONOTONIC, until);
  }
}

static void* times_out(void* argument) {
  enum way way = (enum way)(long)argument;
  int r;
  CHECK(pthread_mutex_lock(&lock) == 0, "lock");
  struct timespec until = ms_from_now(clock_of(way), 80);
  double begin = now();
  while ((r = wait_until(way, &until)) == 0) {
  }
  double took = now() - begin;
  CHECK(r == ETIMEDOUT, "%s returned %d", way_name[way], r);
  CHECK(took > 0.07 && took < 10, "%s: 80 ms took %.3f s", way_name[way], took);
  CHECK(pthread_mutex_unlock(&lock) == 0, "%s: mutex not held after the time-out", way_name[way]);

  pthread_mutex_lock(&lock);
  until = ms_from_now(clock_of(way), -10);
  r = wait_until(way, &until);
  CHECK(r == ETIMEDOUT, "%s in the past returned %d", way_name[way], r);
  CHECK(pthread_mutex_unlock(&lock) == 0, "%s: mutex not held after a time in the past", way_name[way]);

  pthread_mutex_lock(&lock);
  until = ms_from_now(clock_of(way), 1000);
  until.tv_nsec = 1000000000L;
  CHECK((r = wait_until(way, &until)) == EINVAL, "%s with 10^9 ns returned %d", way_name[way], r);
  until.tv_nsec = -1;
  CHECK((r = wait_until(way, &until)) == EINVAL, "%s with -1 ns returned %d", way_name[way], r);
  CHECK(pthread_mutex_unlock(&lock) == 0, "%s: mutex not held after EINVAL", way_name[way]);
  return NULL;
}

static void* woken(void* argument) {
  enum way way = (enum way)(long)argument;
  struct timespec until = ms_from_now(clock_of(way), 22000);
  int r = 0;
  pthread_mutex_lock(&lock);
  while (!go && r == 0) r = wait_until(way, &until);
  CHECK(r == 0, "%s returned %d although it was woken", way_name[way], r);
  CHECK(pthread_mutex_unlock(&lock) == 0, "%s: mutex not held after the wake-up", way_name[way]);
  return NULL;
}

/* The time is over while somebody else holds the mutex: the waiter returns ETIMEDOUT only with the mutex. */
static void* slow_return(void* argument) {
  enum way way = (enum way)(long)argument;
  pthread_mutex_lock(&lock);
  go = 1;
  struct timespec until = ms_from_now(clock_of(way), 40);
  int r;
  while ((r = wait_until(way, &until)) == 0) {
  }
  CHECK(r == ETIMEDOUT, "%s returned %d", way_name[way], r);
  CHECK(go == 2, "%s returned while another thread held the mutex", way_name[way]);
  CHECK(pthread_mutex_unlock(&lock) == 0, "unlock");
  return NULL;
}

int main(void) {
  check_begin();
  pthread_mutexattr_t mutex_attr;
  pthread_mutexattr_init(&mutex_attr);
  pthread_mutexattr_settype(&mutex_attr, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&lock, &mutex_attr);
  pthread_condattr_t attr;
  clockid_t back;
  pthread_condattr_init(&attr);
  CHECK(pthread_condattr_getclock(&attr, &back) == 0 && back == CLOCK_REALTIME, "default clock %d",
        (int)back);
  CHECK(pthread_condattr_setclock(&attr, CLOCK_PROCESS_CPUTIME_ID) == EINVAL, "a CPU clock was accepted");
  NEED(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
  CHECK(pthread_condattr_getclock(&attr, &back) == 0 && back == CLOCK_MONOTONIC, "clock %d", (int)back);
  NEED(pthread_cond_init(&on_monotonic, &attr) == 0);

  pthread_t t[10 * WAYS];
  STAGE("time-outs");
  for (long i = 0; i < COUNT_OF(t); i++) t[i] = start_thread(times_out, (void*)(i % WAYS));
  for (int i = 0; i < COUNT_OF(t); i++) join_thread(t[i]);
  STAGE("time-outs in main");
  for (long way = 0; way < WAYS; way++) times_out((void*)way);
  STAGE("woken in time");
  for (long i = 0; i < COUNT_OF(t); i++) t[i] = start_thread(woken, (void*)(i % WAYS));
  pause_ms(50);
  pthread_mutex_lock(&lock);
  go = 1;
  pthread_cond_broadcast(&on_realtime);
  pthread_cond_broadcast(&on_monotonic);
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < COUNT_OF(t); i++) join_thread(t[i]);
  STAGE("time over, mutex taken");
  for (long way = 0; way < WAYS; way++) {
    go = 0;
    pthread_t waiter = start_thread(slow_return, (void*)way);
    int waits = 0;
    while (!waits) {
      pause_ms(1);
      pthread_mutex_lock(&lock);
      waits = go;
      if (!waits) pthread_mutex_unlock(&lock);
    }
    pause_ms(120); /* with the mutex, past the waiter's time */
    go = 2;
    pthread_mutex_unlock(&lock);
    join_thread(waiter);
  }
  CHECK(pthread_cond_destroy(&on_realtime) == 0 && pthread_cond_destroy(&on_monotonic) == 0, "destroy");
  return check_end();
}
