/* Read-write locks: what try, timed and second locks return, for every state of the lock. */
#include "check.h"

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

enum call { TRY_READ, TRY_WRITE, TIMED_READ, TIMED_WRITE, CLOCK_READ, CLOCK_WRITE, CALLS };
static const char* const call_name[CALLS] = {"tryrdlock",   "trywrlock",   "timedrdlock",
                                             "timedwrlock", "clockrdlock", "clockwrlock"};

static int do_call(enum call call, long ms) {
  struct timespec until = ms_from_now(call >= CLOCK_READ ? CLOCK_MONOTONIC : CLOCK_REALTIME, ms);
  switch (call) {
    case TRY_READ:
      return pthread_rwlock_tryrdlock(&lock);
    case TRY_WRITE:
      return pthread_rwlock_trywrlock(&lock);
    case TIMED_READ:
      return pthread_rwlock_timedrdlock(&lock, &until);
    case TIMED_WRITE:
      return pthread_rwlock_timedwrlock(&lock, &until);
    case CLOCK_READ:
      return pthread_rwlock_clockrdlock(&lock, CLOCK_MONOTONIC, &until);
    default:
      return pthread_rwlock_clockwrlock(&lock, CLOCK_MONOTONIC, &until);
  }
}

/* A thread that holds nothing: succeeds, or is refused at once (try) or after a while (timed). */
static int reads_allowed, writes_allowed;
static void* outsider(void* argument) {
  enum call call = (enum call)(long)argument;
  int allowed = call % 2 ? writes_allowed : reads_allowed;
  int refusal = call <= TRY_WRITE ? EBUSY : ETIMEDOUT;
  double begin = now();
  int r = do_call(call, 60);
  CHECK(r == (allowed ? 0 : refusal), "%s returned %d", call_name[call], r);
  if (r == ETIMEDOUT) CHECK(now() - begin > 0.05, "%s gave up after %.3f s", call_name[call], now() - begin);
  if (r == 0) CHECK(pthread_rwlock_unlock(&lock) == 0, "unlock");
  if (call > TRY_WRITE && !allowed) {
    r = do_call(call, -100);
    CHECK(r == ETIMEDOUT, "%s in the past returned %d", call_name[call], r);
  }
  return NULL;
}

/* One after the other: two that succeed would refuse each other. */
static void outsiders(const char* state, int reads, int writes) {
  STAGE(state);
  reads_allowed = reads;
  writes_allowed = writes;
  for (long call = 0; call < CALLS; call++) join_thread(start_thread(outsider, (void*)call));
}

static void* holder(void* unused) {
  (void)unused;
  struct timespec bad = {0, 1000000000L};
  CHECK(pthread_rwlock_wrlock(&lock) == 0, "wrlock");
  outsiders("a thread writes", 0, 0);
  CHECK(pthread_rwlock_rdlock(&lock) == EDEADLK, "the writer reads");
  CHECK(pthread_rwlock_wrlock(&lock) == EDEADLK, "the writer writes");
  CHECK(pthread_rwlock_tryrdlock(&lock) == EBUSY, "the writer tries to read");
  CHECK(pthread_rwlock_trywrlock(&lock) == EBUSY, "the writer tries to write");
  CHECK(pthread_rwlock_timedwrlock(&lock, &bad) == EINVAL, "the writer writes until a bad time");
  pause_ms(2);
  CHECK(pthread_rwlock_wrlock(&lock) == EDEADLK, "the writer writes, after a sleep");
  CHECK(pthread_rwlock_unlock(&lock) == 0, "unlock");
  CHECK(pthread_rwlock_rdlock(&lock) == 0, "rdlock");
  CHECK(pthread_rwlock_rdlock(&lock) == 0, "a second rdlock");
  outsiders("a thread reads twice", 1, 0);
  CHECK(pthread_rwlock_unlock(&lock) == 0, "unlock");
  outsiders("a thread reads", 1, 0);
  CHECK(pthread_rwlock_unlock(&lock) == 0, "unlock");
  outsiders("free", 1, 1);
  return NULL;
}

int main(void) {
  check_begin();
  outsiders("free at first", 1, 1);
  CHECK(pthread_rwlock_wrlock(&lock) == 0, "wrlock");
  outsiders("main writes", 0, 0);
  CHECK(pthread_rwlock_unlock(&lock) == 0, "unlock");
  CHECK(pthread_rwlock_rdlock(&lock) == 0, "rdlock");
  outsiders("main reads", 1, 0);
  CHECK(pthread_rwlock_unlock(&lock) == 0, "unlock");
  join_thread(start_thread(holder, NULL));
  holder(NULL);
  struct timespec until = ms_from_now(CLOCK_MONOTONIC, 1000);
  CHECK(pthread_rwlock_clockrdlock(&lock, CLOCK_PROCESS_CPUTIME_ID, &until) == EINVAL, "a CPU clock");
  CHECK(pthread_rwlock_destroy(&lock) == 0, "destroy");
  return check_end();
}
