/*
 * getcontext, setcontext and swapcontext keep the mask of the thread that they are called in: contexts that one thread made and
 * another runs, or the initial thread, and handlers that leave by setcontext.
 */
#include "../prog/check.h"

#include <sched.h>
#include <stdatomic.h>
#include <ucontext.h>

enum { ROUNDS = 50 };
static ucontext_t made, caller_context;
static char stack[256 << 10];
static atomic_long handled, strange;
static __thread int known; /* set in threads of the program alone */

static void on_signal(int unused) {
  (void)unused;
  if (!known) strange++;
  handled++;
}
static int blocks(int signal_number) {
  sigset_t set;
  pthread_sigmask(SIG_SETMASK, NULL, &set);
  return sigismember(&set, signal_number);
}
static void change(int how, int signal_number) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal_number);
  pthread_sigmask(how, &set, NULL);
}

/* Runs in whichever thread swaps to it. */
static void body(void) {
  for (;;) {
    CHECK(blocks(SIGUSR1) && !blocks(SIGUSR2), "in the context: USR1 %d, USR2 %d", blocks(SIGUSR1), blocks(SIGUSR2));
    usleep(100);
    swapcontext(&made, &caller_context);
  }
}
static void make(void) { /* in a thread that blocks SIGUSR1 */
  change(SIG_BLOCK, SIGUSR1);
  NEED(getcontext(&made) == 0);
  made.uc_stack.ss_sp = stack;
  made.uc_stack.ss_size = sizeof stack;
  made.uc_link = NULL;
  makecontext(&made, body, 0);
  change(SIG_UNBLOCK, SIGUSR1);
}
static void* maker(void* unused) {
  known = 1;
  make();
  return unused;
}
static void* visitor(void* unused) {
  known = 1;
  change(SIG_BLOCK, SIGUSR2);
  for (int i = 0; i < ROUNDS; i++) {
    CHECK(!blocks(SIGUSR1) && blocks(SIGUSR2), "before: USR1 %d, USR2 %d", blocks(SIGUSR1), blocks(SIGUSR2));
    swapcontext(&caller_context, &made);
    CHECK(!blocks(SIGUSR1) && blocks(SIGUSR2), "after: USR1 %d, USR2 %d", blocks(SIGUSR1), blocks(SIGUSR2));
    if (i % 10 == 0) {
      long before = handled;
      kill(getpid(), SIGUSR1);
      CHECK(EVENTUALLY(handled > before), "a signal of the process is not handled");
    }
  }
  change(SIG_UNBLOCK, SIGUSR2);
  return unused;
}

/* A context that is left by setcontext, twice, in the thread that saved it. */
static void* again(void* unused) {
  known = 1;
  ucontext_t here;
  volatile int times = 0;
  change(SIG_BLOCK, SIGUSR2);
  NEED(getcontext(&here) == 0);
  CHECK(blocks(SIGUSR2) && !blocks(SIGUSR1), "time %d: USR1 %d, USR2 %d", times, blocks(SIGUSR1), blocks(SIGUSR2));
  if (++times < 3) {
    change(SIG_UNBLOCK, SIGUSR2);
    change(SIG_BLOCK, SIGUSR1);
    usleep(100);
    setcontext(&here);
  }
  CHECK(times == 3, "%d times", times);
  change(SIG_UNBLOCK, SIGUSR2);
  return unused;
}

/* A fault whose handler goes on in another context. */
static __thread ucontext_t safe;
static void on_fault(int unused) {
  (void)unused;
  setcontext(&safe);
}
static void* faulting(void* unused) {
  known = 1;
  volatile int faults = 0;
  NEED(getcontext(&safe) == 0);
  CHECK(!blocks(SIGSEGV) && !blocks(SIGUSR1), "after fault %d: SEGV %d, USR1 %d", faults, blocks(SIGSEGV), blocks(SIGUSR1));
  usleep(100);
  if (faults++ < 5) *(volatile int*)wild_address() = 1;
  CHECK(faults == 6, "%d faults", faults);
  return unused;
}

/* An ended context goes on in the one that it is linked to. */
static void* linked(void* unused) {
  static __thread ucontext_t back, one;
  known = 1;
  char* own = malloc(64 << 10);
  volatile int round = 0;
  change(SIG_BLOCK, SIGUSR2);
  for (; round < 5; round++) {
    getcontext(&one);
    one.uc_stack.ss_sp = own;
    one.uc_stack.ss_size = 64 << 10;
    one.uc_link = &back;
    makecontext(&one, (void (*)(void))sched_yield, 0);
    swapcontext(&back, &one);
    CHECK(blocks(SIGUSR2) && !blocks(SIGUSR1), "linked: USR1 %d, USR2 %d", blocks(SIGUSR1), blocks(SIGUSR2));
    usleep(50);
  }
  change(SIG_UNBLOCK, SIGUSR2);
  free(own);
  return unused;
}

int main(void) {
  check_begin();
  known = 1;
  signal(SIGUSR1, on_signal);
  signal(SIGSEGV, on_fault);
  for (int i = 0; i < 2; i++) {
    STAGE("made by a thread, run by another");
    join_thread(start_thread(maker, NULL));
    join_thread(start_thread(visitor, NULL));
    STAGE("made by a thread, run by main");
    visitor(NULL);
    STAGE("made by main, run by a thread");
    make();
    join_thread(start_thread(visitor, NULL));
    STAGE("setcontext");
    join_thread(start_thread(again, NULL));
    again(NULL);
    change(SIG_UNBLOCK, SIGUSR1);
    STAGE("out of a handler");
    join_thread(start_thread(faulting, NULL));
    faulting(NULL);
    STAGE("linked");
    join_thread(start_thread(linked, NULL));
    linked(NULL);
  }
  CHECK(strange == 0, "%ld handlers ran in threads that are not the program's", (long)strange);
  return check_end();
}
