/*
 * A thread that has not been let in yet is a thread all the same: it has an id, a name, can be signalled, detached and
 * joined; main may leave and it still runs; exit does not wait for it.
 */
// run: name=no-cap
// run: name=queue env=VTHR_MAX_CONCURRENCY=2 env=VTHR_ADMISSION=queue
#include "check.h"

#include <stdatomic.h>

static int gate[2];
static atomic_int go, ran, told;
static __thread int hits;

static void handler(int unused) {
  (void)unused;
  hits++;
}

/* Keeps its place for as long as it reads. */
static void* holder(void* argument) {
  char c;
  CHECK(read(gate[0], &c, 1) == 1, "the gate");
  return argument;
}
static void* queued(void* argument) {
  char name[16] = "";
  while (!go) pause_ms(1);
  CHECK(pthread_getname_np(pthread_self(), name, sizeof name) == 0 && !strcmp(name, "in the queue"),
        "name '%s'", name);
  told += hits;
  ran++;
  return argument;
}
static void* count(void* unused) {
  usleep(10000);
  ran++;
  return unused;
}

static void with_holders(void) {
  STAGE("a thread in the queue");
  pthread_t h[2], q, d;
  void* result = NULL;
  struct timespec until;
  NEED(pipe(gate) == 0);
  for (int i = 0; i < 2; i++) h[i] = start_thread(holder, NULL);
  pause_ms(50);
  q = start_thread(queued, (void*)77);
  d = start_thread(count, NULL);
  CHECK(!pthread_equal(q, pthread_self()) && !pthread_equal(q, d), "ids");
  CHECK(pthread_kill(q, 0) == 0, "signal 0");
  CHECK(pthread_kill(q, SIGUSR1) == 0, "a signal");
  CHECK(pthread_setname_np(q, "in the queue") == 0, "setname_np");
  CHECK(pthread_tryjoin_np(q, &result) == EBUSY, "tryjoin_np");
  until = ms_from_now(CLOCK_REALTIME, 60);
  CHECK(pthread_timedjoin_np(q, &result, &until) == ETIMEDOUT, "timedjoin_np");
  CHECK(pthread_detach(d) == 0, "detach");
  go = 1;
  CHECK(write(gate[1], "xx", 2) == 2, "write");
  CHECK(join_thread(q) == (void*)77, "result");
  for (int i = 0; i < 2; i++) join_thread(h[i]);
  CHECK(EVENTUALLY(ran == 2), "the detached thread runs");
  CHECK(told == 1, "the signal was handled %d times in its thread", (int)told);
}

static void* last_words(void* unused) {
  usleep(20000);
  if (++ran == 8) _exit(33);
  return unused;
}
static int main_leaves(void* unused) {
  ran = 0;
  for (int i = 0; i < 8; i++) pthread_detach(start_thread(last_words, NULL));
  pthread_exit(unused);
}

static int exits(void* unused) {
  (void)unused;
  NEED(pipe(gate) == 0);
  for (int i = 0; i < 8; i++) pthread_detach(start_thread(holder, NULL));
  exit(34);
}

int main(void) {
  check_begin();
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  NEED(sigaction(SIGUSR1, &action, NULL) == 0);
  with_holders();
  STAGE("main leaves while threads are in the queue");
  CHECK(exited_with(in_child(main_leaves, NULL), 33), "all eight threads run");
  STAGE("exit while threads are in the queue");
  CHECK(exited_with(in_child(exits, NULL), 34), "exit code");
  STAGE("many in the queue");
  pthread_t t[300];
  ran = 0;
  for (int i = 0; i < 300; i++) t[i] = start_thread(count, NULL);
  for (int i = 299; i >= 0; i--) join_thread(t[i]);
  CHECK(ran == 300, "%d of 300 ran", (int)ran);
  return check_end();
}
