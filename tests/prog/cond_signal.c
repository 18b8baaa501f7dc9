/* Condition variables: signal wakes one, broadcast wakes all, the mutex is held again after the wait. */
#include "check.h"

enum { N = 40 };
static pthread_mutex_t lock;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static int waiting, tickets, served, generation;

static void* take_ticket(void* unused) {
  (void)unused;
  CHECK(pthread_mutex_lock(&lock) == 0, "lock");
  waiting++;
  while (tickets == 0) CHECK(pthread_cond_wait(&cond, &lock) == 0, "wait");
  tickets--;
  waiting--;
  served++;
  CHECK(pthread_mutex_trylock(&lock) == EBUSY, "the mutex is not held after the wait");
  CHECK(pthread_mutex_unlock(&lock) == 0, "the mutex is not ours after the wait");
  return NULL;
}

static int count_of(int* word) {
  pthread_mutex_lock(&lock);
  int value = *word;
  pthread_mutex_unlock(&lock);
  return value;
}

static void one_by_one(void) {
  STAGE("signal");
  pthread_t t[N];
  for (int i = 0; i < N; i++) t[i] = start_thread(take_ticket, NULL);
  CHECK(EVENTUALLY(count_of(&waiting) == N), "%d of %d wait", waiting, N);
  for (int i = 1; i <= N; i++) {
    pthread_mutex_lock(&lock);
    tickets++;
    if (i % 2) CHECK(pthread_cond_signal(&cond) == 0, "signal");
    pthread_mutex_unlock(&lock);
    if (i % 2 == 0) CHECK(pthread_cond_signal(&cond) == 0, "signal without the mutex");
    CHECK(EVENTUALLY(count_of(&served) == i), "%d signals served %d threads", i, served);
  }
  for (int i = 0; i < N; i++) join_thread(t[i]);
}

static void* follow(void* argument) {
  long rounds = (long)argument;
  pthread_mutex_lock(&lock);
  for (int seen = 0; seen < rounds;) {
    waiting++;
    while (generation == seen) pthread_cond_wait(&cond, &lock);
    waiting--;
    seen = generation;
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

static void all_at_once(void) {
  STAGE("broadcast");
  enum { ROUNDS = 50 };
  pthread_t t[N];
  for (int i = 0; i < N; i++) t[i] = start_thread(follow, (void*)(long)ROUNDS);
  for (int r = 0; r < ROUNDS; r++) {
    CHECK(EVENTUALLY(count_of(&waiting) == N), "round %d: %d of %d wait", r, waiting, N);
    pthread_mutex_lock(&lock);
    generation++;
    if (r % 2) pthread_mutex_unlock(&lock);
    CHECK(pthread_cond_broadcast(&cond) == 0, "broadcast");
    if (r % 2 == 0) pthread_mutex_unlock(&lock);
  }
  for (int i = 0; i < N; i++) join_thread(t[i]);
}

/* Main waits, a thread signals; then the other way round; 300 times. */
static int turn;
static void* answer(void* argument) {
  for (long i = 0; i < (long)argument; i++) {
    pthread_mutex_lock(&lock);
    while (turn != 1) pthread_cond_wait(&cond, &lock);
    turn = 0;
    pthread_cond_signal(&cond);
    pthread_mutex_unlock(&lock);
  }
  return NULL;
}

static void* ask(void* argument) {
  for (long i = 0; i < (long)argument; i++) {
    pthread_mutex_lock(&lock);
    turn = 1;
    pthread_cond_signal(&cond);
    while (turn != 0) pthread_cond_wait(&cond, &lock);
    pthread_mutex_unlock(&lock);
  }
  return NULL;
}

static void in_turns(void) {
  STAGE("main and a thread in turns");
  pthread_t t = start_thread(answer, (void*)300);
  ask((void*)300);
  join_thread(t);
  STAGE("two threads in turns");
  t = start_thread(answer, (void*)3000);
  join_thread(start_thread(ask, (void*)3000));
  join_thread(t);
}

/* A signal that nobody waits for is not remembered. */
static void not_remembered(void) {
  STAGE("signal without waiters");
  for (int i = 0; i < 5; i++)
    CHECK(pthread_cond_signal(&cond) == 0 && pthread_cond_broadcast(&cond) == 0, "no waiters");
  pthread_mutex_lock(&lock);
  struct timespec until = ms_from_now(CLOCK_REALTIME, 60);
  int r;
  while ((r = pthread_cond_timedwait(&cond, &lock, &until)) == 0) {
  } /* spurious wake-ups are allowed */
  CHECK(r == ETIMEDOUT, "timedwait returned %d", r);
  pthread_mutex_unlock(&lock);
}

/* Waiters leave the object alone once they were woken: it may be destroyed and its memory reused. */
struct latch {
  pthread_mutex_t lock;
  pthread_cond_t cond;
  int open;
};
static void* wait_open(void* argument) {
  struct latch* l = argument;
  pthread_mutex_lock(&l->lock);
  while (!l->open) pthread_cond_wait(&l->cond, &l->lock);
  pthread_mutex_unlock(&l->lock);
  return NULL;
}

static void destroyed(void) {
  STAGE("destroy after broadcast");
  for (int r = 0; r < 100; r++) {
    struct latch* l = malloc(sizeof *l);
    pthread_t t[4];
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->cond, NULL);
    l->open = 0;
    for (int i = 0; i < 4; i++) t[i] = start_thread(wait_open, l);
    pthread_mutex_lock(&l->lock);
    l->open = 1;
    pthread_cond_broadcast(&l->cond);
    pthread_mutex_unlock(&l->lock);
    CHECK(pthread_cond_destroy(&l->cond) == 0, "destroy"); /* waits for those that were woken */
    memset(&l->cond, 0xEE, sizeof l->cond);
    for (int i = 0; i < 4; i++) join_thread(t[i]);
    for (size_t i = 0; i < sizeof l->cond; i++)
      CHECK(((unsigned char*)&l->cond)[i] == 0xEE, "the condition variable was touched after destroy");
    free(l);
  }
}

int main(void) {
  check_begin();
  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&lock, &attr);
  not_remembered();
  one_by_one();
  all_at_once();
  in_turns();
  destroyed();
  return check_end();
}
