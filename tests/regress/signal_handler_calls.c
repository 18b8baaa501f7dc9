/* A handler without SA_RESTART that calls blocking functions: the interrupted call still ends with EINTR. */
#include "../prog/check.h"

#include <stdatomic.h>

static int pipes[2], other[2];
static __thread volatile int hits;
static void handler(int unused) {
  char c;
  (void)unused;
  hits++;
  pause_ms(2);
  if (write(other[1], "x", 1) != 1 || read(other[0], &c, 1) != 1) check_fail(__LINE__, "pipe in the handler");
}

static atomic_int ended;
static void* reads(void* unused) {
  char c;
  (void)unused;
  long r = read(pipes[0], &c, 1);
  CHECK(r == -1 && errno == EINTR && hits > 0, "read: %ld, errno %d, the handler ran %d times", r, errno, hits);
  ended = 1;
  return NULL;
}

int main(void) {
  check_begin();
  NEED(pipe(pipes) == 0 && pipe(other) == 0);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  NEED(sigaction(SIGUSR1, &action, NULL) == 0);
  pthread_t t = start_thread(reads, NULL);
  for (int i = 0; i < 400 && !ended; i++) {
    pause_ms(20);
    if (!ended) CHECK(pthread_kill(t, SIGUSR1) == 0, "pthread_kill");
  }
  join_thread(t);
  return check_end();
}
