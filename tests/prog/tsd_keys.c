/* Thread-specific data: many keys, destructors in rounds, deleted keys, values that follow the thread. */
#include "check.h"

#include <limits.h>
#include <stdatomic.h>

enum { KEYS = 100, THREADS = 20 };
static pthread_key_t keys[KEYS];
static atomic_int destroyed[KEYS];

/* The value of key i of a thread is a number that ends in i. */
static void count_destroyed(void* value) { destroyed[(uintptr_t)value % KEYS]++; }

static void* use_keys(void* argument) {
  uintptr_t id = (uintptr_t)argument;
  for (int i = 0; i < KEYS; i++)
    CHECK(pthread_getspecific(keys[i]) == NULL, "key %d of a new thread is not NULL", i);
  for (uintptr_t i = 0; i < KEYS; i++)
    CHECK(pthread_setspecific(keys[i], (void*)(id * KEYS + i)) == 0, "setspecific");
  for (int round = 0; round < 5; round++) {
    pause_ms(1);
    for (uintptr_t i = 0; i < KEYS; i++)
      CHECK(pthread_getspecific(keys[i]) == (void*)(id * KEYS + i), "key %d of thread %d", (int)i, (int)id);
  }
  for (int i = 0; i < KEYS; i += 4) pthread_setspecific(keys[i], NULL); /* no destructor for these */
  if (id % 2) pthread_exit(NULL);
  return NULL;
}

static void many_keys(void) {
  STAGE("100 keys");
  pthread_t t[THREADS];
  for (int i = 0; i < KEYS; i++) NEED(pthread_key_create(&keys[i], i % 2 ? count_destroyed : NULL) == 0);
  pthread_setspecific(keys[1], (void*)1);
  for (uintptr_t i = 0; i < THREADS; i++) t[i] = start_thread(use_keys, (void*)(i + 1));
  for (int i = 0; i < THREADS; i++) join_thread(t[i]);
  for (int i = 0; i < KEYS; i++) {
    int want = i % 2 ? THREADS : 0;
    CHECK(destroyed[i] == want, "destructor of key %d ran %d times, want %d", i, (int)destroyed[i], want);
  }
  CHECK(pthread_getspecific(keys[1]) == (void*)1, "the value of main changed");
  pthread_setspecific(keys[1], NULL);
}

/* A destructor that sets its key again is called again, in PTHREAD_DESTRUCTOR_ITERATIONS rounds in all. */
static pthread_key_t stubborn, late;
static atomic_int rounds, late_runs;
static void set_again(void* value) {
  CHECK(pthread_getspecific(stubborn) == NULL, "the value is still there in the destructor");
  rounds++;
  pause_ms(1); /* a destructor may block */
  pthread_setspecific(stubborn, value);
  if (rounds == 1) pthread_setspecific(late, value); /* set by a destructor: has its own destructor run */
}
static void count_late(void* unused) {
  (void)unused;
  late_runs++;
}
static void* set_stubborn(void* unused) {
  (void)unused;
  pthread_setspecific(stubborn, &rounds);
  return NULL;
}

static void in_rounds(void) {
  STAGE("rounds of destructors");
  NEED(pthread_key_create(&late, count_late) == 0);
  NEED(pthread_key_create(&stubborn, set_again) == 0);
  join_thread(start_thread(set_stubborn, NULL));
  CHECK(rounds == PTHREAD_DESTRUCTOR_ITERATIONS, "%d rounds, want %d", (int)rounds,
        PTHREAD_DESTRUCTOR_ITERATIONS);
  CHECK(late_runs == 1, "the destructor of a late key ran %d times", (int)late_runs);
  pthread_key_delete(stubborn);
  pthread_key_delete(late);
}

/* A key deleted while threads have values for it: no destructor; a new key in its place starts with NULL. */
static atomic_int set, stop;
static void* hold_value(void* unused) {
  (void)unused;
  pthread_setspecific(keys[1], (void*)1);
  set++;
  while (!stop) pause_ms(1);
  return pthread_getspecific(keys[1]);
}

static void deleted(void) {
  STAGE("deleted keys");
  pthread_t t[4];
  destroyed[1] = 0;
  for (int i = 0; i < 4; i++) t[i] = start_thread(hold_value, NULL);
  CHECK(EVENTUALLY(set == 4), "threads set their values");
  CHECK(pthread_key_delete(keys[1]) == 0, "key_delete");
  CHECK(pthread_key_delete(keys[1]) == EINVAL, "key_delete of a deleted key");
  CHECK(pthread_setspecific(keys[1], (void*)1) == EINVAL, "setspecific of a deleted key");
  CHECK(pthread_getspecific(keys[1]) == NULL, "getspecific of a deleted key");
  NEED(pthread_key_create(&keys[1], count_destroyed) == 0);
  stop = 1;
  for (int i = 0; i < 4; i++)
    CHECK(join_thread(t[i]) == NULL, "a new key in the place of an old one is not NULL");
  CHECK(destroyed[1] == 0, "%d destructors of a deleted key ran", (int)destroyed[1]);
  CHECK(pthread_setspecific((pthread_key_t)-1, NULL) == EINVAL, "setspecific of a key that is none");
  CHECK(pthread_key_delete((pthread_key_t)100000) == EINVAL, "key_delete of a key that is none");
}

static void* all_keys(void* unused) {
  (void)unused;
  static pthread_key_t more[PTHREAD_KEYS_MAX];
  int n = 0, r;
  while (n < PTHREAD_KEYS_MAX && (r = pthread_key_create(&more[n], NULL)) == 0) {
    CHECK(pthread_setspecific(more[n], &more[n]) == 0, "setspecific of key %d", n);
    n++;
  }
  CHECK(n < PTHREAD_KEYS_MAX && r == EAGAIN, "%d keys, then %d", n, r);
  CHECK(n > 800, "only %d more keys", n);
  while (n-- > 0) {
    CHECK(pthread_getspecific(more[n]) == &more[n], "getspecific of key %d", n);
    CHECK(pthread_key_delete(more[n]) == 0, "key_delete of key %d", n);
  }
  return NULL;
}

int main(void) {
  check_begin();
  many_keys();
  in_rounds();
  deleted();
  STAGE("all keys there are");
  join_thread(start_thread(all_keys, NULL));
  all_keys(NULL);
  return check_end();
}
