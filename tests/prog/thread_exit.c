/* pthread_exit: from nested frames, with cleanup handlers, with results; main leaves while its threads run on. */
#include "check.h"

#include <stdatomic.h>

static char order[64];
static atomic_int at;
static void note(void* letter) { order[at++] = *(const char*)letter; }

static volatile int last_depth = 5;
__attribute__((noinline)) static void* deep(int depth) {
  volatile char frame[200];
  frame[0] = (char)depth;
  char name = (char)('a' + depth);
  pthread_cleanup_push(note, &name);
  if (depth == last_depth) pthread_exit((void*)0x1234);
  if (depth < 100) deep(depth + 1);
  pthread_cleanup_pop(0);
  return (void*)(long)frame[0];
}

static void* exit_from_deep(void* unused) {
  (void)unused;
  deep(0);
  CHECK(0, "pthread_exit returned");
  return NULL;
}

static void* popped(void* unused) {
  (void)unused;
  static const char x = 'x', y = 'y', z = 'z';
  pthread_cleanup_push(note, (void*)&x);
  pthread_cleanup_push(note, (void*)&y);
  pthread_cleanup_push(note, (void*)&z);
  pthread_cleanup_pop(1); /* runs z */
  pthread_cleanup_pop(0); /* forgets y */
  pause_ms(1);
  pthread_exit((void*)7); /* runs x */
  pthread_cleanup_pop(0);
  return NULL;
}

/* A cleanup handler may block. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void unlock_slowly(void* unused) {
  (void)unused;
  pause_ms(2);
  note((void*)"u");
  pthread_mutex_unlock(&lock);
}
static void* exit_with_lock(void* unused) {
  (void)unused;
  pthread_mutex_lock(&lock);
  pthread_cleanup_push(unlock_slowly, NULL);
  pthread_exit(NULL);
  pthread_cleanup_pop(0);
  return NULL;
}

static void order_is(const char* want) {
  order[at] = 0;
  CHECK(!strcmp(order, want), "handlers ran as '%s', want '%s'", order, want);
  at = 0;
}

static void* plain_exit(void* argument) { pthread_exit(argument); }

static void from_threads(void) {
  STAGE("pthread_exit of threads");
  CHECK(join_thread(start_thread(exit_from_deep, NULL)) == (void*)0x1234, "result of a deep exit");
  order_is("fedcba");
  CHECK(join_thread(start_thread(popped, NULL)) == (void*)7, "result");
  order_is("zx");
  pthread_t t[20];
  for (int i = 0; i < 10; i++) t[i] = start_thread(exit_with_lock, NULL);
  for (int i = 0; i < 10; i++) join_thread(t[i]);
  order_is("uuuuuuuuuu");
  CHECK(pthread_mutex_trylock(&lock) == 0, "a cleanup handler did not unlock");
  for (long i = 0; i < 20; i++) t[i] = start_thread(plain_exit, (void*)i);
  for (long i = 0; i < 20; i++) CHECK(join_thread(t[i]) == (void*)i, "result of thread %ld", i);
}

/* Main leaves: the process ends with code 0 when the last thread has, and not before. */
static pthread_t main_thread;
static int report;
static pthread_key_t key;
static void say(const char* text) {
  CHECK(write(report, text, strlen(text)) == (ssize_t)strlen(text), "write");
}
static void at_exit(void) { say("atexit "); }
static void key_gone(void* unused) {
  (void)unused;
  say("key ");
}
static void cleanup(void* unused) {
  (void)unused;
  say("cleanup ");
}

static void* after_main(void* argument) {
  void* result = NULL;
  CHECK(pthread_join(main_thread, &result) == 0 && result == (void*)99, "join of main gave %p", result);
  say("joined ");
  pause_ms(60);
  say("work ");
  if (argument) {
    say("exit ");
    exit(3);
  }
  return NULL;
}

static int main_leaves(void* argument) {
  main_thread = pthread_self();
  atexit(at_exit);
  pthread_key_create(&key, key_gone);
  pthread_setspecific(key, &key);
  start_thread(after_main, argument);
  pthread_cleanup_push(cleanup, NULL);
  pause_ms(30);
  pthread_exit((void*)99);
  pthread_cleanup_pop(0);
  return 1;
}

static void from_main(void* argument, int code, const char* want) {
  int p[2];
  char text[200];
  size_t length = 0;
  ssize_t n;
  NEED(pipe(p) == 0);
  report = p[1];
  int status = in_child(main_leaves, argument);
  close(p[1]);
  while ((n = read(p[0], text + length, sizeof text - 1 - length)) > 0) length += (size_t)n;
  close(p[0]);
  text[length] = 0;
  CHECK(exited_with(status, code), "wait status %#x, want exit code %d", status, code);
  CHECK(!strcmp(text, want), "events '%s', want '%s'", text, want);
}

int main(void) {
  check_begin();
  STAGE("pthread_exit of main");
  from_main(NULL, 0, "cleanup key joined work atexit ");
  STAGE("pthread_exit of main, exit by a thread");
  from_main((void*)1, 3, "cleanup key joined work exit atexit ");
  from_threads();
  STAGE("pthread_exit of main after threads ran");
  from_main(NULL, 0, "cleanup key joined work atexit ");
  return check_end();
}
