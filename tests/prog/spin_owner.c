/* Threads spin for a lock whose owner sleeps, and on flags of threads that have not run yet: the owner gets on, also when
 * there is one processor for all of them. */
#include "check.h"

static pthread_spinlock_t spin;
static volatile int counter, inside, flags[4];

static void* contend(void* unused) {
  for (int i = 0; i < 10; i++) {
    pthread_spin_lock(&spin);
    CHECK(inside++ == 0, "two threads inside");
    if (i % 5 == 0) pause_ms(1);
    counter++;
    inside--;
    pthread_spin_unlock(&spin);
  }
  return unused;
}
static void* chain(void* number) {
  long n = (long)number;
  while (n > 0 && !flags[n - 1]) {
  }
  flags[n] = 1;
  return NULL;
}

int main(void) {
  check_begin();
  pthread_t t[4];
  pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE);
  for (int i = 0; i < 4; i++) t[i] = start_thread(contend, NULL);
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  CHECK(counter == 40, "counter %d", counter);
  CHECK(pthread_spin_trylock(&spin) == 0 && pthread_spin_trylock(&spin) == EBUSY, "trylock");
  CHECK(pthread_spin_unlock(&spin) == 0 && pthread_spin_destroy(&spin) == 0, "unlock, destroy");
  STAGE("a chain of flags");
  for (long i = 3; i >= 0; i--) t[i] = start_thread(chain, (void*)i);
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  return check_end();
}
