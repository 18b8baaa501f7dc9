/* C11 threads: thrd, mtx, cnd, tss, call_once. */
#include "check.h"

#include <stdatomic.h>
#include <threads.h>

static mtx_t plain, timed, recursive;
static cnd_t cond;
static tss_t key;
static once_flag once = ONCE_FLAG_INIT;
static atomic_int initialised, destroyed;
static long counter;
static int open_gate, waiting;

static void initialise(void) {
  struct timespec t = ms_span(20);
  thrd_sleep(&t, NULL);
  initialised++;
}
static void key_gone(void* unused) {
  (void)unused;
  destroyed++;
}

static int run(void* argument) {
  call_once(&once, initialise);
  CHECK(initialised == 1, "call_once returned early");
  CHECK(tss_get(key) == NULL, "a value in a new thread");
  CHECK(tss_set(key, argument) == thrd_success, "tss_set");
  for (int i = 0; i < 200; i++) {
    CHECK(mtx_lock(&plain) == thrd_success, "mtx_lock");
    counter++;
    if (i % 50 == 0) thrd_yield();
    CHECK(mtx_unlock(&plain) == thrd_success, "mtx_unlock");
    CHECK(mtx_lock(&recursive) == thrd_success && mtx_lock(&recursive) == thrd_success, "recursive");
    CHECK(mtx_trylock(&recursive) == thrd_success, "recursive trylock");
    for (int k = 0; k < 3; k++) CHECK(mtx_unlock(&recursive) == thrd_success, "recursive unlock");
  }
  mtx_lock(&plain);
  waiting++;
  while (!open_gate) CHECK(cnd_wait(&cond, &plain) == thrd_success, "cnd_wait");
  mtx_unlock(&plain);
  CHECK(tss_get(key) == argument, "tss_get");
  if ((long)argument % 2) thrd_exit((int)(long)argument);
  return (int)(long)argument;
}

static int count(int* word) {
  mtx_lock(&plain);
  int v = *word;
  mtx_unlock(&plain);
  return v;
}

static int refused(void* unused) {
  (void)unused;
  struct timespec until;
  CHECK(mtx_trylock(&plain) == thrd_busy, "trylock of a taken mutex");
  timespec_get(&until, TIME_UTC);
  until.tv_nsec += 40000000;
  if (until.tv_nsec >= 1000000000L) {
    until.tv_sec++;
    until.tv_nsec -= 1000000000L;
  }
  CHECK(mtx_timedlock(&timed, &until) == thrd_timedout, "timedlock of a taken mutex");
  return 0;
}

int main(void) {
  check_begin();
  enum { N = 20 };
  thrd_t t[N];
  int result;
  STAGE("threads");
  NEED(mtx_init(&plain, mtx_plain) == thrd_success && mtx_init(&timed, mtx_timed) == thrd_success);
  NEED(mtx_init(&recursive, mtx_plain | mtx_recursive) == thrd_success && cnd_init(&cond) == thrd_success);
  NEED(tss_create(&key, key_gone) == thrd_success);
  for (long i = 0; i < N; i++) NEED(thrd_create(&t[i], run, (void*)(i + 1)) == thrd_success);
  CHECK(EVENTUALLY(count(&waiting) == N), "%d of %d wait", waiting, N);
  mtx_lock(&plain);
  open_gate = 1;
  cnd_broadcast(&cond);
  mtx_unlock(&plain);
  for (int i = 0; i < N; i++) {
    CHECK(thrd_join(t[i], &result) == thrd_success && result == i + 1, "thread %d returned %d", i, result);
    CHECK(thrd_equal(t[i], thrd_current()) == 0, "a thread takes itself for main");
  }
  CHECK(counter == N * 200, "counted %ld", counter);
  CHECK(destroyed == N, "%d values destroyed", (int)destroyed);
  STAGE("refused");
  mtx_lock(&plain);
  mtx_lock(&timed);
  thrd_create(&t[0], refused, NULL);
  thrd_join(t[0], NULL);
  struct timespec past = {0, 0};
  mtx_unlock(&timed);
  CHECK(cnd_timedwait(&cond, &plain, &past) == thrd_timedout, "cnd_timedwait");
  mtx_unlock(&plain);
  STAGE("detached");
  NEED(thrd_create(&t[0], run, (void*)2L) == thrd_success);
  CHECK(thrd_detach(t[0]) == thrd_success, "thrd_detach");
  CHECK(EVENTUALLY(destroyed == N + 1), "the detached thread ends");
  mtx_destroy(&plain);
  mtx_destroy(&timed);
  cnd_destroy(&cond);
  tss_delete(key);
  return check_end();
}
