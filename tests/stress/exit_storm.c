/* Children that end in the middle of everything, in all ways: each with its code, promptly, none hangs. */
// run: modes=default,carriers1
#include "stress.h"

#include <stdatomic.h>
#include <sys/resource.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void* nothing(void* argument) { return argument; }
static void* busy(void* argument) {
  long id = (long)argument;
  int s[2];
  char c = 'x';
  stream_pair(s);
  for (;;) {
    switch (id % 5) {
      case 0:
        if (write(s[1], &c, 1) != 1 || read(s[0], &c, 1) != 1) return NULL;
        break;
      case 1:
        pthread_mutex_lock(&lock);
        usleep(50);
        pthread_mutex_unlock(&lock);
        break;
      case 2:
        join_thread(start_thread(nothing, NULL));
        break;
      case 3:
        free(malloc(5000));
        break;
      case 4:
        usleep(100);
        break;
    }
  }
}

static int way_out;
static void* leave(void* unused) {
  unsigned random = (unsigned)way_out;
  (void)unused;
  nap(&random, 3000);
  switch (way_out % 6) {
    case 0:
      exit(20);
    case 1:
      _exit(21);
    case 2:
      quick_exit(22);
    case 3:
      kill(getpid(), SIGKILL);
      break;
    case 4:
      raise(SIGTERM);
      break;
    case 5:
      abort();
  }
  return NULL;
}
static void nothing_at_exit(void) { usleep(100); }

static int child(void* argument) {
  int i = (int)(long)argument;
  way_out = i / 2;
  struct rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  atexit(nothing_at_exit);
  for (long k = 0; k < 15; k++) start_thread(busy, (void*)(k + i));
  if (i % 2)
    leave(NULL);
  else
    join_thread(start_thread(leave, NULL));
  pause_ms(5000); /* a signal is on its way */
  return 99;
}

int main(void) {
  stress_begin();
  static const int codes[6] = {20, 21, 22, -SIGKILL, -SIGTERM, -SIGABRT};
  for (int i = 0; i < scaled(72); i++) {
    static char stage[40];
    snprintf(stage, sizeof stage, "child %d", i);
    STAGE(stage);
    int status = in_child(child, (void*)(long)i), want = codes[i / 2 % 6];
    CHECK(want < 0 ? killed_by(status, -want) : exited_with(status, want), "child %d: status %#x, want %d", i,
          status, want);
    if (i % 12 == 5) /* the parent has threads of its own from time to time */
      join_thread(start_thread(nothing, NULL));
  }
  return check_end();
}
