/* A thread that is being joined is detached: whoever joins it must not wait for ever. */
#include "../prog/check.h"

#include <semaphore.h>

static sem_t go, about;
static void* until_go(void* value) {
  sem_wait(&go);
  return value;
}
static void* joins(void* t) {
  sem_post(&about);
  pthread_join(*(pthread_t*)t, NULL);
  return t;
}

static void* all(void* unused) {
  pthread_t t = start_thread(until_go, NULL), j = start_thread(joins, &t);
  sem_wait(&about);
  pause_ms(50);
  CHECK(pthread_detach(t) == 0, "detach");
  sem_post(&go);
  CHECK(join_thread(j) == &t, "join");
  return unused;
}

int main(void) {
  check_begin();
  sem_init(&go, 0, 0);
  sem_init(&about, 0, 0);
  all(NULL);
  join_thread(start_thread(all, NULL));
  return check_end();
}
