/* The joins of glibc that do not wait, or not for ever: pthread_tryjoin_np, timedjoin_np, clockjoin_np. */
#include "check.h"

#include <stdatomic.h>

static atomic_int hold;
static void* stay(void* argument) {
  while (hold) pause_ms(1);
  return argument;
}

static void* all(void* unused) {
  (void)unused;
  void* result = NULL;
  int r;
  hold = 1;
  pthread_t t = start_thread(stay, (void*)31);
  CHECK((r = pthread_tryjoin_np(t, &result)) == EBUSY, "tryjoin of a running thread: %d", r);
  struct timespec until = ms_from_now(CLOCK_REALTIME, 60);
  double begin = now();
  CHECK((r = pthread_timedjoin_np(t, &result, &until)) == ETIMEDOUT, "timedjoin: %d", r);
  CHECK(now() - begin > 0.05, "timedjoin gave up after %.3f s", now() - begin);
  begin = now();
  until = ms_from_now(CLOCK_MONOTONIC, 60);
  CHECK((r = pthread_clockjoin_np(t, &result, CLOCK_MONOTONIC, &until)) == ETIMEDOUT, "clockjoin: %d", r);
  CHECK(now() - begin > 0.05, "clockjoin gave up after %.3f s", now() - begin);
  CHECK(result == NULL, "a join without success wrote the result");
  hold = 0;
  until = ms_from_now(CLOCK_REALTIME, 20000);
  CHECK((r = pthread_timedjoin_np(t, &result, &until)) == 0 && result == (void*)31, "timedjoin: %d", r);

  t = start_thread(stay, (void*)32);
  until = ms_from_now(CLOCK_MONOTONIC, 20000);
  CHECK((r = pthread_clockjoin_np(t, &result, CLOCK_MONOTONIC, &until)) == 0 && result == (void*)32,
        "clockjoin: %d", r);

  t = start_thread(stay, (void*)33);
  CHECK(EVENTUALLY((r = pthread_tryjoin_np(t, &result)) != EBUSY), "the thread does not end");
  CHECK(r == 0 && result == (void*)33, "tryjoin of a thread that ended: %d", r);
  CHECK(pthread_tryjoin_np(pthread_self(), NULL) == EDEADLK ||
            pthread_tryjoin_np(pthread_self(), NULL) == EBUSY,
        "myself");
  return NULL;
}

int main(void) {
  check_begin();
  STAGE("main joins");
  all(NULL);
  STAGE("a thread joins");
  join_thread(start_thread(all, NULL));
  return check_end();
}
