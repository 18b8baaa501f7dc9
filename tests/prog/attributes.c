/*
 * Attribute objects of every kind, used on a thread: what each setter accepts and each getter gives back; and that threads
 * and locks made with them are what they say. The values are printed, to be compared with a native run.
 */
#include "check.h"

#include <dlfcn.h>
#include <limits.h>
#include <sched.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

extern int pthread_mutexattr_getkind_np(const pthread_mutexattr_t*, int*);
extern int pthread_mutexattr_setkind_np(pthread_mutexattr_t*, int);

/* Sets each value, prints the result and what the getter says then. */
#define INTEGERS(object, set, get, ...)                                             \
  do {                                                                              \
    static const int values[] = {__VA_ARGS__};                                      \
    int got = -77;                                                                  \
    int r = get(object, &got);                                                      \
    printf(#set ": %d %d;", r, got);                                                \
    for (int i = 0; i < COUNT_OF(values); i++) {                                    \
      int s = set(object, values[i]);                                               \
      got = -77;                                                                    \
      r = get(object, &got);                                                        \
      printf(" %d->%d,%d,%d", values[i], s, r, got);                                \
    }                                                                               \
    printf("\n");                                                                   \
  } while (0)

static void thread_attributes(void) {
  pthread_attr_t a;
  struct sched_param param = {0};
  size_t size = 0, guard = 0;
  void* address = NULL;
  static char memory[1 << 16] __attribute__((aligned(4096)));
  CHECK(pthread_attr_init(&a) == 0, "pthread_attr_init");
  INTEGERS(&a, pthread_attr_setdetachstate, pthread_attr_getdetachstate, PTHREAD_CREATE_DETACHED, PTHREAD_CREATE_JOINABLE, 7, -1);
  INTEGERS(&a, pthread_attr_setinheritsched, pthread_attr_getinheritsched, PTHREAD_EXPLICIT_SCHED, PTHREAD_INHERIT_SCHED, 5);
  INTEGERS(&a, pthread_attr_setschedpolicy, pthread_attr_getschedpolicy, SCHED_FIFO, SCHED_RR, SCHED_BATCH, SCHED_OTHER, 99);
  INTEGERS(&a, pthread_attr_setscope, pthread_attr_getscope, PTHREAD_SCOPE_SYSTEM, PTHREAD_SCOPE_PROCESS, 5);
  for (int p = -1; p <= 100; p += 50) {
    param.sched_priority = p;
    int r = pthread_attr_setschedparam(&a, &param);
    param.sched_priority = -5;
    int g = pthread_attr_getschedparam(&a, &param);
    printf("priority %d: %d %d %d\n", p, r, g, param.sched_priority);
  }
  const size_t sizes[] = {0, 1, (size_t)PTHREAD_STACK_MIN - 1, (size_t)PTHREAD_STACK_MIN, 65536, 65537, 1 << 20};
  for (int i = 0; i < COUNT_OF(sizes); i++) {
    int r = pthread_attr_setstacksize(&a, sizes[i]);
    int s = pthread_attr_getstacksize(&a, &size);
    printf("stack size %zu: %d %d %zu\n", sizes[i], r, s, size);
    r = pthread_attr_setguardsize(&a, sizes[i]);
    s = pthread_attr_getguardsize(&a, &guard);
    printf("guard size %zu: %d %d %zu\n", sizes[i], r, s, guard);
  }
  printf("stack: %d %d", pthread_attr_setstack(&a, memory, sizeof memory), pthread_attr_setstack(&a, memory, 100));
  int r = pthread_attr_getstack(&a, &address, &size);
  printf(" %d %d %zu\n", r, address == memory, size);
  r = pthread_attr_setstackaddr(&a, memory + sizeof memory);
  address = NULL;
  int s = pthread_attr_getstackaddr(&a, &address);
  printf("stack address: %d %d %d\n", r, s, address == memory + sizeof memory);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(0, &cpus);
  r = pthread_attr_setaffinity_np(&a, sizeof cpus, &cpus);
  CPU_ZERO(&cpus);
  s = pthread_attr_getaffinity_np(&a, sizeof cpus, &cpus);
  printf("affinity: %d %d %d", r, s, CPU_COUNT(&cpus));
  r = pthread_attr_setaffinity_np(&a, 0, NULL);
  s = pthread_attr_getaffinity_np(&a, sizeof cpus, &cpus);
  printf(", none: %d %d %d\n", r, s, CPU_COUNT(&cpus) == CPU_SETSIZE);
  sigset_t set;
  sigemptyset(&set);
  r = pthread_attr_getsigmask_np(&a, &set);
  printf("signal mask: %d", r);
  sigaddset(&set, SIGUSR2);
  r = pthread_attr_setsigmask_np(&a, &set);
  sigemptyset(&set);
  s = pthread_attr_getsigmask_np(&a, &set);
  printf(" %d %d %d", r, s, sigismember(&set, SIGUSR2));
  r = pthread_attr_setsigmask_np(&a, NULL);
  printf(" %d %d\n", r, pthread_attr_getsigmask_np(&a, &set));
  CHECK(pthread_attr_destroy(&a) == 0, "pthread_attr_destroy");
}

static void lock_attributes(void) {
  pthread_mutexattr_t m;
  CHECK(pthread_mutexattr_init(&m) == 0, "pthread_mutexattr_init");
  INTEGERS(&m, pthread_mutexattr_settype, pthread_mutexattr_gettype, 0, 1, 2, 3, 4, -1);
  /* for old binaries only: no version that can be linked with */
  int (*pthread_mutexattr_getkind_np)(const pthread_mutexattr_t*, int*) =
      (int (*)(const pthread_mutexattr_t*, int*))dlvsym(RTLD_DEFAULT, "pthread_mutexattr_getkind_np", "GLIBC_2.2.5");
  int (*pthread_mutexattr_setkind_np)(pthread_mutexattr_t*, int) =
      (int (*)(pthread_mutexattr_t*, int))dlvsym(RTLD_DEFAULT, "pthread_mutexattr_setkind_np", "GLIBC_2.2.5");
  NEED(pthread_mutexattr_getkind_np && pthread_mutexattr_setkind_np);
  INTEGERS(&m, pthread_mutexattr_setkind_np, pthread_mutexattr_getkind_np, 1, 2, 3, 4, 0);
  INTEGERS(&m, pthread_mutexattr_setpshared, pthread_mutexattr_getpshared, 1, 2, 0);
  INTEGERS(&m, pthread_mutexattr_setrobust, pthread_mutexattr_getrobust, 1, 2, 0);
  INTEGERS(&m, pthread_mutexattr_setrobust_np, pthread_mutexattr_getrobust_np, 1, 2, 0);
  INTEGERS(&m, pthread_mutexattr_setprotocol, pthread_mutexattr_getprotocol, 1, 2, 3, 0);
  INTEGERS(&m, pthread_mutexattr_setprioceiling, pthread_mutexattr_getprioceiling, 1, 99, 0, 100, -1);
  CHECK(pthread_mutexattr_destroy(&m) == 0, "pthread_mutexattr_destroy");
  pthread_rwlockattr_t rw;
  CHECK(pthread_rwlockattr_init(&rw) == 0, "pthread_rwlockattr_init");
  INTEGERS(&rw, pthread_rwlockattr_setkind_np, pthread_rwlockattr_getkind_np, 0, 1, 2, 3, -1);
  INTEGERS(&rw, pthread_rwlockattr_setpshared, pthread_rwlockattr_getpshared, 1, 2, 0);
  CHECK(pthread_rwlockattr_destroy(&rw) == 0, "pthread_rwlockattr_destroy");
  pthread_barrierattr_t b;
  CHECK(pthread_barrierattr_init(&b) == 0, "pthread_barrierattr_init");
  INTEGERS(&b, pthread_barrierattr_setpshared, pthread_barrierattr_getpshared, 1, 2, 0);
  CHECK(pthread_barrierattr_destroy(&b) == 0, "pthread_barrierattr_destroy");
  pthread_condattr_t c;
  CHECK(pthread_condattr_init(&c) == 0, "pthread_condattr_init");
  INTEGERS(&c, pthread_condattr_setpshared, pthread_condattr_getpshared, 1, 2, 0);
  INTEGERS(&c, pthread_condattr_setclock, pthread_condattr_getclock, CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME, -3);
  CHECK(pthread_condattr_destroy(&c) == 0, "pthread_condattr_destroy");
}

/* Priority ceilings of mutexes. */
static void ceilings(void) {
  pthread_mutexattr_t a;
  pthread_mutex_t m;
  int got = -1, old = -1;
  pthread_mutexattr_init(&a);
  pthread_mutex_init(&m, &a);
  printf("ceiling of a normal mutex: %d", pthread_mutex_getprioceiling(&m, &got));
  printf(" %d\n", pthread_mutex_setprioceiling(&m, 10, &old));
  pthread_mutex_destroy(&m);
  pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_PROTECT);
  printf("init with protection: %d\n", pthread_mutexattr_setprioceiling(&a, 10));
  pthread_mutex_init(&m, &a);
  printf("ceiling: %d", pthread_mutex_getprioceiling(&m, &got));
  printf(" %d;", got);
  printf(" %d %d\n", pthread_mutex_setprioceiling(&m, 100, &old), pthread_mutex_setprioceiling(&m, 0, &old));
  pthread_mutex_destroy(&m);
}

