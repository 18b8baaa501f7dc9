/*
 * dlmopen: a library in a namespace of its own, with a libc of its own, is used in many threads: its errno, its locks and memory,
 * threads that it makes itself.
 */
#include "check.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>

static void* libc;
static void* (*their_malloc)(size_t);
static void (*their_free)(void*);
static int (*their_lock)(pthread_mutex_t*), (*their_unlock)(pthread_mutex_t*), (*their_usleep)(unsigned);
static int (*their_create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*), (*their_join)(pthread_t, void**);
static int* (*their_errno)(void);
static int (*their_close)(int);
static pthread_mutex_t theirs = PTHREAD_MUTEX_INITIALIZER;
static long counter;
static atomic_long ran;

static void look_up(void* to, const char* name) {
  *(void**)to = dlsym(libc, name);
  if (!*(void**)to) {
    check_fail(__LINE__, "dlsym %s: %s", name, dlerror());
    _exit(1);
  }
}
static void* use(void* argument) {
  char* p[20];
  for (int i = 0; i < 20; i++) {
    p[i] = their_malloc(100 + (size_t)i * 50);
    NEED(p[i]);
    memset(p[i], i, 100);
    their_lock(&theirs);
    long v = counter;
    if (i % 7 == 0) their_usleep(100);
    counter = v + 1;
    their_unlock(&theirs);
    errno = 5;
    CHECK(their_close(-1) == -1 && *their_errno() == EBADF && errno == 5, "their errno %d, ours %d", *their_errno(), errno);
    usleep(50);
    CHECK(*their_errno() == EBADF, "their errno changed in a sleep");
  }
  for (int i = 0; i < 20; i++) {
    CHECK(p[i][50] == i, "their memory");
    their_free(p[i]);
  }
  ran++;
  return argument;
}
static void* their_thread(void* argument) {
  ran++;
  return argument;
}

int main(void) {
  check_begin();
  pthread_t t[12], own[4];
  t[0] = start_thread((void* (*)(void*))sched_yield, NULL);
  join_thread(t[0]);
  libc = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
  if (!libc) {
    check_fail(__LINE__, "dlmopen: %s", dlerror());
    return check_end();
  }
  look_up(&their_malloc, "malloc");
  look_up(&their_free, "free");
  look_up(&their_lock, "pthread_mutex_lock");
  look_up(&their_unlock, "pthread_mutex_unlock");
  look_up(&their_usleep, "usleep");
  look_up(&their_create, "pthread_create");
  look_up(&their_join, "pthread_join");
  look_up(&their_errno, "__errno_location");
  look_up(&their_close, "close");
  STAGE("in threads");
  for (long i = 0; i < COUNT_OF(t); i++) t[i] = start_thread(use, (void*)i);
  for (long i = 0; i < COUNT_OF(t); i++) CHECK((long)join_thread(t[i]) == i, "the result");
  use(NULL);
  CHECK(counter == 20 * (COUNT_OF(t) + 1), "%ld times under their lock", counter);
  STAGE("their threads");
  for (long i = 0; i < COUNT_OF(own); i++) {
    void* result = NULL;
    int error = their_create(&own[i], NULL, their_thread, (void*)i);
    if (error) continue; /* it may be refused, the same natively */
    CHECK(their_join(own[i], &result) == 0 && (long)result == i, "their_join");
  }
  CHECK(ran >= COUNT_OF(t) + 1, "%ld ran", (long)ran);
  return check_end();
}
