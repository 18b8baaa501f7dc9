/* Read-write locks: readers together, writers alone, progress of both kinds, errors, all three preferences. */
#include "check.h"

#include <sched.h>
#include <stdatomic.h>

enum { READERS = 16, WRITERS = 6, ROUNDS = 400 };
static pthread_rwlock_t lock;
static atomic_int inside_readers, inside_writers, most_readers;
static long value, copies[4];

static void read_once(int round) {
  int n = ++inside_readers, most = most_readers;
  while (n > most && !atomic_compare_exchange_weak(&most_readers, &most, n)) {
  }
  CHECK(inside_writers == 0, "a reader together with a writer");
  long seen = value;
  if (round % 50 == 0) pause_ms(1);
  for (int i = 0; i < 4; i++) CHECK(copies[i] == seen, "a half-made change is visible");
  inside_readers--;
}

static void write_once(int round) {
  CHECK(++inside_writers == 1 && inside_readers == 0, "a writer is not alone");
  value++;
  if (round % 50 == 0)
    pause_ms(1);
  else if (round % 7 == 0)
    sched_yield();
  for (int i = 0; i < 4; i++) copies[i] = value;
  inside_writers--;
}

static int acquire(int write, int way) {
  struct timespec until;
  int r;
  switch (way % 4) {
    case 0:
      return write ? pthread_rwlock_wrlock(&lock) : pthread_rwlock_rdlock(&lock);
    case 1:
      while ((r = write ? pthread_rwlock_trywrlock(&lock) : pthread_rwlock_tryrdlock(&lock)) == EBUSY)
        sched_yield();
      return r;
    case 2:
      do {
        until = ms_from_now(CLOCK_REALTIME, 2);
        r = write ? pthread_rwlock_timedwrlock(&lock, &until) : pthread_rwlock_timedrdlock(&lock, &until);
      } while (r == ETIMEDOUT);
      return r;
    default:
      until = ms_from_now(CLOCK_MONOTONIC, 24000);
      return write ? pthread_rwlock_clockwrlock(&lock, CLOCK_MONOTONIC, &until)
                   : pthread_rwlock_clockrdlock(&lock, CLOCK_MONOTONIC, &until);
  }
}

static void* reader(void* argument) {
  for (int round = 0; round < ROUNDS; round++) {
    int r = acquire(0, (int)(long)argument + round);
    CHECK(r == 0, "read lock: %d", r);
    read_once(round);
    CHECK(pthread_rwlock_unlock(&lock) == 0, "unlock");
  }
  return NULL;
}
static void* writer(void* argument) {
  for (int round = 0; round < ROUNDS; round++) {
    int r = acquire(1, (int)(long)argument + round);
    CHECK(r == 0, "write lock: %d", r);
    write_once(round);
    CHECK(pthread_rwlock_unlock(&lock) == 0, "unlock");
  }
  return NULL;
}

static void soup(int kind) {
  pthread_rwlockattr_t attr;
  int back = -1;
  pthread_rwlockattr_init(&attr);
  NEED(pthread_rwlockattr_setkind_np(&attr, kind) == 0);
  CHECK(pthread_rwlockattr_getkind_np(&attr, &back) == 0 && back == kind, "kind %d", back);
  NEED(pthread_rwlock_init(&lock, &attr) == 0);
  value = copies[0] = copies[1] = copies[2] = copies[3] = 0;
  pthread_t t[READERS + WRITERS];
  for (long i = 0; i < READERS + WRITERS; i++) t[i] = start_thread(i < READERS ? reader : writer, (void*)i);
  for (int round = 0; round < 50; round++) { /* main is one of them */
    NEED(pthread_rwlock_rdlock(&lock) == 0);
    read_once(round);
    NEED(pthread_rwlock_unlock(&lock) == 0);
    NEED(pthread_rwlock_wrlock(&lock) == 0);
    write_once(round);
    NEED(pthread_rwlock_unlock(&lock) == 0);
  }
  for (int i = 0; i < READERS + WRITERS; i++) join_thread(t[i]);
  CHECK(value == WRITERS * ROUNDS + 50, "%ld writes", value);
  CHECK(pthread_rwlock_destroy(&lock) == 0, "destroy");
}

/* All readers are inside at once: they wait for each other there. */
static atomic_int gathered;
static void* gather(void* unused) {
  (void)unused;
  pthread_rwlock_rdlock(&lock);
  gathered++;
  CHECK(EVENTUALLY(gathered == READERS), "only %d readers are inside together", (int)gathered);
  pthread_rwlock_unlock(&lock);
  return NULL;
}

/* With a writer-preferring lock, readers that come after a waiting writer come in after it. */
static atomic_int writer_done, reader_tries;
static void* waiting_writer(void* unused) {
  (void)unused;
  pthread_rwlock_wrlock(&lock);
  writer_done = 1;
  pthread_rwlock_unlock(&lock);
  return NULL;
}
static void* later_reader(void* unused) {
  (void)unused;
  reader_tries++;
  pthread_rwlock_rdlock(&lock);
  CHECK(writer_done, "a reader overtook the waiting writer");
  pthread_rwlock_unlock(&lock);
  return NULL;
}

static void writer_first(void) {
  STAGE("writer preference");
  pthread_rwlockattr_t attr;
  pthread_t t[4];
  pthread_rwlockattr_init(&attr);
  pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(&lock, &attr);
  pthread_rwlock_rdlock(&lock);
  t[0] = start_thread(waiting_writer, NULL);
  /* the writer waits as soon as a new reader is refused */
  CHECK(EVENTUALLY(pthread_rwlock_tryrdlock(&lock) == EBUSY || (pthread_rwlock_unlock(&lock), 0)),
        "readers still come in");
  for (int i = 1; i < 4; i++) t[i] = start_thread(later_reader, NULL);
  CHECK(EVENTUALLY(reader_tries == 3), "the readers try");
  pause_ms(30);
  pthread_rwlock_unlock(&lock);
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  pthread_rwlock_destroy(&lock);
}

int main(void) {
  check_begin();
  STAGE("all readers inside");
  lock = (pthread_rwlock_t)PTHREAD_RWLOCK_INITIALIZER;
  pthread_t t[READERS];
  for (int i = 0; i < READERS; i++) t[i] = start_thread(gather, NULL);
  for (int i = 0; i < READERS; i++) join_thread(t[i]);
  STAGE("readers preferred");
  soup(PTHREAD_RWLOCK_PREFER_READER_NP);
  STAGE("writers preferred");
  soup(PTHREAD_RWLOCK_PREFER_WRITER_NP);
  STAGE("writers preferred, not recursive");
  soup(PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  writer_first();
  return check_end();
}