static void* stay_masked(void* want) {
  sigset_t set;
  pthread_attr_t a;
  size_t size = 0, guard = 0;
  int detached = -1;
  pthread_sigmask(SIG_BLOCK, NULL, &set);
  CHECK(sigismember(&set, SIGUSR2) == 1, "the mask of the attribute");
  pthread_getattr_np(pthread_self(), &a);
  pthread_attr_getstacksize(&a, &size);
  pthread_attr_getguardsize(&a, &guard);
  pthread_attr_getdetachstate(&a, &detached);
  printf("thread with attributes: %zu %zu %d\n", size, guard, detached);
  pthread_attr_destroy(&a);
  return want;
}

static void a_thread_with_them(void) {
  pthread_attr_t a;
  sigset_t set;
  pthread_t t;
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, 256 << 10);
  pthread_attr_setguardsize(&a, 8192);
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  pthread_attr_setsigmask_np(&a, &set);
  NEED(pthread_create(&t, &a, stay_masked, &a) == 0);
  CHECK(join_thread(t) == &a, "join");
  pthread_attr_destroy(&a);
}

static void* say_defaults(void* unused) {
  pthread_attr_t a;
  size_t size = 0, guard = 0;
  pthread_getattr_np(pthread_self(), &a);
  pthread_attr_getstacksize(&a, &size);
  pthread_attr_getguardsize(&a, &guard);
  printf("by default: %zu %zu\n", size, guard);
  pthread_attr_destroy(&a);
  return unused;
}

