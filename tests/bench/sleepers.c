/* N threads that sleep S seconds each: how long do all of them take together?
 *
 *   sleepers [N] [S] [STACK_KIB]      10000 threads, 2 seconds, the system's stack size
 *
 * Prints "created SECONDS" when the last thread has been made and "total SECONDS" when the last has been
 * joined. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct timespec nap;
static double nap_seconds;
static atomic_int short_naps;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void* sleeper(void* unused) {
  (void)unused;
  double before = now();
  struct timespec left = nap;
  while (nanosleep(&left, &left) < 0 && errno == EINTR) {
  }
  if (now() - before < nap_seconds) atomic_fetch_add(&short_naps, 1);
  return NULL;
}

int main(int argc, char** argv) {
  int count = argc > 1 ? atoi(argv[1]) : 10000;
  nap_seconds = argc > 2 ? atof(argv[2]) : 2.0;
  size_t stack = argc > 3 ? (size_t)atol(argv[3]) << 10 : 0;
  nap.tv_sec = (time_t)nap_seconds;
  nap.tv_nsec = (long)((nap_seconds - (double)nap.tv_sec) * 1e9);
  if (count < 1) return 2;

  pthread_t* threads = calloc((size_t)count, sizeof *threads);
  if (!threads) return 1;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  if (stack && pthread_attr_setstacksize(&attributes, stack)) return 2;

  double start = now();
  for (int i = 0; i < count; i++) {
    int error = pthread_create(&threads[i], &attributes, sleeper, NULL);
    if (error) {
      fprintf(stderr, "sleepers: thread %d: pthread_create: %s\n", i + 1, strerror(error));
      return 1;
    }
  }
  printf("created %.3f\n", now() - start);
  for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
  printf("total %.3f\n", now() - start);

  if (short_naps) fprintf(stderr, "sleepers: %d threads slept less than they asked for\n", short_naps);
  return short_naps ? 1 : 0;
}
