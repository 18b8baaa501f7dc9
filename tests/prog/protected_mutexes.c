/*
 * Priority-inheriting and priority-protected mutexes of one process: contention, errors, ceilings, condition variables with
 * them. A protected one needs the right to a real-time priority: what is refused is printed.
 */
#include "check.h"

#include <sched.h>

static pthread_mutex_t mutex;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static volatile int inside, counter, turn;

static void* contend(void* unused) {
  for (int i = 0; i < 200; i++) {
    int e = pthread_mutex_lock(&mutex);
    CHECK(e == 0, "lock: %d", e);
    if (e) return unused;
    CHECK(inside++ == 0, "two threads inside");
    if (i % 40 == 0) pause_ms(1);
    counter++;
    inside--;
    pthread_mutex_unlock(&mutex);
  }
  return unused;
}
static void* take_turns(void* who) {
  for (int i = 0; i < 50; i++) {
    pthread_mutex_lock(&mutex);
    while (turn != (int)(long)who) pthread_cond_wait(&cond, &mutex);
    turn = !turn;
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&mutex);
  }
  return NULL;
}
static void* errors(void* unused) {
  struct timespec soon = ms_from_now(CLOCK_REALTIME, 20);
  printf("held by another: trylock %d", pthread_mutex_trylock(&mutex));
  printf(" timedlock %d", pthread_mutex_timedlock(&mutex, &soon));
  printf(" unlock %d\n", pthread_mutex_unlock(&mutex));
  return unused;
}

static void try_protocol(int protocol, int type, int robust, int ceiling) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setprotocol(&a, protocol);
  pthread_mutexattr_settype(&a, type);
  pthread_mutexattr_setrobust(&a, robust);
  if (ceiling) pthread_mutexattr_setprioceiling(&a, ceiling);
  int e = pthread_mutex_init(&mutex, &a);
  printf("protocol %d type %d robust %d ceiling %d: init %d", protocol, type, robust, ceiling, e);
  if (e) {
    printf("\n");
    return;
  }
  e = pthread_mutex_lock(&mutex);
  printf(" lock %d", e);
  if (e) {
    printf(" trylock %d\n", pthread_mutex_trylock(&mutex));
    return;
  }
  printf(" again %d\n", type == PTHREAD_MUTEX_NORMAL ? 0 : pthread_mutex_lock(&mutex));
  if (type == PTHREAD_MUTEX_RECURSIVE) pthread_mutex_unlock(&mutex);
  if (type != PTHREAD_MUTEX_NORMAL) join_thread(start_thread(errors, NULL));
  CHECK(pthread_mutex_unlock(&mutex) == 0, "unlock");
  pthread_t t[4];
  counter = turn = 0;
  for (int i = 0; i < 4; i++) t[i] = start_thread(contend, NULL);
  contend(NULL);
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  CHECK(counter == 1000, "counter %d", counter);
  for (long i = 0; i < 2; i++) t[i] = start_thread(take_turns, (void*)i);
  for (int i = 0; i < 2; i++) join_thread(t[i]);
  CHECK(pthread_mutex_destroy(&mutex) == 0, "destroy");
}

static void* all(void* unused) {
  static const int types[] = {PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_ERRORCHECK};
  for (int t = 0; t < 3; t++) {
    try_protocol(PTHREAD_PRIO_INHERIT, types[t], PTHREAD_MUTEX_STALLED, 0);
    try_protocol(PTHREAD_PRIO_INHERIT, types[t], PTHREAD_MUTEX_ROBUST, 0);
  }
  return unused;
}

int main(void) {
  check_begin();
  all(NULL);
  join_thread(start_thread(all, NULL));
  return check_end();
}
