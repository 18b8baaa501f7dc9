/* Threads and main fight for one mutex of each kind: nobody is inside together, nothing is lost, all finish. */
#include "check.h"

#include <sched.h>

enum { THREADS = 32, ROUNDS = 1500 };
static struct guarded {
  const char* name;
  int kind;
  pthread_mutex_t lock;
  long counter;
  int inside;
} objects[] = {
    {.name = "normal", .kind = PTHREAD_MUTEX_NORMAL},
    {.name = "recursive", .kind = PTHREAD_MUTEX_RECURSIVE},
    {.name = "errorcheck", .kind = PTHREAD_MUTEX_ERRORCHECK},
    {.name = "adaptive", .kind = PTHREAD_MUTEX_ADAPTIVE_NP},
};

static void visit(struct guarded* g, long id, int round) {
  struct timespec until;
  int r = EBUSY;
  switch ((id + round) % 4) {
    case 0:
      r = pthread_mutex_lock(&g->lock);
      break;
    case 1:
      while ((r = pthread_mutex_trylock(&g->lock)) == EBUSY) sched_yield();
      break;
    case 2:
      until = ms_from_now(CLOCK_REALTIME, 24000);
      r = pthread_mutex_timedlock(&g->lock, &until);
      break;
    case 3:
      /* may time out many times before it gets in */
      do {
        until = ms_from_now(CLOCK_MONOTONIC, 1);
        r = pthread_mutex_clocklock(&g->lock, CLOCK_MONOTONIC, &until);
      } while (r == ETIMEDOUT);
      break;
  }
  CHECK(r == 0, "%s: lock returned %d", g->name, r);
  CHECK(++g->inside == 1, "%s: two threads inside", g->name);
  g->counter++;
  if (round % 400 == 7)
    pause_ms(1);
  else if (round % 50 == 3)
    sched_yield();
  g->inside--;
  r = pthread_mutex_unlock(&g->lock);
  CHECK(r == 0, "%s: unlock returned %d", g->name, r);
}

static void* fight(void* argument) {
  long id = (long)argument;
  for (int round = 0; round < ROUNDS; round++) visit(&objects[(id + round) % COUNT_OF(objects)], id, round);
  return NULL;
}

int main(void) {
  check_begin();
  STAGE("contention");
  for (int i = 0; i < COUNT_OF(objects); i++) {
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    NEED(pthread_mutexattr_settype(&attr, objects[i].kind) == 0);
    NEED(pthread_mutex_init(&objects[i].lock, &attr) == 0);
  }
  pthread_t t[THREADS];
  for (long i = 0; i < THREADS; i++) t[i] = start_thread(fight, (void*)i);
  fight((void*)THREADS);
  for (int i = 0; i < THREADS; i++) join_thread(t[i]);
  long total = 0;
  for (int i = 0; i < COUNT_OF(objects); i++) {
    total += objects[i].counter;
    CHECK(pthread_mutex_destroy(&objects[i].lock) == 0, "%s: destroy", objects[i].name);
  }
  CHECK(total == (long)(THREADS + 1) * ROUNDS, "%ld visits, want %ld", total, (long)(THREADS + 1) * ROUNDS);
  return check_end();
}
