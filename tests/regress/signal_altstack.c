/* Handlers on alternate stacks of threads: they may wait there, be interrupted there, and know where they are. */
#include "../prog/check.h"

#include <stdatomic.h>
#include <ucontext.h>

enum { THREADS = 6 };
static __thread char* own;
static __thread volatile int hits, nested;
static const size_t size = 65536;

static int on_own(const void* p) { return (const char*)p >= own && (const char*)p < own + size; }

static void handler(int signal_number, siginfo_t* info, void* context) {
  char here[100];
  stack_t now;
  ucontext_t* uc = context;
  CHECK(own ? on_own(here) : !on_own(here), "signal %d on the wrong stack", signal_number);
  CHECK(sigaltstack(NULL, &now) == 0 && now.ss_flags == (own ? SS_ONSTACK : SS_DISABLE), "flags %d", now.ss_flags);
  if (own) {
    stack_t off = {.ss_flags = SS_DISABLE};
    CHECK(sigaltstack(&off, NULL) == -1 && errno == EPERM, "taken away while it is in use");
  }
  CHECK(info->si_signo == signal_number, "signal");
  CHECK(sigismember(&uc->uc_sigmask, SIGUSR1) == nested && !sigismember(&uc->uc_sigmask, SIGUSR2), "the mask to return to");
  memset(here, signal_number, sizeof here);
  hits++;
  if (signal_number == SIGUSR1) {
    pause_ms(3);
    nested = 1;
    raise(SIGUSR2);
    nested = 0;
    pause_ms(3);
  }
  for (int i = 0; i < 100; i++) CHECK(here[i] == signal_number, "somebody else wrote to my stack");
  CHECK(own ? on_own(here) : 1, "moved");
}

static atomic_int ready, stop;
static void* thread(void* with_stack) {
  if (with_stack) {
    own = malloc(size);
    stack_t stack = {.ss_sp = own, .ss_size = size};
    CHECK(sigaltstack(&stack, NULL) == 0, "sigaltstack: errno %d", errno);
  }
  stack_t small = {.ss_sp = &small, .ss_size = 100};
  CHECK(sigaltstack(&small, NULL) == -1 && errno == ENOMEM, "too small: errno %d", errno);
  raise(SIGUSR1);
  CHECK(hits == 2, "%d handlers", hits);
  ready++;
  for (long i = 0; !stop; i++)
    if (i % 1000 == 0) pause_ms(1);
  CHECK(hits == 2 + 2 * 5, "%d handlers", hits);
  stack_t now;
  CHECK(sigaltstack(NULL, &now) == 0, "sigaltstack");
  CHECK(with_stack ? now.ss_sp == own && now.ss_size == size && now.ss_flags == 0 : now.ss_flags == SS_DISABLE, "at the end");
  if (with_stack) {
    stack_t off = {.ss_flags = SS_DISABLE};
    CHECK(sigaltstack(&off, NULL) == 0, "sigaltstack");
    free(own);
  }
  return NULL;
}

int main(void) {
  check_begin();
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  NEED(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGUSR2, &action, NULL) == 0);
  pthread_t t[THREADS];
  for (long i = 0; i < THREADS; i++) t[i] = start_thread(thread, (void*)(i % 3));
  CHECK(EVENTUALLY(ready == THREADS), "%d threads", (int)ready);
  for (int round = 0; round < 5; round++) {
    for (int i = 0; i < THREADS; i++) CHECK(pthread_kill(t[i], SIGUSR1) == 0, "pthread_kill");
    pause_ms(60);
  }
  pause_ms(100);
  stop = 1;
  for (int i = 0; i < THREADS; i++) join_thread(t[i]);
  return check_end();
}
