/* A thread that asked for a processor (it has a kernel thread of its own then) and its signals: before and after. */
#include "../prog/check.h"

#include <sched.h>
#include <stdatomic.h>

static __thread volatile int hits;
static atomic_int ready, total;
static __thread char* own;
static __thread volatile int on_own;
static void handler(int unused) {
  char here;
  (void)unused;
  hits++;
  total++;
  on_own = own && &here >= own && &here < own + 65536;
}

static int is_blocked(int signal_number) {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, NULL, &mask);
  return sigismember(&mask, signal_number);
}

static void* bound(void* unused) {
  sigset_t usr2;
  int number;
  own = malloc(65536);
  stack_t stack = {.ss_sp = own, .ss_size = 65536}, now;
  CHECK(sigaltstack(&stack, NULL) == 0, "sigaltstack");
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &usr2, NULL);
  CHECK(pthread_kill(pthread_self(), SIGUSR2) == 0, "pthread_kill");
  cpu_set_t cpus;
  CHECK(sched_getaffinity(0, sizeof cpus, &cpus) == 0 && pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus) == 0,
        "affinity");
  CHECK(is_blocked(SIGUSR2) && !is_blocked(SIGUSR1) && !is_blocked(SIGTERM), "the mask");
  CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == own, "the alternate stack");
  CHECK(sigwait(&usr2, &number) == 0 && number == SIGUSR2, "what was pending");
  CHECK(hits == 0, "a blocked signal was delivered");
  ready = 1;
  while (hits < 3) pause_ms(1);
  CHECK(on_own, "the handler's stack");
  CHECK(raise(SIGUSR1) == 0 && hits == 4, "raise: %d", hits);
  ready = 2;
  CHECK(sigwait(&usr2, &number) == 0 && number == SIGUSR2, "sigwait");
  stack.ss_flags = SS_DISABLE;
  sigaltstack(&stack, NULL);
  free(own);
  return unused;
}

int main(void) {
  check_begin();
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  action.sa_flags = SA_ONSTACK;
  NEED(sigaction(SIGUSR1, &action, NULL) == 0);
  for (int round = 0; round < 5; round++) {
    ready = total = 0;
    pthread_t t = start_thread(bound, NULL);
    CHECK(EVENTUALLY(ready == 1), "ready");
    for (int i = 1; i <= 3; i++) {
      CHECK(pthread_kill(t, SIGUSR1) == 0 && EVENTUALLY(total >= i), "signal %d", i);
    }
    CHECK(EVENTUALLY(ready == 2), "ready");
    pause_ms(10);
    CHECK(pthread_kill(t, SIGUSR2) == 0, "pthread_kill");
    join_thread(t);
  }
  CHECK(hits == 0, "main ran a handler");
  return check_end();
}
