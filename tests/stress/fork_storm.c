/*
 * Many forks, from main and from several threads at once, while others do socket traffic, locks, allocations, stdio and
 * create threads: every child works and ends with its code, the parent's work goes on and comes out right.
 */
// run: modes=default,carriers1
#include "stress.h"

#include <poll.h>
#include <stdatomic.h>

static atomic_int stop;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, hot = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static long counter, work_done[8];
static FILE* scrap;

static void* traffic(void* argument) {
  int s[2];
  char c = 'a', back;
  stream_pair(s);
  while (!stop) {
    CHECK(write(s[0], &c, 1) == 1 && read(s[1], &back, 1) == 1 && back == c, "socket");
    work_done[(long)argument]++;
  }
  close(s[0]);
  close(s[1]);
  return NULL;
}
static void* locks(void* argument) {
  while (!stop) {
    pthread_mutex_lock(&hot);
    work_done[(long)argument]++;
    pthread_mutex_unlock(&hot);
    pthread_mutex_lock(&lock);
    counter++;
    pthread_cond_signal(&cond);
    struct timespec until = ms_from_now(CLOCK_REALTIME, 1);
    pthread_cond_timedwait(&cond, &lock, &until);
    pthread_mutex_unlock(&lock);
  }
  return NULL;
}
static void* allocations(void* argument) {
  unsigned random = 3;
  while (!stop) {
    void* p[20];
    for (int i = 0; i < 20; i++) memset(p[i] = malloc(1 + next_random(&random) % 5000), 1, 1);
    for (int i = 0; i < 20; i++) free(p[i]);
    fprintf(scrap, "%ld\n", work_done[(long)argument]);
    work_done[(long)argument]++;
    usleep(100);
  }
  return NULL;
}
static void* nothing(void* argument) { return argument; }
static void* creations(void* argument) {
  while (!stop) {
    CHECK(join_thread(start_thread(nothing, argument)) == argument, "join");
    work_done[(long)argument]++;
    usleep(200);
  }
  return NULL;
}

static void* child_thread(void* argument) {
  long i = (long)argument;
  char* p = malloc(100 + (size_t)i);
  p[0] = (char)i;
  usleep(200);
  long r = p[0] + 1;
  free(p);
  return (void*)r;
}
/* The child's code is 1 + (i mod 100) if all is well. */
static int child(void* argument) {
  long i = (long)argument, sum = 0;
  pthread_t t[3];
  int p[2];
  char c;
  NEED(pipe(p) == 0);
  if (i % 4 != 3) { /* some children make no threads */
    for (long k = 0; k < 3; k++) t[k] = start_thread(child_thread, (void*)k);
    for (int k = 0; k < 3; k++) sum += (long)join_thread(t[k]);
    CHECK(sum == 6, "sum %ld", sum);
  }
  struct pollfd f = {p[0], POLLIN, 0};
  CHECK(poll(&f, 1, 1) == 0, "poll");
  CHECK(write(p[1], "x", 1) == 1 && read(p[0], &c, 1) == 1, "pipe");
  if (i % 5 == 4) {
    int status = in_child(child, (void*)(i + 3));
    CHECK(exited_with(status, 1 + (int)((i + 3) % 100)), "grandchild: status %#x", status);
  }
  return check_findings ? 0 : 1 + (int)(i % 100);
}

static void* forker(void* argument) {
  int rounds = scaled(argument ? 25 : 40);
  for (long i = 0; i < rounds; i++) {
    int status = in_child(child, (void*)i);
    CHECK(exited_with(status, 1 + (int)(i % 100)), "child %ld: status %#x", i, status);
  }
  return NULL;
}

int main(void) {
  stress_begin();
  pthread_t w[8], f[3];
  static void* (*const bodies[])(void*) = {traffic, locks, allocations, creations,
                                           traffic, locks, allocations, creations};
  scrap = fopen("/dev/null", "w");
  STAGE("forks beside work");
  for (long i = 0; i < 8; i++) w[i] = start_thread(bodies[i], (void*)i);
  for (long i = 0; i < 3; i++) f[i] = start_thread(forker, (void*)1);
  forker(NULL);
  for (int i = 0; i < 3; i++) join_thread(f[i]);
  long before[8];
  memcpy(before, work_done, sizeof before);
  for (int i = 0; i < 8; i++)
    CHECK(EVENTUALLY(__atomic_load_n(&work_done[i], __ATOMIC_RELAXED) > before[i]), "worker %d stands still",
          i);
  stop = 1;
  STAGE("the end");
  for (int i = 0; i < 8; i++) join_thread(w[i]);
  CHECK(counter > 0, "nobody counted");
  return check_end();
}
