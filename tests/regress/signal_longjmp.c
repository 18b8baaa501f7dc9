/* siglongjmp out of a handler in a thread: the thread's mask is that of sigsetjmp, also in a forked child. */
#include "../prog/check.h"

#include <setjmp.h>

static __thread sigjmp_buf back;
static __thread volatile int hits;
static void leave(int signal_number) {
  (void)signal_number;
  hits++;
  siglongjmp(back, 1);
}

static int is_blocked(int signal_number) {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, NULL, &mask);
  return sigismember(&mask, signal_number);
}
static void change(int how, int signal_number) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, signal_number);
  pthread_sigmask(how, &mask, NULL);
}

static int jumps(void* unused) {
  (void)unused;
  hits = 0;
  for (int i = 1; i <= 5; i++) {
    if (sigsetjmp(back, 1) == 0) raise(SIGUSR1);
    CHECK(hits == i, "the handler ran %d times, want %d", hits, i);
    CHECK(!is_blocked(SIGUSR1) && !is_blocked(SIGHUP), "the handler's mask stayed");
    pause_ms(1);
  }
  /* what was pending comes with the jump */
  sigjmp_buf open;
  volatile int jumped = 0;
  if (sigsetjmp(open, 1) == 0) {
    change(SIG_BLOCK, SIGUSR2);
    raise(SIGUSR2);
    CHECK(hits == 5, "a blocked signal was delivered");
    if (sigsetjmp(back, 0) == 0) {
      jumped = 1;
      siglongjmp(open, 1);
    }
  }
  CHECK(jumped && hits == 6, "the handler ran %d times, want 6", hits);
  change(SIG_UNBLOCK, SIGUSR2); /* that jump left the handler without a mask to restore */
  /* without the mask the handler's stays */
  if (sigsetjmp(back, 0) == 0) raise(SIGUSR1);
  CHECK(hits == 7 && is_blocked(SIGUSR1) && is_blocked(SIGHUP), "sigsetjmp without the mask");
  change(SIG_UNBLOCK, SIGUSR1);
  change(SIG_UNBLOCK, SIGHUP);
  return check_findings != 0;
}

static void* thread(void* with_child) {
  jumps(NULL);
  if (with_child) {
    if (sigsetjmp(back, 1) == 0) {
      CHECK(exited_with(in_child(jumps, NULL), 0), "the child");
    } else {
      CHECK(0, "a jump out of the blue");
    }
  }
  return NULL;
}

int main(void) {
  check_begin();
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = leave;
  sigaddset(&action.sa_mask, SIGHUP);
  NEED(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGUSR2, &action, NULL) == 0);
  jumps(NULL);
  pthread_t t[8];
  for (long i = 0; i < 8; i++) t[i] = start_thread(thread, i % 4 == 0 ? &back : NULL);
  for (int i = 0; i < 8; i++) join_thread(t[i]);
  return check_end();
}
