/*
 * A small threaded program with many ways to end, for tests of what is left behind. The first argument chooses:
 *   serve         prints "ready" and works until it is killed; SIGUSR1 makes it call exit(5) in a handler
 *   exit, _exit, quick_exit, return, abort, pthread_exit
 *   children N    forks N children; each makes threads, ends in one of the ways above and does not replace the parent
 *   plain-children N    the same children, but the parent makes no thread
 *   daemon        becomes a daemon; prints its process id first
 *   none          makes no thread
 * Without argument: some of them, in children.
 */
#include "check.h"

#include <stdatomic.h>

static atomic_int beats;

static void* work(void* argument) {
  long rounds = (long)argument;
  int p[2];
  char c;
  NEED(pipe(p) == 0);
  for (long i = 0; rounds < 0 || i < rounds; i++) {
    usleep(2000);
    NEED(write(p[1], "x", 1) == 1 && read(p[0], &c, 1) == 1);
    beats++;
  }
  close(p[0]);
  close(p[1]);
  return NULL;
}

static void use_threads(void) {
  pthread_t t[6];
  for (int i = 0; i < 6; i++) t[i] = start_thread(work, (void*)10);
  for (int i = 0; i < 6; i++) join_thread(t[i]);
}

static void on_usr1(int unused) {
  (void)unused;
  exit(5);
}

static void leave(const char* way) {
  if (!strcmp(way, "exit")) exit(6);
  if (!strcmp(way, "_exit")) _exit(7);
  if (!strcmp(way, "quick_exit")) quick_exit(8);
  if (!strcmp(way, "abort")) abort();
  if (!strcmp(way, "pthread_exit")) pthread_exit(NULL);
}
static const char* const ways[] = {"exit", "_exit", "quick_exit", "pthread_exit"};
static const int codes[] = {6, 7, 8, 0};

static int one_child(void* argument) {
  signal(SIGALRM, SIG_DFL);
  alarm(20);
  use_threads();
  leave(ways[(long)argument % COUNT_OF(ways)]);
  return 99;
}

static void children(int n) {
  for (long i = 0; i < n; i++) {
    int status = in_child(one_child, (void*)i), code = codes[i % COUNT_OF(ways)];
    CHECK(exited_with(status, code), "child %ld: status %#x, want code %d", i, status, code);
  }
}

static int serve(void) {
  for (int i = 0; i < 6; i++) start_thread(work, (void*)-1);
  signal(SIGUSR1, on_usr1);
  alarm(0);
  printf("ready\n");
  fflush(stdout);
  for (int i = 0; i < 60; i++) /* not for ever, should nobody kill it */
    sleep(1);
  return 1;
}

int main(int argc, char** argv) {
  const char* way = argc > 1 ? argv[1] : "";
  check_begin();
  if (!strcmp(way, "serve")) return serve();
  if (!strcmp(way, "none")) return check_end();
  if (!strcmp(way, "children") || !strcmp(way, "plain-children")) {
    if (way[0] == 'c') use_threads();
    children(argc > 2 ? atoi(argv[2]) : 4);
    return check_end();
  }
  if (!strcmp(way, "daemon")) {
    use_threads();
    NEED(daemon(1, 1) == 0);
    printf("%d\n", (int)getpid());
    fflush(stdout);
    use_threads();
    return 0;
  }
  use_threads();
  leave(way);
  if (argc < 2) children(8);
  return check_end();
}
