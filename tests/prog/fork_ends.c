/*
 * atfork handlers run once each and in order; the thread of a child may return from its function (the process ends
 * with code 0), call pthread_exit, or leave by exit with its handlers; stdio buffers are written once.
 */
#include "check.h"

#include <stdatomic.h>

static char log_text[200];
static void note(const char* what) { strcat(log_text, what); }
static void prepare_1(void) { note("p1 "); }
static void prepare_2(void) { note("p2 "); }
static void parent_1(void) { note("P1 "); }
static void parent_2(void) { note("P2 "); }
static void child_1(void) { note("c1 "); }
static void child_2(void) { note("c2 "); }

/* An atfork handler may lock, as libraries do to keep a mutex consistent across fork. */
static pthread_mutex_t library = PTHREAD_MUTEX_INITIALIZER;
static void lock_library(void) { pthread_mutex_lock(&library); }
static void unlock_library(void) { pthread_mutex_unlock(&library); }
static atomic_int stop;
static void* use_library(void* unused) {
  (void)unused;
  while (!stop) {
    pthread_mutex_lock(&library);
    usleep(100);
    pthread_mutex_unlock(&library);
  }
  return NULL;
}

static int look(void* unused) {
  (void)unused;
  CHECK(!strcmp(log_text, "p2 p1 c1 c2 "), "handlers in the child: %s", log_text);
  CHECK(pthread_mutex_trylock(&library) == 0, "the library's lock is not free in the child");
  return check_findings != 0;
}
static void* fork_and_look(void* unused) {
  for (int i = 0; i < 5; i++) {
    log_text[0] = 0;
    CHECK(exited_with(in_child(look, unused), 0), "the child");
    CHECK(!strcmp(log_text, "p2 p1 P1 P2 "), "handlers in the parent: %s", log_text);
  }
  return NULL;
}

static int report;
static void say(const char* text) {
  if (write(report, text, strlen(text)) < 0) _exit(99);
}
static pid_t main_pid;
static void at_exit(void) {
  if (getpid() != main_pid) say("atexit ");
}
static void key_gone(void* unused) {
  (void)unused;
  say("key ");
}
static pthread_key_t key;
static void cleanup(void* unused) {
  (void)unused;
  say("cleanup ");
}
static void* linger(void* unused) {
  (void)unused;
  pause_ms(50);
  say("thread ");
  return NULL;
}

enum end { RETURN, PTHREAD_EXIT, EXIT, UNDER_EXIT, THREAD_LEFT, ENDS };
static const struct {
  const char *name, *text;
  int code;
} want[ENDS] = {
    {"return", "cleanup key atexit ", 0},
    {"pthread_exit", "cleanup key atexit ", 0},
    {"exit", "atexit ", 7},
    {"_exit", "", 8},
    {"a thread of the child is left", "cleanup key thread atexit ", 0},
};

static pid_t child_pid;
static void* fork_and_end(void* argument) {
  enum end end = (enum end)(long)argument;
  pthread_setspecific(key, &key);
  pid_t pid = fork();
  if (pid != 0) {
    child_pid = pid;
    pthread_setspecific(key, NULL);
    return NULL;
  }
  signal(SIGALRM, SIG_DFL);
  alarm(20);
  pthread_cleanup_push(cleanup, NULL);
  if (end == THREAD_LEFT) start_thread(linger, NULL);
  if (end == PTHREAD_EXIT) pthread_exit((void*)3);
  if (end == EXIT) exit(7);
  if (end == UNDER_EXIT) _exit(8);
  pthread_cleanup_pop(1);
  return (void*)5; /* not the exit code */
}

static void* stay(void* unused) {
  (void)unused;
  while (!stop) pause_ms(1);
  return NULL;
}

static void ends(void) {
  pthread_t others[5];
  stop = 0;
  for (int i = 0; i < 5; i++) others[i] = start_thread(stay, NULL);
  for (int end = 0; end < ENDS; end++) {
    STAGE(want[end].name);
    int p[2], status = 0;
    char text[100];
    size_t length = 0;
    ssize_t n;
    NEED(pipe(p) == 0);
    report = p[1];
    fflush(stdout);
    join_thread(start_thread(fork_and_end, (void*)(long)end));
    close(p[1]);
    while ((n = read(p[0], text + length, sizeof text - 1 - length)) > 0) length += (size_t)n;
    text[length] = 0;
    close(p[0]);
    CHECK(waitpid(child_pid, &status, 0) == child_pid, "waitpid");
    CHECK(exited_with(status, want[end].code), "status %#x, want code %d", status, want[end].code);
    CHECK(!strcmp(text, want[end].text), "events '%s', want '%s'", text, want[end].text);
  }
  stop = 1;
  for (int i = 0; i < 5; i++) join_thread(others[i]);
}

/* What main had in its buffer at fork is written by both, as ever; what it wrote before is not. */
static void* print_in_child(void* argument) {
  FILE* f = argument;
  pid_t pid = fork();
  if (pid == 0) {
    fprintf(f, "child ");
    fclose(f);
    _exit(0);
  }
  int status;
  CHECK(waitpid(pid, &status, 0) == pid && exited_with(status, 0), "the child");
  return NULL;
}
static void buffers(void) {
  STAGE("stdio buffers");
  int p[2];
  char text[100] = "";
  NEED(pipe(p) == 0);
  FILE* f = fdopen(p[1], "w");
  fprintf(f, "flushed ");
  fflush(f);
  fprintf(f, "kept ");
  join_thread(start_thread(print_in_child, f));
  fclose(f);
  ssize_t n = read(p[0], text, sizeof text - 1);
  CHECK(n > 0 && !strcmp(text, "flushed kept child kept "), "text '%s'", text);
  close(p[0]);
}

int main(void) {
  check_begin();
  NEED(pthread_key_create(&key, key_gone) == 0);
  NEED(pthread_atfork(prepare_1, parent_1, child_1) == 0);
  NEED(pthread_atfork(lock_library, unlock_library, unlock_library) == 0);
  NEED(pthread_atfork(prepare_2, parent_2, child_2) == 0);
  main_pid = getpid();
  STAGE("atfork handlers");
  pthread_t t[3];
  for (int i = 0; i < 3; i++) t[i] = start_thread(use_library, NULL);
  fork_and_look(NULL);
  join_thread(start_thread(fork_and_look, NULL));
  stop = 1;
  for (int i = 0; i < 3; i++) join_thread(t[i]);
  buffers();
  atexit(at_exit); /* says something in children only */
  ends();
  return check_end();
}
