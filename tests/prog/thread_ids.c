/*
 * Functions that take a thread's id, for the caller, another thread, one that has ended and was not joined, and the initial
 * thread: the same results as natively. Printed are results, not ids.
 */
#include "check.h"

#include <dlfcn.h>
#include <sched.h>
#include <semaphore.h>
#include <threads.h>

static sem_t release;
static pthread_t initial;

static void* until_released(void* unused) {
  sem_wait(&release);
  return unused;
}
static void* end_at_once(void* value) { return value; }

static void names(const char* who, pthread_t t) {
  char name[32] = "", small[4];
  int set = pthread_setname_np(t, "new-name");
  int get = pthread_getname_np(t, name, sizeof name);
  printf("%s: setname %d getname %d '%s' too long %d too small %d\n", who, set, get, name,
         pthread_setname_np(t, "sixteen letters!"), pthread_getname_np(t, small, sizeof small));
}

static void clocks(const char* who, pthread_t t) {
  clockid_t clock;
  struct timespec ts = {-1, 0};
  int r = pthread_getcpuclockid(t, &clock);
  printf("%s: getcpuclockid %d", who, r);
  if (r == 0) {
    r = clock_gettime(clock, &ts);
    printf(" gettime %d%s", r, r == 0 && ts.tv_sec < 0 ? " (nonsense)" : "");
  }
  printf("\n");
}

static void attributes(const char* who, pthread_t t) {
  pthread_attr_t a;
  size_t size = 0, guard = 0;
  void* low = NULL;
  int detached = -1, inherit = -1, policy = -1;
  int r = pthread_getattr_np(t, &a);
  printf("%s: getattr %d", who, r);
  if (r == 0) {
    struct sched_param param = {.sched_priority = -1};
    pthread_attr_getstack(&a, &low, &size);
    pthread_attr_getguardsize(&a, &guard);
    pthread_attr_getdetachstate(&a, &detached);
    pthread_attr_getinheritsched(&a, &inherit);
    pthread_attr_getschedpolicy(&a, &policy);
    pthread_attr_getschedparam(&a, &param);
    if (t == initial) size = 0;
    printf(" stack %d %zu guard %zu detached %d inherit %d policy %d priority %d", low != NULL, size, guard, detached, inherit,
           policy, param.sched_priority);
    pthread_attr_destroy(&a);
  }
  printf("\n");
}

static void scheduling(const char* who, pthread_t t) {
  struct sched_param param = {.sched_priority = -1};
  int policy = -1;
  int r = pthread_getschedparam(t, &policy, &param);
  printf("%s: getschedparam %d %d %d", who, r, r ? 0 : policy, r ? 0 : param.sched_priority);
  param.sched_priority = 0;
  printf(" setschedparam %d", pthread_setschedparam(t, SCHED_OTHER, &param));
  printf(" nonsense %d", pthread_setschedparam(t, 77, &param));
  printf(" setschedprio %d", pthread_setschedprio(t, 0));
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  r = pthread_getaffinity_np(t, sizeof cpus, &cpus);
  printf(" getaffinity %d %d", r, CPU_COUNT(&cpus) > 0);
  printf(" small %d\n", pthread_getaffinity_np(t, 1, &cpus));
}

static void signals(const char* who, pthread_t t) {
  union sigval value = {.sival_int = 1};
  printf("%s: kill 0 %d, 99 %d, 32 %d, USR1 %d; sigqueue %d\n", who, pthread_kill(t, 0), pthread_kill(t, 99), pthread_kill(t, 32),
         pthread_kill(t, SIGUSR1), pthread_sigqueue(t, SIGUSR1, value));
}

