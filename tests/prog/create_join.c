/* Threads are created, run their function with its argument and hand their result to the joiner. */
#include "check.h"

#include <stdatomic.h>

static void* double_it(void* argument) { return (void*)((uintptr_t)argument * 2); }

static void results(void) {
  STAGE("results");
  enum { N = 100 };
  pthread_t t[N];
  for (uintptr_t i = 0; i < N; i++) t[i] = start_thread(double_it, (void*)i);
  for (uintptr_t i = N; i-- > 0;)
    CHECK(join_thread(t[i]) == (void*)(i * 2), "wrong result of thread %d", (int)i);
  pthread_t one = start_thread(double_it, NULL);
  CHECK(pthread_join(one, NULL) == 0, "join without a place for the result");
}

static void waves(void) {
  STAGE("5,000 threads in waves");
  enum { WAVES = 50, N = 100 };
  static pthread_t t[N];
  for (uintptr_t w = 0; w < WAVES; w++) {
    for (uintptr_t i = 0; i < N; i++) t[i] = start_thread(double_it, (void*)(w * N + i));
    for (uintptr_t i = 0; i < N; i++)
      CHECK(join_thread(t[i]) == (void*)((w * N + i) * 2), "wave %d, thread %d", (int)w, (int)i);
  }
}

static atomic_int leaves;

/* Each thread of depth d makes three of depth d - 1 and joins them. */
static void* grow(void* argument) {
  long depth = (long)argument, below = 0;
  if (depth == 0) {
    leaves++;
    return (void*)1;
  }
  pthread_t t[3];
  for (int i = 0; i < 3; i++) t[i] = start_thread(grow, (void*)(depth - 1));
  for (int i = 0; i < 3; i++) below += (long)join_thread(t[i]);
  return (void*)below;
}

static void from_threads(void) {
  STAGE("threads that create threads");
  long total = (long)join_thread(start_thread(grow, (void*)5));
  CHECK(total == 243 && leaves == 243, "%ld leaves joined, %d ran, want 243", total, (int)leaves);
}

/* A thread that another one joins: the creator need not be the joiner. */
static void* join_other(void* argument) { return join_thread(*(pthread_t*)argument); }

static void by_another(void) {
  STAGE("joined by another thread");
  pthread_t worker = start_thread(double_it, (void*)21);
  CHECK(join_thread(start_thread(join_other, &worker)) == (void*)42, "result through a second thread");
}

static pthread_t main_id;

static void* join_myself(void* argument) {
  (void)argument;
  return (void*)(long)pthread_join(pthread_self(), NULL);
}

static void refused(void) {
  STAGE("a thread joins itself");
  CHECK(pthread_join(pthread_self(), NULL) == EDEADLK, "main joins itself");
  CHECK(join_thread(start_thread(join_myself, NULL)) == (void*)EDEADLK, "a thread joins itself");
}

static void* look_at_self(void* argument) {
  pthread_t* seen = argument;
  *seen = pthread_self();
  return (void*)(long)(pthread_equal(*seen, main_id) != 0);
}

static void identity(void) {
  STAGE("identity");
  pthread_t seen[8], t[8];
  main_id = pthread_self();
  for (int i = 0; i < 8; i++) t[i] = start_thread(look_at_self, &seen[i]);
  for (int i = 0; i < 8; i++) {
    CHECK(join_thread(t[i]) == NULL, "a thread takes itself for main");
    CHECK(pthread_equal(seen[i], t[i]), "pthread_self is not what pthread_create gave");
  }
  CHECK(pthread_equal(main_id, pthread_self()), "pthread_self of main changed");
}

int main(void) {
  check_begin();
  results();
  by_another();
  identity();
  from_threads();
  refused();
  waves();
  return check_end();
}
