/*
 * Threads made, joined, detached and left at a high rate by many threads at once, with all kinds of ends: every result
 * arrives, every destructor runs, every detached thread ends, and the process does not grow.
 */
// run: modes=default,carriers1
#include "stress.h"

#include <sched.h>
#include <stdatomic.h>

enum { MAKERS = 8 };
static atomic_long born, ended, destroyed, detached_made, detached_ended;
static pthread_key_t key;
static __thread long local = 11;
static __thread char dirt[2000];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void key_gone(void* unused) {
  (void)unused;
  destroyed++;
}

__attribute__((noinline)) static void deep(int n) {
  volatile char frame[1000];
  frame[0] = frame[999] = (char)n;
  if (n > 0) deep(n - 1);
}

static void* live(void* argument) {
  long id = (long)argument;
  CHECK(local == 11 && dirt[0] == 0 && dirt[1999] == 0, "a new thread finds %ld, %d, %d", local, dirt[0],
        dirt[1999]);
  CHECK(pthread_getspecific(key) == NULL, "a new thread has a specific value");
  local = id;
  memset(dirt, 0x7E, sizeof dirt);
  pthread_setspecific(key, argument);
  born++;
  deep((int)(id % 30));
  switch (id % 7) {
    case 1:
      usleep(100);
      break;
    case 2:
      sched_yield();
      break;
    case 3:
      pthread_mutex_lock(&lock);
      pthread_mutex_unlock(&lock);
      break;
    case 4:
      ended++;
      pthread_exit((void*)(id + 1));
    case 5:
      free(malloc(10000));
      break;
    default:
      break;
  }
  ended++;
  return (void*)(id + 1);
}

static void* live_detached(void* argument) {
  live(argument);
  detached_ended++;
  return NULL;
}
static void note_end(void* unused) {
  (void)unused;
  detached_ended++;
}
static void* exit_detached(void* argument) {
  pthread_cleanup_push(note_end, NULL);
  live(argument);
  pthread_exit(NULL);
  pthread_cleanup_pop(0);
  return NULL;
}

static void* maker(void* argument) {
  unsigned random = (unsigned)(long)argument + 1;
  for (int round = 0; round < scaled(60); round++) {
    pthread_t t[16];
    long id[16];
    int n = 1 + (int)(next_random(&random) % 16);
    pthread_attr_t small, gone;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * 1024 + (next_random(&random) % 4) * 65536);
    pthread_attr_init(&gone);
    pthread_attr_setdetachstate(&gone, PTHREAD_CREATE_DETACHED);
    for (int i = 0; i < n; i++) {
      id[i] = 1 + (long)(next_random(&random) % 100000);
      NEED(pthread_create(&t[i], i % 2 ? &small : NULL, live, (void*)id[i]) == 0);
    }
    for (int i = 0; i < n / 4; i++) {
      pthread_t d;
      detached_made++;
      /* 4 exits in the middle of live and would not be counted */
      long which = 7 * (long)(next_random(&random) % 1000) + 7 + (i % 2 ? 4 : 1);
      NEED(pthread_create(&d, &gone, which % 7 == 4 ? exit_detached : live_detached, (void*)which) == 0);
    }
    for (int k = 0; k < n; k++) {
      int i = round % 2 ? k : n - 1 - k;
      CHECK(join_thread(t[i]) == (void*)(id[i] + 1), "result of thread %ld", id[i]);
    }
    pthread_attr_destroy(&small);
    pthread_attr_destroy(&gone);
  }
  return NULL;
}

static long resident_pages(void) {
  long size = 0, resident = 0;
  FILE* f = fopen("/proc/self/statm", "r");
  NEED(f && fscanf(f, "%ld %ld", &size, &resident) == 2);
  fclose(f);
  return resident;
}

static void storm(void) {
  pthread_t m[MAKERS];
  for (long i = 0; i < MAKERS; i++) m[i] = start_thread(maker, (void*)i);
  maker((void*)MAKERS);
  for (int i = 0; i < MAKERS; i++) join_thread(m[i]);
  CHECK(EVENTUALLY(detached_ended == detached_made), "%ld detached threads made, %ld ended",
        (long)detached_made, (long)detached_ended);
  CHECK(EVENTUALLY(destroyed == born), "%ld born, %ld destructors", (long)born, (long)destroyed);
  CHECK(born == ended, "%ld born, %ld ended", (long)born, (long)ended);
}

int main(void) {
  stress_begin();
  NEED(pthread_key_create(&key, key_gone) == 0);
  STAGE("first storm");
  storm();
  long before = resident_pages();
  STAGE("second storm");
  storm();
  storm();
  long after = resident_pages();
  CHECK(after < before + 50000, "resident pages grew from %ld to %ld", before, after); /* 200 MB */
  return check_end();
}
