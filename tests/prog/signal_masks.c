/* Signal masks belong to threads: inherited at creation, kept across sleeps; a blocked signal stays pending. */
#include "check.h"

#include <sched.h>
#include <stdatomic.h>

static __thread volatile int hits[65];
static void handler(int signal_number) { hits[signal_number]++; }

static int is_blocked(int signal_number) {
  sigset_t mask;
  CHECK(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0, "pthread_sigmask");
  return sigismember(&mask, signal_number);
}

static void change(int how, int signal_number) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, signal_number);
  CHECK(pthread_sigmask(how, &mask, NULL) == 0, "pthread_sigmask");
}

/* Each thread has another mask, and keeps it while all of them sleep and run in turns. */
static const int numbers[] = {SIGUSR1, SIGUSR2, SIGHUP, SIGWINCH, SIGURG};
static void* own_mask(void* argument) {
  long id = (long)argument;
  CHECK(is_blocked(SIGCONT), "the creator's mask is not inherited");
  CHECK(!is_blocked(SIGUSR1), "SIGUSR1 is blocked although the creator has it not");
  for (int i = 0; i < COUNT_OF(numbers); i++)
    if (id >> i & 1) change(SIG_BLOCK, numbers[i]);
  for (int round = 0; round < 10; round++) {
    for (int i = 0; i < COUNT_OF(numbers); i++)
      CHECK(is_blocked(numbers[i]) == (id >> i & 1), "thread %ld: signal %d %d", id, numbers[i],
            is_blocked(numbers[i]));
    if (round % 2)
      pause_ms(1);
    else
      sched_yield();
  }
  return NULL;
}

struct target {
  atomic_int ready, unblock, done;
  int hits_before, hits_after, pending;
};
/* A blocked signal waits, once however often it was sent, and comes when it is unblocked. */
static void* hold_back(void* argument) {
  struct target* me = argument;
  sigset_t pending;
  change(SIG_BLOCK, SIGUSR1);
  me->ready = 1;
  while (!me->unblock) pause_ms(1);
  me->hits_before = hits[SIGUSR1];
  CHECK(sigpending(&pending) == 0, "sigpending");
  me->pending = sigismember(&pending, SIGUSR1);
  change(SIG_UNBLOCK, SIGUSR1);
  me->hits_after = hits[SIGUSR1]; /* delivered before pthread_sigmask returned */
  return NULL;
}
static void blocked(void) {
  STAGE("a blocked signal");
  struct target me;
  memset(&me, 0, sizeof me);
  pthread_t t = start_thread(hold_back, &me);
  CHECK(EVENTUALLY(me.ready), "the target is ready");
  for (int i = 0; i < 3; i++) CHECK(pthread_kill(t, SIGUSR1) == 0, "pthread_kill");
  pause_ms(30);
  me.unblock = 1;
  join_thread(t);
  CHECK(me.hits_before == 0 && me.hits_after == 1 && me.pending == 1, "before %d, after %d, pending %d",
        me.hits_before, me.hits_after, me.pending);
  CHECK(hits[SIGUSR1] == 0, "the signal came to main");
}

/* sa_mask and the signal itself are blocked while its handler runs, and free again afterwards, also after a sleep in it. */
static __thread volatile int depth, deepest, masked;
static void nested(int signal_number) {
  if (++depth > deepest) deepest = depth;
  if (signal_number == SIGUSR2) masked = is_blocked(SIGUSR2) && is_blocked(SIGHUP);
  pause_ms(5);
  depth--;
}
static void* run_nested(void* argument) {
  atomic_int* stop = argument;
  while (!*stop) pause_ms(1);
  CHECK(deepest == 1, "handlers nested %d deep", deepest);
  CHECK(masked, "the handler's mask");
  CHECK(!is_blocked(SIGUSR2) && !is_blocked(SIGHUP), "the handler's mask stayed");
  return NULL;
}
static void handler_masks(void) {
  STAGE("masks of handlers");
  struct sigaction action;
  atomic_int stop = 0;
  memset(&action, 0, sizeof action);
  action.sa_handler = nested;
  sigaddset(&action.sa_mask, SIGHUP);
  NEED(sigaction(SIGUSR2, &action, NULL) == 0);
  action.sa_handler = nested;
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGUSR2);
  NEED(sigaction(SIGHUP, &action, NULL) == 0);
  pthread_t t = start_thread(run_nested, &stop);
  for (int i = 0; i < 10; i++) {
    CHECK(pthread_kill(t, i % 2 ? SIGHUP : SIGUSR2) == 0, "pthread_kill");
    pause_ms(2);
  }
  pause_ms(30);
  stop = 1;
  join_thread(t);
}

/* A signal to the process goes to a thread that does not block it: here only main does not. */
static void* block_all(void* argument) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, NULL);
  while (!*(atomic_int*)argument) pause_ms(1);
  CHECK(hits[SIGHUP] == 0, "a blocked signal was delivered");
  return NULL;
}
static void to_process(void) {
  STAGE("a signal to the process");
  atomic_int stop = 0;
  pthread_t t[8];
  signal(SIGHUP, handler);
  for (int i = 0; i < 8; i++) t[i] = start_thread(block_all, &stop);
  pause_ms(20);
  for (int i = 1; i <= 3; i++) {
    CHECK(kill(getpid(), SIGHUP) == 0, "kill");
    CHECK(EVENTUALLY(hits[SIGHUP] == i), "%d signals, %d came to main", i, hits[SIGHUP]);
  }
  stop = 1;
  for (int i = 0; i < 8; i++) join_thread(t[i]);
}

int main(void) {
  check_begin();
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  NEED(sigaction(SIGUSR1, &action, NULL) == 0);
  STAGE("a mask for each thread");
  pthread_t t[32];
  change(SIG_BLOCK, SIGCONT);
  for (long i = 0; i < 32; i++) t[i] = start_thread(own_mask, (void*)i);
  for (int i = 0; i < 32; i++) join_thread(t[i]);
  CHECK(is_blocked(SIGCONT) && !is_blocked(SIGUSR1), "main's mask changed");
  change(SIG_UNBLOCK, SIGCONT);
  CHECK(pthread_sigmask(99, NULL, NULL) == 0, "no set: the first argument does not matter");
  sigset_t none;
  sigemptyset(&none);
  CHECK(pthread_sigmask(99, &none, NULL) == EINVAL, "pthread_sigmask with a bad first argument");
  blocked();
  handler_masks();
  to_process();
  return check_end();
}
