/* 50 sleepers with different times wake in the order of their times, whatever the order of their creation. */
#include "check.h"

enum { N = 50, STEP_MS = 20 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int order[N], woken;
static struct timespec zero_hour;

static void* sleeper(void* argument) {
  int rank = (int)(long)argument;
  struct timespec until = zero_hour;
  until.tv_nsec += rank * STEP_MS * 1000000L;
  until.tv_sec += until.tv_nsec / 1000000000L;
  until.tv_nsec %= 1000000000L;
  CHECK(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == 0, "clock_nanosleep");
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  CHECK(t.tv_sec > until.tv_sec || (t.tv_sec == until.tv_sec && t.tv_nsec >= until.tv_nsec),
        "sleeper %d too early", rank);
  pthread_mutex_lock(&lock);
  order[woken++] = rank;
  pthread_mutex_unlock(&lock);
  return NULL;
}

int main(void) {
  check_begin();
  pthread_t t[N];
  zero_hour = ms_from_now(CLOCK_MONOTONIC, 300);
  for (int i = 0; i < N; i++)
    t[i] = start_thread(sleeper, (void*)(long)(i * 37 % N)); /* 37 and 50 share no factor: each rank once */
  for (int i = 0; i < N; i++) join_thread(t[i]);
  CHECK(woken == N, "%d of %d woke", woken, N);
  /* Neighbours may swap when the machine is busy; a sleeper ten steps early or late is one that was forgotten. */
  for (int i = 0; i < N; i++)
    CHECK(order[i] - i < 10 && i - order[i] < 10, "sleeper %d woke as number %d", order[i], i);
  return check_end();
}
