/* A thread ended with a robust mutex: who has joined it finds the mutex left to the next owner at once. */
#include "../prog/check.h"

static pthread_mutex_t mutex;
static void* end_with_it(void* unused) {
  CHECK(pthread_mutex_lock(&mutex) == 0, "lock");
  return unused;
}

int main(void) {
  check_begin();
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
  NEED(pthread_mutex_init(&mutex, &a) == 0);
  for (int i = 0; i < 300; i++) {
    join_thread(start_thread(end_with_it, NULL));
    int e = pthread_mutex_trylock(&mutex);
    CHECK(e == EOWNERDEAD, "trylock after the owner's end: %d", e);
    if (e == EOWNERDEAD) pthread_mutex_consistent(&mutex);
    if (e == EOWNERDEAD) pthread_mutex_unlock(&mutex);
  }
  return check_end();
}
