/* The ways in which a process ends while its threads sleep, spin and hold locks: code, handlers, output, promptness. */
#include "check.h"

#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/resource.h>

static int report;
static void say(const char* text) {
  if (write(report, text, strlen(text)) < 0) _exit(99);
}
static void handler_1(void) { say("one "); }
static void handler_2(void) {
  pause_ms(2); /* a handler may block */
  say("two ");
}
static void quick(void) { say("quick "); }
__attribute__((destructor)) static void destructor(void) {
  if (report > 0) say("destructor ");
}

static int park[2];
static pthread_mutex_t stuck = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static sem_t none;
static atomic_int running;

static void* block(void* argument) {
  char c;
  struct pollfd f = {park[0], POLLIN, 0};
  static pthread_mutex_t own[256];
  long id = (long)argument;
  running++;
  switch (id % 6) {
    case 0:
      return (void*)read(park[0], &c, 1);
    case 1:
      pthread_mutex_lock(&stuck);
      break;
    case 2:
      pthread_mutex_lock(&own[id]);
      for (;;) pthread_cond_wait(&never, &own[id]);
    case 3:
      sem_wait(&none);
      break;
    case 4:
      poll(&f, 1, -1);
      break;
    case 5:
      for (;;) sleep(100);
  }
  return NULL;
}
static void* spin(void* unused) {
  (void)unused;
  volatile long n = 0;
  running++;
  while (n >= 0) n = n + 1;
  return NULL;
}

enum end {
  RETURN,
  EXIT,
  EXIT_THREAD,
  UNDER_EXIT_THREAD,
  QUICK_EXIT,
  QUICK_EXIT_THREAD,
  ABORT_THREAD,
  RAISE_THREAD,
  KILL_SELF,
  EXIT_TWICE,
  EXEC_THREAD,
  LAST_RETURNS,
  ENDS
};
static const struct {
  const char *name, *text;
  int code; /* negative: signal */
} want[ENDS] = {
    {"exit in main, as return does", "two one destructor buffered", 7},
    {"exit in main beside spinners", "two one destructor buffered", 8},
    {"exit in a thread", "two one destructor buffered", 9},
    {"_exit in a thread", "", 10},
    {"quick_exit in main", "quick ", 11},
    {"quick_exit in a thread", "quick ", 12},
    {"abort in a thread", "", -SIGABRT},
    {"raise(SIGTERM) in a thread", "", -SIGTERM},
    {"kill of the process in a thread", "", -SIGKILL},
    {"exit in a thread while main waits to exit", "two one destructor buffered", 14},
    {"exec in a thread", "", 15},
    {"main left, the last thread returns", "two one destructor buffered", 0},
};

static void* end_it(void* argument) {
  pause_ms(20);
  switch ((enum end)(long)argument) {
    case EXIT_THREAD:
      exit(9);
    case UNDER_EXIT_THREAD:
      _exit(10);
    case QUICK_EXIT_THREAD:
      quick_exit(12);
    case ABORT_THREAD:
      abort();
    case RAISE_THREAD:
      raise(SIGTERM);
      break;
    case KILL_SELF:
      kill(getpid(), SIGKILL);
      break;
    case EXIT_TWICE:
      exit(14);
    case EXEC_THREAD:
      execl("/bin/sh", "sh", "-c", "exit 15", (char*)NULL);
      break;
    default:
      break;
  }
  return NULL;
}

static void end_child(enum end end, int out) {
  pthread_t t;
  struct rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  signal(SIGALRM, SIG_DFL);
  alarm(20);
  report = out;
  atexit(handler_1);
  atexit(handler_2);
  at_quick_exit(quick);
  FILE* buffered = fdopen(dup(out), "w");
  fprintf(buffered, "buffered"); /* flushed by exit, after the handlers */
  if (end == LAST_RETURNS) {
    for (long i = 0; i < 20; i++) start_thread(end_it, NULL);
    pthread_exit(NULL);
  }
  NEED(pipe(park) == 0);
  sem_init(&none, 0, 0);
  pthread_mutex_lock(&stuck);
  int n = 200;
  for (long i = 0; i < n; i++) start_thread(block, (void*)i);
  if (end == EXIT || end == EXIT_THREAD) {
    for (int i = 0; i < 4; i++, n++) start_thread(spin, NULL);
  }
  CHECK(EVENTUALLY(running == n), "%d of %d threads run", (int)running, n);
  switch (end) {
    case RETURN:
      exit(7);
    case EXIT:
      exit(8);
    case QUICK_EXIT:
      quick_exit(11);
    default:
      t = start_thread(end_it, (void*)(long)end);
      pthread_join(t, NULL);
      pause_ms(5000); /* a signal or an exit is on its way */
      _exit(98);
  }
}

int main(void) {
  check_begin();
  for (int end = 0; end < ENDS; end++) {
    STAGE(want[end].name);
    int p[2], status = 0;
    char text[200];
    size_t length = 0;
    ssize_t n;
    NEED(pipe(p) == 0);
    fflush(stdout);
    double begin = now();
    pid_t pid = fork();
    if (pid == 0) {
      close(p[0]);
      end_child((enum end)end, p[1]);
    }
    close(p[1]);
    while ((n = read(p[0], text + length, sizeof text - 1 - length)) > 0) length += (size_t)n;
    text[length] = 0;
    close(p[0]);
    NEED(waitpid(pid, &status, 0) == pid);
    if (want[end].code < 0)
      CHECK(killed_by(status, -want[end].code), "status %#x, want signal %d", status, -want[end].code);
    else
      CHECK(exited_with(status, want[end].code), "status %#x, want code %d", status, want[end].code);
    CHECK(!strcmp(text, want[end].text), "events '%s', want '%s'", text, want[end].text);
    CHECK(now() - begin < 15, "it took %.1f s", now() - begin);
  }
  return check_end();
}
