/* N threads that wait for what never comes: a third read a silent socket, a third wait on a condition
 * variable, a third sleep for an hour. Prints "parked" when all have begun. Whoever started it measures the
 * CPU time that this takes (idle.py) and ends it.
 *
 *   parked [N]      1000 threads */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static atomic_int begun;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;

static void* reader(void* unused) {
  (void)unused;
  int pair[2];
  char byte;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0) {
    perror("socketpair");
    exit(1);
  }
  atomic_fetch_add(&begun, 1);
  while (read(pair[0], &byte, 1) < 0) {
  }
  return NULL;
}

static void* waiter(void* unused) {
  (void)unused;
  pthread_mutex_lock(&mutex);
  atomic_fetch_add(&begun, 1);
  for (;;) pthread_cond_wait(&never, &mutex);
  return NULL;
}

static void* sleeper(void* unused) {
  (void)unused;
  atomic_fetch_add(&begun, 1);
  for (;;) sleep(3600);
  return NULL;
}

int main(int argc, char** argv) {
  static void* (*const bodies[])(void*) = {reader, waiter, sleeper};
  int count = argc > 1 ? atoi(argv[1]) : 1000;
  for (int i = 0; i < count; i++) {
    pthread_t thread;
    int error = pthread_create(&thread, NULL, bodies[i % 3], NULL);
    if (error) {
      fprintf(stderr, "parked: thread %d: pthread_create: %s\n", i + 1, strerror(error));
      return 1;
    }
  }
  while (atomic_load(&begun) < count) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  puts("parked");
  fflush(stdout);
  for (;;) pause();
}