/* The defaults of all threads to come: size and guard count, a detach state and a stack are refused. */
static void defaults(void) {
  pthread_attr_t a, old;
  CHECK(pthread_getattr_default_np(&old) == 0, "pthread_getattr_default_np");
  pthread_attr_init(&a);
  pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
  printf("detached by default: %d\n", pthread_setattr_default_np(&a));
  pthread_attr_setdetachstate(&a, PTHREAD_CREATE_JOINABLE);
  pthread_attr_setstacksize(&a, 512 << 10);
  pthread_attr_setguardsize(&a, 12288);
  printf("defaults: %d\n", pthread_setattr_default_np(&a));
  join_thread(start_thread(say_defaults, NULL));
  CHECK(pthread_setattr_default_np(&old) == 0, "back to the old defaults");
  pthread_attr_destroy(&a);
  pthread_attr_destroy(&old);
  printf("concurrency: %d", pthread_getconcurrency());
  printf(" %d %d", pthread_setconcurrency(4), pthread_getconcurrency());
  printf(" %d %d\n", pthread_setconcurrency(-1), pthread_setconcurrency(0));
}

static void* all(void* unused) {
  thread_attributes();
  lock_attributes();
  ceilings();
  a_thread_with_them();
  defaults();
  return unused;
}

int main(void) {
  check_begin();
  puts("on a thread");
  join_thread(start_thread(all, NULL));
  puts("on the initial thread");
  all(NULL);
  return check_end();
}
