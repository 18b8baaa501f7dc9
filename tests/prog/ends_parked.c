/*
 * A process with N threads (first argument) that wait in all kinds of ways ends as the second argument says; in between it prints,
 * buffers and registers handlers, so that the order in which all of it comes out is seen. Without arguments: nothing.
 */
#include "check.h"

#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/resource.h>

static int park[2];
static pthread_mutex_t stuck = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t held = PTHREAD_RWLOCK_INITIALIZER;
static sem_t none;
static atomic_int there;
static struct timespec begin;

static void direct(const char* text) {
  if (write(1, text, strlen(text)) < 0) _exit(99);
}
static void unlock(void* m) { pthread_mutex_unlock(m); }
static void* wait_here(void* argument) {
  char c;
  static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
  struct pollfd f = {park[0], POLLIN, 0};
  there++;
  switch ((long)argument % 7) {
    case 0:
      return (void*)read(park[0], &c, 1);
    case 1:
      pthread_mutex_lock(&stuck);
      break;
    case 2:
      pthread_mutex_lock(&own);
      pthread_cleanup_push(unlock, &own);
      for (;;) pthread_cond_wait(&never, &own);
      pthread_cleanup_pop(0);
    case 3:
      sem_wait(&none);
      break;
    case 4:
      poll(&f, 1, -1);
      break;
    case 5:
      pthread_rwlock_rdlock(&held);
      break;
    default:
      for (;;) sleep(1000);
  }
  return NULL;
}

static void first_registered(void) {
  direct("handler 1\n");
  printf("from handler 1\n");
}
static void last_registered(void) {
  direct("handler 2\n");
  printf("from handler 2\n");
}
static void quick(void) { direct("quick\n"); }
__attribute__((destructor)) static void unload(void) {
  if (there) direct("destructor\n");
}
static void on_term(int unused) {
  (void)unused;
  direct("signal handler\n");
  _exit(23);
}

static void mark(void) { clock_gettime(CLOCK_REALTIME, &begin); }
static void* end_in_thread(void* argument);

static int end(const char* how, int in_thread) {
  mark();
  fprintf(stderr, "%ld.%09ld\n", (long)begin.tv_sec, begin.tv_nsec); /* when the end begins */
  if (strncmp(how, "thread-", 7) == 0) {
    if (!in_thread) {
      join_thread(start_thread(end_in_thread, (void*)how));
      pause();
    }
    how += 7;
  }
  if (strcmp(how, "exit") == 0) exit(3);
  if (strcmp(how, "_exit") == 0) _exit(4);
  if (strcmp(how, "quick_exit") == 0) quick_exit(5);
  if (strcmp(how, "abort") == 0) abort();
  if (strcmp(how, "fault") == 0) *(volatile int*)wild_address() = 1;
  if (strcmp(how, "kill") == 0) kill(getpid(), SIGKILL);
  if (strcmp(how, "term") == 0) raise(SIGTERM);
  if (strcmp(how, "caught") == 0) {
    signal(SIGTERM, on_term);
    kill(getpid(), SIGTERM);
    pause_ms(15000);
  }
  if (strcmp(how, "exec") == 0) execl("/bin/sh", "sh", "-c", "echo program; exit 6", (char*)NULL);
  if (strcmp(how, "trap") == 0) __builtin_trap();
  return 7; /* return from main */
}
static void* end_in_thread(void* argument) {
  end(argument, 1);
  return NULL;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    join_thread(start_thread((void* (*)(void*))sched_yield, NULL));
    puts("OK");
    return 0;
  }
  struct rlimit no_core = {0, 0};
  int n = atoi(argv[1]);
  pthread_attr_t small;
  setrlimit(RLIMIT_CORE, &no_core);
  static char buffer[4096];
  setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
  NEED(pipe(park) == 0);
  sem_init(&none, 0, 0);
  pthread_mutex_lock(&stuck);
  pthread_rwlock_wrlock(&held);
  atexit(first_registered);
  atexit(last_registered);
  at_quick_exit(quick);
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 64 << 10);
  for (long i = 0; i < n; i++) {
    pthread_t t;
    if (pthread_create(&t, &small, wait_here, (void*)i) != 0) n = (int)i;
  }
  CHECK(EVENTUALLY(there == n), "%d of %d threads", (int)there, n);
  pause_ms(50);
  printf("buffered, ");
  fprintf(stderr, "%d threads\n", n);
  return end(argv[2], 0);
}
