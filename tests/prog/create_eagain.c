/* Too little address space: pthread_create says EAGAIN, and once there is room again it works as before. */
#include "check.h"

#include <stdatomic.h>
#include <sys/resource.h>

enum { MAX = 64, STACK = 32 << 20 };
static atomic_int hold, running;

static void* stay(void* argument) {
  running++;
  while (hold) pause_ms(1);
  return argument;
}

static size_t address_space(void) {
  unsigned long pages = 0;
  FILE* f = fopen("/proc/self/statm", "r");
  NEED(f && fscanf(f, "%lu", &pages) == 1);
  fclose(f);
  return pages * 4096;
}

static void limit_to(rlim_t bytes) {
  struct rlimit limit;
  NEED(getrlimit(RLIMIT_AS, &limit) == 0);
  limit.rlim_cur = bytes;
  NEED(setrlimit(RLIMIT_AS, &limit) == 0);
}

/* Creates threads until the first refusal, then ends those that run. Returns how many there were. */
static int fill(void) {
  pthread_t t[MAX];
  pthread_attr_t attr;
  int n = 0, error = 0;
  pthread_attr_init(&attr);
  NEED(pthread_attr_setstacksize(&attr, STACK) == 0);
  hold = 1;
  running = 0;
  while (n < MAX && (error = pthread_create(&t[n], &attr, stay, (void*)(long)n)) == 0) n++;
  CHECK(n < MAX && error == EAGAIN, "thread %d: error %d, want EAGAIN", n, error);
  CHECK(EVENTUALLY(running == n), "%d created, %d run", n, (int)running);
  hold = 0;
  for (int i = 0; i < n; i++) CHECK(join_thread(t[i]) == (void*)(long)i, "result of thread %d", i);
  pthread_attr_destroy(&attr);
  return n;
}

int main(void) {
  check_begin();
  pthread_t t[MAX];
  STAGE("before the limit");
  for (int i = 0; i < 8; i++) t[i] = start_thread(stay, NULL);
  for (int i = 0; i < 8; i++) join_thread(t[i]);
  STAGE("limited");
  /* room for about ten stacks of 32 MiB, by far not for 64 */
  limit_to(address_space() + 10UL * STACK + STACK / 2);
  int first = fill(), last = 0;
  CHECK(first >= 4, "only %d threads in the room of ten", first);
  for (int round = 0; round < 10; round++) last = fill();
  CHECK(last >= first - 2, "first %d threads had room, ten rounds later %d", first, last);
  STAGE("tiny limit");
  limit_to(address_space());
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 1UL << 30);
  for (int i = 0; i < 50; i++)
    CHECK(pthread_create(&t[0], &attr, stay, NULL) == EAGAIN, "a stack of 1 GiB without room, try %d", i);
  STAGE("after the limit");
  limit_to(RLIM_INFINITY);
  hold = 1;
  running = 0;
  for (int i = 0; i < MAX; i++) t[i] = start_thread(stay, (void*)(long)i);
  CHECK(EVENTUALLY(running == MAX), "%d of %d run", (int)running, MAX);
  hold = 0;
  for (int i = 0; i < MAX; i++) CHECK(join_thread(t[i]) == (void*)(long)i, "result of thread %d", i);
  return check_end();
}
