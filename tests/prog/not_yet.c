/*
 * Functions on a thread's id that may be refused with ENOTSUP: they succeed or say so, and do nothing by halves. Prints
 * the result of each.
 */
// run: stdout=ignore
#include "check.h"

#include <sched.h>
#include <stdatomic.h>

static atomic_int stop;
static void* stay(void* unused) {
  while (!stop) pause_ms(1);
  return unused;
}

static void result(const char* name, int r) {
  CHECK(r == 0 || r == ENOTSUP, "%s returned %d", name, r);
  printf("%s %s\n", name, r == 0 ? "works" : "is not supported");
}

int main(void) {
  check_begin();
  struct sched_param param;
  cpu_set_t cpus;
  clockid_t clock;
  int policy = -1;
  union sigval value = {.sival_int = 5};
  pthread_t t = start_thread(stay, NULL);
  signal(SIGUSR1, SIG_IGN);
  memset(&param, 0, sizeof param);
  CPU_ZERO(&cpus);
  int r = pthread_getschedparam(t, &policy, &param);
  result("pthread_getschedparam", r);
  CHECK(r != 0 || policy == SCHED_OTHER, "policy %d", policy);
  result("pthread_setschedparam", pthread_setschedparam(t, SCHED_OTHER, &param));
  r = pthread_getaffinity_np(t, sizeof cpus, &cpus);
  result("pthread_getaffinity_np", r);
  CHECK(r != 0 || CPU_COUNT(&cpus) > 0, "no processors");
  CHECK(sched_getaffinity(0, sizeof cpus, &cpus) == 0, "sched_getaffinity");
  result("pthread_setaffinity_np", pthread_setaffinity_np(t, sizeof cpus, &cpus));
  result("pthread_getcpuclockid", pthread_getcpuclockid(t, &clock));
  result("pthread_sigqueue", pthread_sigqueue(t, SIGUSR1, value));
  stop = 1;
  join_thread(t);
  stop = 0;
  t = start_thread(stay, NULL);
  r = pthread_cancel(t);
  result("pthread_cancel", r);
  if (r != 0) stop = 1;
  void* end = join_thread(t);
  CHECK(end == (r == 0 ? PTHREAD_CANCELED : NULL), "the thread ended with %p", end);
  /* main is a real thread: there they work */
  CHECK(pthread_getschedparam(pthread_self(), &policy, &param) == 0, "pthread_getschedparam of main");
  CHECK(pthread_getcpuclockid(pthread_self(), &clock) == 0, "pthread_getcpuclockid of main");
  CHECK(pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus) == 0, "pthread_getaffinity_np of main");
  return check_end();
}
