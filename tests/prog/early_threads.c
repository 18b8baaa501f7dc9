/* Threads, locks and I/O before main (preinit array, constructors) and after it (atexit handlers, destructors). */
#include "check.h"

#include <stdatomic.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int steps, inits;
static atomic_int stayed;
static int pipe_fds[2];

static void init(void) {
  inits++;
  pthread_key_create(&key, NULL);
}

static void* step(void* argument) {
  char c;
  pthread_once(&once, init);
  pthread_setspecific(key, argument);
  CHECK(write(pipe_fds[1], "x", 1) == 1 && read(pipe_fds[0], &c, 1) == 1, "pipe");
  usleep(300);
  pthread_mutex_lock(&lock);
  steps++;
  pthread_mutex_unlock(&lock);
  CHECK(pthread_getspecific(key) == argument, "specific value");
  return argument;
}

static void four_steps(void) {
  pthread_t t[4];
  for (long i = 0; i < 4; i++) t[i] = start_thread(step, (void*)i);
  for (long i = 0; i < 4; i++) CHECK(join_thread(t[i]) == (void*)i, "result");
}

static void* stay(void* unused) {
  (void)unused;
  stayed++;
  while (stayed) sleep(100);
  return NULL;
}

/* The first code of the program that runs: locks and I/O only. */
static void first_of_all(int argc, char** argv, char** envp) {
  (void)argc;
  (void)argv;
  (void)envp;
  struct timespec t = {0, 100000};
  pthread_mutex_lock(&lock);
  steps++;
  pthread_mutex_unlock(&lock);
  nanosleep(&t, NULL);
  if (pipe(pipe_fds) != 0 || write(pipe_fds[1], "a", 1) != 1) _exit(90);
  char c;
  if (read(pipe_fds[0], &c, 1) != 1 || c != 'a') _exit(91);
}
__attribute__((section(".preinit_array"), used)) static void (*const first)(int, char**,
                                                                            char**) = first_of_all;

__attribute__((constructor(101))) static void early(void) {
  CHECK(steps == 1, "the preinit function ran %d times", steps);
  four_steps();
  pthread_detach(start_thread(stay, NULL));
}
__attribute__((constructor)) static void later(void) { four_steps(); }

__attribute__((destructor)) static void last(void) {
  four_steps();
  if (steps != 1 + 4 * 5 || check_findings)
    printf("FAIL: %d steps, %d findings at the end\n", steps, check_findings);
  else
    printf("and at the end\n");
}
static void at_exit(void) { four_steps(); }

int main(void) {
  check_begin();
  CHECK(steps == 9 && inits == 1, "%d steps before main, %d initialisations", steps, inits);
  CHECK(EVENTUALLY(stayed == 1), "the thread of a constructor runs");
  atexit(at_exit);
  four_steps();
  return check_end();
}