/* Versions of old programs: pthread_kill knew ESRCH, the affinity calls no size. */
static void old_versions(const char* who, pthread_t t) {
  int (*kill_old)(pthread_t, int) = (int (*)(pthread_t, int))dlvsym(RTLD_DEFAULT, "pthread_kill", "GLIBC_2.2.5");
  int (*get_old)(pthread_t, cpu_set_t*) =
      (int (*)(pthread_t, cpu_set_t*))dlvsym(RTLD_DEFAULT, "pthread_getaffinity_np", "GLIBC_2.3.3");
  int (*set_old)(pthread_t, cpu_set_t*) =
      (int (*)(pthread_t, cpu_set_t*))dlvsym(RTLD_DEFAULT, "pthread_setaffinity_np", "GLIBC_2.3.3");
  int (*sched_get)(pid_t, cpu_set_t*) = (int (*)(pid_t, cpu_set_t*))dlvsym(RTLD_DEFAULT, "sched_getaffinity", "GLIBC_2.3.3");
  int (*sched_set)(pid_t, cpu_set_t*) = (int (*)(pid_t, cpu_set_t*))dlvsym(RTLD_DEFAULT, "sched_setaffinity", "GLIBC_2.3.3");
  NEED(kill_old && get_old && set_old && sched_get && sched_set);
  cpu_set_t cpus;
  memset(&cpus, 0, sizeof cpus);
  printf("%s: old kill %d", who, kill_old(t, 0));
  int r = get_old(t, &cpus);
  printf(" old getaffinity %d %d", r, CPU_COUNT(&cpus) > 0);
  if (t == pthread_self()) printf(" old setaffinity %d", set_old(t, &cpus));
  memset(&cpus, 0, sizeof cpus);
  r = sched_get(0, &cpus);
  printf(" sched %d %d", r, CPU_COUNT(&cpus) > 0);
  if (t == pthread_self()) printf(" %d", sched_set(0, &cpus));
  printf("\n");
}
static void old_attributes(void) {
  int (*get_old)(pthread_attr_t*, cpu_set_t*) =
      (int (*)(pthread_attr_t*, cpu_set_t*))dlvsym(RTLD_DEFAULT, "pthread_attr_getaffinity_np", "GLIBC_2.3.3");
  int (*set_old)(pthread_attr_t*, cpu_set_t*) =
      (int (*)(pthread_attr_t*, cpu_set_t*))dlvsym(RTLD_DEFAULT, "pthread_attr_setaffinity_np", "GLIBC_2.3.3");
  NEED(get_old && set_old);
  pthread_attr_t a;
  cpu_set_t cpus;
  pthread_attr_init(&a);
  CPU_ZERO(&cpus);
  CPU_SET(0, &cpus);
  printf("old attributes %d", set_old(&a, &cpus));
  CPU_ZERO(&cpus);
  printf(" %d", get_old(&a, &cpus));
  printf(" %d\n", CPU_COUNT(&cpus));
  pthread_attr_destroy(&a);
}

static void about(const char* who, pthread_t t, int ended) {
  names(who, t);
  clocks(who, t);
  attributes(who, t);
  scheduling(who, t);
  if (t != pthread_self()) signals(who, t);
  old_versions(who, t);
  printf("%s: equal %d %d, thrd_equal %d\n", who, pthread_equal(t, t) != 0, pthread_equal(t, pthread_self()) != 0,
         thrd_equal(t, thrd_current()) != 0);
  if (ended) printf("%s: cancel %d\n", who, pthread_cancel(t));
}

static void* all(void* unused) {
  pthread_t other = start_thread(until_released, NULL), ended = start_thread(end_at_once, unused);
  /* only the old version says that a thread has ended */
  int (*kill_old)(pthread_t, int) = (int (*)(pthread_t, int))dlvsym(RTLD_DEFAULT, "pthread_kill", "GLIBC_2.2.5");
  CHECK(EVENTUALLY(kill_old(ended, 0) == ESRCH), "the old pthread_kill of an ended thread");
  about("myself", pthread_self(), 0);
  about("another", other, 0);
  about("ended", ended, 1);
  if (initial != pthread_self()) about("initial", initial, 0);
  old_attributes();
  CHECK(join_thread(ended) == unused, "the ended thread's result");
  sem_post(&release);
  join_thread(other);
  return unused;
}

int main(void) {
  check_begin();
  signal(SIGUSR1, SIG_IGN);
  sem_init(&release, 0, 0);
  initial = pthread_self();
  puts("on a thread");
  join_thread(start_thread(all, NULL));
  puts("on the initial thread");
  all(NULL);
  return check_end();
}
