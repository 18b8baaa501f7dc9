/* The kinds of mutex: what a second lock, a trylock and an unlock by another thread return. */
#include "check.h"

struct job {
  int (*call)(pthread_mutex_t*);
  pthread_mutex_t* mutex;
};
static void* do_job(void* argument) {
  struct job* job = argument;
  return (void*)(long)job->call(job->mutex);
}
/* What `call` returns in a thread of its own. */
static int elsewhere(int (*call)(pthread_mutex_t*), pthread_mutex_t* mutex) {
  struct job job = {call, mutex};
  return (int)(long)join_thread(start_thread(do_job, &job));
}

static void make(pthread_mutex_t* mutex, int kind) {
  pthread_mutexattr_t attr;
  int back = -1;
  NEED(pthread_mutexattr_init(&attr) == 0);
  NEED(pthread_mutexattr_settype(&attr, kind) == 0);
  NEED(pthread_mutexattr_gettype(&attr, &back) == 0 && back == kind);
  NEED(pthread_mutex_init(mutex, &attr) == 0);
  NEED(pthread_mutexattr_destroy(&attr) == 0);
}

static void exclusive(pthread_mutex_t* m) {
  CHECK(pthread_mutex_lock(m) == 0, "lock");
  CHECK(pthread_mutex_trylock(m) == EBUSY, "trylock by the owner");
  CHECK(elsewhere(pthread_mutex_trylock, m) == EBUSY, "trylock by another thread");
  CHECK(pthread_mutex_destroy(m) == EBUSY, "destroy while locked");
  CHECK(pthread_mutex_unlock(m) == 0, "unlock");
  CHECK(pthread_mutex_trylock(m) == 0, "trylock of a free mutex");
  CHECK(pthread_mutex_unlock(m) == 0, "unlock after trylock");
}

static void plain(void) {
  pthread_mutex_t normal = PTHREAD_MUTEX_INITIALIZER, adaptive = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
  pthread_mutex_t made;
  exclusive(&normal);
  exclusive(&adaptive);
  make(&made, PTHREAD_MUTEX_NORMAL);
  exclusive(&made);
  CHECK(pthread_mutex_destroy(&made) == 0, "destroy");
  make(&made, PTHREAD_MUTEX_ADAPTIVE_NP);
  exclusive(&made);
  CHECK(pthread_mutex_destroy(&made) == 0, "destroy adaptive");
}

static void recursive(void) {
  pthread_mutex_t fixed = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
  pthread_mutex_t made;
  make(&made, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_t* both[] = {&fixed, &made};
  for (int k = 0; k < 2; k++) {
    pthread_mutex_t* m = both[k];
    struct timespec soon = ms_from_now(CLOCK_REALTIME, 2000);
    CHECK(pthread_mutex_unlock(m) == EPERM, "unlock of a free recursive mutex");
    for (int i = 0; i < 100; i++)
      CHECK((i % 3 == 0   ? pthread_mutex_lock(m)
             : i % 3 == 1 ? pthread_mutex_trylock(m)
                          : pthread_mutex_timedlock(m, &soon)) == 0,
            "lock number %d", i);
    for (int i = 0; i < 99; i++) {
      CHECK(pthread_mutex_unlock(m) == 0, "unlock number %d", i);
      if (i % 33 == 0) CHECK(elsewhere(pthread_mutex_trylock, m) == EBUSY, "free after %d of 100 unlocks", i);
    }
    CHECK(elsewhere(pthread_mutex_unlock, m) == EPERM, "unlock by another thread");
    CHECK(pthread_mutex_destroy(m) == EBUSY, "destroy while locked");
    CHECK(pthread_mutex_unlock(m) == 0, "last unlock");
    CHECK(pthread_mutex_unlock(m) == EPERM, "one unlock too many");
    CHECK(elsewhere(pthread_mutex_trylock, m) == 0, "not free after all unlocks");
  }
}

static void errorcheck(void) {
  pthread_mutex_t fixed = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
  pthread_mutex_t made;
  make(&made, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_t* both[] = {&fixed, &made};
  for (int k = 0; k < 2; k++) {
    pthread_mutex_t* m = both[k];
    struct timespec soon = ms_from_now(CLOCK_REALTIME, 2000);
    CHECK(pthread_mutex_unlock(m) == EPERM, "unlock of a free errorcheck mutex");
    CHECK(pthread_mutex_lock(m) == 0, "lock");
    CHECK(pthread_mutex_lock(m) == EDEADLK, "second lock");
    CHECK(pthread_mutex_timedlock(m, &soon) == EDEADLK, "second lock, timed");
    CHECK(pthread_mutex_trylock(m) == EBUSY, "trylock by the owner");
    CHECK(elsewhere(pthread_mutex_trylock, m) == EBUSY, "trylock by another thread");
    CHECK(elsewhere(pthread_mutex_unlock, m) == EPERM, "unlock by another thread");
    CHECK(pthread_mutex_destroy(m) == EBUSY, "destroy while locked");
    CHECK(pthread_mutex_unlock(m) == 0, "unlock");
    CHECK(pthread_mutex_unlock(m) == EPERM, "second unlock");
    CHECK(pthread_mutex_destroy(m) == 0, "destroy");
  }
}

/* A recursive mutex belongs to the thread also while it sleeps and others run on its kernel thread. */
static pthread_mutex_t held = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static void* hold_and_sleep(void* argument) {
  int* counter = argument;
  for (int i = 0; i < 20; i++) {
    CHECK(pthread_mutex_lock(&held) == 0, "first lock");
    int before = *counter;
    pause_ms(1);
    CHECK(pthread_mutex_lock(&held) == 0, "second lock after a sleep");
    CHECK(*counter == before, "somebody else was inside");
    ++*counter;
    CHECK(pthread_mutex_unlock(&held) == 0 && pthread_mutex_unlock(&held) == 0, "unlock");
  }
  return NULL;
}

static void* all(void* unused) {
  STAGE("normal and adaptive");
  plain();
  STAGE("recursive");
  recursive();
  STAGE("errorcheck");
  errorcheck();
  (void)unused;
  return NULL;
}

int main(void) {
  check_begin();
  all(NULL);
  join_thread(start_thread(all, NULL));
  STAGE("owner across a sleep");
  int counter = 0;
  pthread_t t[8];
  for (int i = 0; i < 8; i++) t[i] = start_thread(hold_and_sleep, &counter);
  hold_and_sleep(&counter);
  for (int i = 0; i < 8; i++) join_thread(t[i]);
  CHECK(counter == 9 * 20, "counted %d", counter);
  return check_end();
}
