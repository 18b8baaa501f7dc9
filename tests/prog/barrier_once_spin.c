/* Barriers (one serial thread a round, reuse at once), pthread_once with a slow initialiser, spin locks. */
#include "check.h"

#include <sched.h>
#include <stdatomic.h>

enum { N = 12, ROUNDS = 100 };
static pthread_barrier_t barrier;
static atomic_int arrived[ROUNDS], serial[ROUNDS];

static void* rounds(void* argument) {
  long id = (long)argument;
  for (int round = 0; round < ROUNDS; round++) {
    if ((id + round) % 17 == 0) pause_ms(1);
    arrived[round]++;
    int r = pthread_barrier_wait(&barrier);
    CHECK(r == 0 || r == PTHREAD_BARRIER_SERIAL_THREAD, "barrier_wait returned %d", r);
    CHECK(arrived[round] == N + 1, "round %d: left with %d of %d arrived", round, (int)arrived[round], N + 1);
    if (r == PTHREAD_BARRIER_SERIAL_THREAD) serial[round]++;
  }
  return NULL;
}

static void barriers(void) {
  STAGE("barrier");
  pthread_t t[N];
  NEED(pthread_barrier_init(&barrier, NULL, N + 1) == 0);
  for (long i = 0; i < N; i++) t[i] = start_thread(rounds, (void*)i);
  rounds((void*)N); /* main is one of them */
  for (int i = 0; i < N; i++) join_thread(t[i]);
  for (int i = 0; i < ROUNDS; i++) CHECK(serial[i] == 1, "round %d had %d serial threads", i, (int)serial[i]);
  CHECK(pthread_barrier_destroy(&barrier) == 0, "destroy");
  CHECK(pthread_barrier_init(&barrier, NULL, 0) == EINVAL, "a barrier for nobody");
  CHECK(pthread_barrier_init(&barrier, NULL, 1) == 0, "a barrier for one");
  for (int i = 0; i < 3; i++) CHECK(pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD, "alone");
  pthread_barrier_destroy(&barrier);
}

/* Whoever leaves a barrier first may destroy it: destroy waits for those still inside. */
static void* meet(void* argument) {
  pthread_barrier_wait(argument);
  return NULL;
}
static void destroyed(void) {
  STAGE("barrier destroyed by the first to leave");
  for (int round = 0; round < 200; round++) {
    pthread_barrier_t* b = malloc(sizeof *b);
    pthread_t t[3];
    pthread_barrier_init(b, NULL, 4);
    for (int i = 0; i < 3; i++) t[i] = start_thread(meet, b);
    pthread_barrier_wait(b);
    CHECK(pthread_barrier_destroy(b) == 0, "destroy");
    memset(b, 0xEE, sizeof *b);
    for (int i = 0; i < 3; i++) join_thread(t[i]);
    for (size_t i = 0; i < sizeof *b; i++)
      CHECK(((unsigned char*)b)[i] == 0xEE, "the barrier was touched after destroy");
    free(b);
  }
}

static pthread_once_t slow = PTHREAD_ONCE_INIT, nested = PTHREAD_ONCE_INIT, inner = PTHREAD_ONCE_INIT;
static atomic_int initialised, inner_runs;
static void* nothing(void* argument) { return argument; }
static void slow_init(void) {
  pause_ms(60);
  join_thread(start_thread(nothing, NULL));
  initialised++;
}
static void inner_init(void) {
  pause_ms(5);
  inner_runs++;
}
static void nested_init(void) { CHECK(pthread_once(&inner, inner_init) == 0, "once within once"); }
static void* use_once(void* argument) {
  CHECK(pthread_once(&slow, slow_init) == 0, "once");
  CHECK(initialised == 1, "once returned before the initialiser had ended");
  CHECK(
      pthread_once((long)argument % 2 ? &nested : &inner, (long)argument % 2 ? nested_init : inner_init) == 0,
      "once");
  CHECK(inner_runs == 1, "the inner initialiser ran %d times", (int)inner_runs);
  return NULL;
}

static void once(void) {
  STAGE("once");
  pthread_t t[30];
  for (long i = 0; i < 30; i++) t[i] = start_thread(use_once, (void*)i);
  use_once((void*)1);
  for (int i = 0; i < 30; i++) join_thread(t[i]);
  CHECK(initialised == 1 && inner_runs == 1, "initialisers ran %d and %d times", (int)initialised,
        (int)inner_runs);
}

/* An initialiser left by pthread_exit counts as not run: another thread runs it. */
static pthread_once_t left = PTHREAD_ONCE_INIT;
static atomic_int tries;
static void leave_once(void) {
  if (++tries <= 3) {
    pause_ms(5);
    pthread_exit(NULL);
  }
}
static void* try_once(void* unused) {
  (void)unused;
  CHECK(pthread_once(&left, leave_once) == 0, "once");
  return (void*)1;
}
static void abandoned(void) {
  STAGE("once left by pthread_exit");
  pthread_t t[10];
  long through = 0;
  for (int i = 0; i < 10; i++) t[i] = start_thread(try_once, NULL);
  for (int i = 0; i < 10; i++) through += (long)join_thread(t[i]);
  CHECK(tries == 4 && through == 7, "%d tries, %ld threads through", (int)tries, through);
}

static pthread_spinlock_t spin;
static int spun, inside;
static void* spinner(void* unused) {
  (void)unused;
  for (int i = 0; i < 300; i++) {
    if (i % 3 == 0)
      while (pthread_spin_trylock(&spin) == EBUSY) sched_yield();
    else
      CHECK(pthread_spin_lock(&spin) == 0, "spin_lock");
    CHECK(++inside == 1, "two inside a spin lock");
    spun++;
    if (i == 150) sched_yield(); /* the others spin while the owner does not run */
    inside--;
    CHECK(pthread_spin_unlock(&spin) == 0, "spin_unlock");
  }
  return NULL;
}

int main(void) {
  check_begin();
  barriers();
  destroyed();
  once();
  abandoned();
  STAGE("spin lock");
  pthread_t t[8];
  NEED(pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE) == 0);
  for (int i = 0; i < 8; i++) t[i] = start_thread(spinner, NULL);
  for (int i = 0; i < 8; i++) join_thread(t[i]);
  CHECK(spun == 8 * 300, "%d passages", spun);
  CHECK(pthread_spin_lock(&spin) == 0 && pthread_spin_trylock(&spin) == EBUSY &&
            pthread_spin_unlock(&spin) == 0,
        "spin lock");
  CHECK(pthread_spin_destroy(&spin) == 0, "destroy");
  return check_end();
}
