/* The first pthread_create of a process finds no address space: EAGAIN, and later, with room, threads work. */
// run: proof=own
#include "check.h"

#include <sys/resource.h>

static void* twice(void* argument) {
  pause_ms(1);
  return (void*)((long)argument * 2);
}

static void limit_to(rlim_t bytes) {
  struct rlimit limit;
  NEED(getrlimit(RLIMIT_AS, &limit) == 0);
  limit.rlim_cur = bytes;
  NEED(setrlimit(RLIMIT_AS, &limit) == 0);
}

int main(void) {
  check_begin();
  unsigned long pages = 0;
  pthread_t t[20];
  FILE* f = fopen("/proc/self/statm", "r");
  NEED(f && fscanf(f, "%lu", &pages) == 1);
  fclose(f);
  STAGE("no room");
  limit_to(pages * 4096 + (1 << 20));
  for (int i = 0; i < 10; i++)
    CHECK(pthread_create(&t[0], NULL, twice, NULL) == EAGAIN, "a thread without room for its stack, try %d",
          i);
  STAGE("room again");
  limit_to(RLIM_INFINITY);
  for (long i = 0; i < 20; i++) t[i] = start_thread(twice, (void*)i);
  for (long i = 0; i < 20; i++) CHECK(join_thread(t[i]) == (void*)(i * 2), "result of thread %ld", i);
  return check_end();
}
