/* A condition variable with a robust mutex: the wait failed with EPERM in a thread that took such a mutex. */
#include "../prog/check.h"

static pthread_mutex_t mutex;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static volatile int turn;

static void* take_turns(void* who) {
  for (int i = 0; i < 50; i++) {
    CHECK(pthread_mutex_lock(&mutex) == 0, "lock");
    while (turn != (int)(long)who) {
      int e = pthread_cond_wait(&cond, &mutex);
      CHECK(e == 0, "pthread_cond_wait: %d", e);
      if (e) _exit(1);
    }
    turn = !turn;
    pthread_cond_broadcast(&cond);
    CHECK(pthread_mutex_unlock(&mutex) == 0, "unlock");
  }
  return NULL;
}

int main(void) {
  check_begin();
  for (int kind = 0; kind < 4; kind++) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    if (kind & 1) pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    if (kind & 2) pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_INHERIT);
    NEED(pthread_mutex_init(&mutex, &a) == 0);
    turn = 0;
    pthread_t t = start_thread(take_turns, NULL), u = start_thread(take_turns, (void*)1);
    join_thread(t);
    join_thread(u);
    pthread_mutex_destroy(&mutex);
  }
  return check_end();
}
