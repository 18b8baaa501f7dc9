/*
 * Handlers of pthread_atfork run exactly once a fork and in their order, in whichever thread forks, also when they wait for locks that
 * other threads hold; what is no fork runs none.
 */
// cflags: -Wno-deprecated-declarations
#include "check.h"

#include <spawn.h>
#include <stdatomic.h>
#include <sys/syscall.h>

extern pid_t _Fork(void);
enum { SETS = 3, FORKERS = 6, ROUNDS = 12 };
static pthread_mutex_t guard[SETS];
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static char order[64]; /* what ran since the fork began: under guard[0], which the first set takes last */
static int order_length;
static atomic_int stop;
static atomic_long ran[3];

static void note(int when, int set) {
  ran[when]++;
  if (order_length < COUNT_OF(order) - 1) order[order_length++] = (char)(when == 0 ? 'a' + set : when == 1 ? 'A' + set : '0' + set);
  order[order_length] = 0;
}
#define SET(n)                              \
  static void before_##n(void) {            \
    pthread_mutex_lock(&guard[n]);          \
    note(0, n);                             \
  }                                         \
  static void parent_##n(void) {            \
    note(1, n);                             \
    pthread_mutex_unlock(&guard[n]);        \
  }                                         \
  static void child_##n(void) {             \
    note(2, n);                             \
    pthread_mutex_unlock(&guard[n]);        \
  }
SET(0)
SET(1)
SET(2)

static void* holder(void* argument) {
  pthread_mutex_t* m = &guard[(long)argument % SETS];
  while (!stop) {
    pthread_mutex_lock(m);
    usleep(300);
    pthread_mutex_unlock(m);
    usleep(100);
  }
  return NULL;
}

static void* thread_of_child(void* argument) {
  for (int i = 0; i < SETS; i++) {
    pthread_mutex_lock(&guard[i]);
    pthread_mutex_unlock(&guard[i]);
  }
  return argument;
}

/* One fork, whose handlers are looked at in both processes. depth: how many generations. */
static void fork_once(int depth) {
  order_length = 0;
  long ran_before = ran[0];
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    if (strcmp(order, "cba012") != 0) _exit(1);
    if (ran[2] != SETS) _exit(2);
    ran[2] = 0;
    if (depth > 0) fork_once(depth - 1);
    if (check_findings) _exit(3);
    pthread_t t;
    if (pthread_create(&t, NULL, thread_of_child, NULL) != 0 || pthread_join(t, NULL) != 0) _exit(4);
    _exit(7);
  }
  CHECK(child > 0, "fork: %s", strerror(errno));
  CHECK(strcmp(order, "cbaABC") == 0 && ran[0] == ran_before + SETS, "handlers ran as %s", order);
  int status = -1;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  CHECK(exited_with(status, 7), "the child ends with %x", (unsigned)status);
}
static void* forker(void* argument) {
  for (int i = 0; i < ROUNDS; i++) {
    pthread_mutex_lock(&one_at_a_time); /* `order` is of one fork */
    fork_once((int)((long)argument + i) % 3);
    pthread_mutex_unlock(&one_at_a_time);
  }
  return NULL;
}
/* Those take each other's handlers in turn: only the numbers are looked at. */
static void* together(void* argument) {
  for (int i = 0; i < ROUNDS; i++) {
    pid_t child = fork();
    if (child == 0) _exit(ran[2] == SETS ? 7 : 1);
    int status = -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    CHECK(exited_with(status, 7), "the child ends with %x", (unsigned)status);
  }
  return argument;
}

/* Processes that are made in other ways run no handlers. */
static int wait_for(pid_t child) {
  int status = -1;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}
static void* no_fork(void* unused) {
  long before = ran[0] + ran[1] + ran[2];
  char* command[] = {(char*)"true", NULL};
  pid_t child;
  CHECK(posix_spawnp(&child, "true", NULL, NULL, command, NULL) == 0 && exited_with(wait_for(child), 0), "posix_spawnp");
  CHECK(exited_with(system("exit 3"), 3), "system");
  CHECK(exited_with(pclose(popen("exit 4", "r")), 4), "popen");
  if ((child = vfork()) == 0) _exit(5);
  CHECK(exited_with(wait_for(child), 5), "vfork");
  if ((child = _Fork()) == 0) _exit(ran[0] + ran[1] + ran[2] == before ? 6 : 1);
  CHECK(exited_with(wait_for(child), 6), "_Fork");
  if ((child = (pid_t)syscall(SYS_fork)) == 0) _exit(8);
  CHECK(exited_with(wait_for(child), 8), "fork by its number");
  CHECK(ran[0] + ran[1] + ran[2] == before, "%ld handlers ran", ran[0] + ran[1] + ran[2] - before);
  return unused;
}

/* fork in a signal handler that interrupts a wait, and in a destructor at thread end. */
static atomic_int forked;
static void fork_in_handler(int signal_number) {
  int saved = errno;
  pid_t child = fork();
  if (child == 0) _exit(9);
  CHECK(exited_with(wait_for(child), 9), "forked in a handler of %d", signal_number);
  forked++;
  errno = saved;
}
static void* interrupted(void* unused) {
  while (forked == 0) pause_ms(50);
  return unused;
}
static pthread_key_t key;
static void fork_at_end(void* value) {
  pid_t child = fork();
  if (child == 0) _exit((int)(long)value);
  CHECK(exited_with(wait_for(child), (int)(long)value), "forked at the end of a thread");
  forked++;
}
static void* ends(void* unused) {
  pthread_setspecific(key, (void*)10);
  return unused;
}
static void odd_places(void) {
  struct sigaction set;
  memset(&set, 0, sizeof set);
  set.sa_handler = fork_in_handler;
  sigaction(SIGUSR1, &set, NULL);
  pthread_t t = start_thread(interrupted, NULL);
  pause_ms(5);
  pthread_kill(t, SIGUSR1);
  join_thread(t);
  pthread_key_create(&key, fork_at_end);
  join_thread(start_thread(ends, NULL));
  CHECK(forked == 2, "%d forks", (int)forked);
}

int main(void) {
  check_begin();
  pthread_t h[6], f[FORKERS];
  for (int i = 0; i < SETS; i++) pthread_mutex_init(&guard[i], NULL);
  pthread_atfork(before_0, parent_0, child_0);
  pthread_atfork(before_1, parent_1, child_1);
  pthread_atfork(before_2, parent_2, child_2);
  STAGE("before there are threads");
  fork_once(1);
  for (long i = 0; i < COUNT_OF(h); i++) h[i] = start_thread(holder, (void*)i);
  STAGE("in main");
  fork_once(2);
  STAGE("in threads");
  for (long i = 0; i < FORKERS; i++) f[i] = start_thread(forker, (void*)i);
  for (int i = 0; i < FORKERS; i++) join_thread(f[i]);
  STAGE("at the same time");
  for (long i = 0; i < FORKERS; i++) f[i] = start_thread(together, NULL);
  for (int i = 0; i < FORKERS; i++) join_thread(f[i]);
  STAGE("no forks");
  no_fork(NULL);
  join_thread(start_thread(no_fork, NULL));
  STAGE("odd places");
  odd_places();
  stop = 1;
  for (int i = 0; i < COUNT_OF(h); i++) join_thread(h[i]);
  CHECK(ran[0] == ran[1] && ran[2] == 0, "%ld before, %ld in the parent, %ld in the child", (long)ran[0], (long)ran[1], (long)ran[2]);
  return check_end();
}
