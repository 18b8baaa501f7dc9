/* A thread holds the lock of stderr while it sleeps in the kernel, unseen; others wait for the lock, 20 go on. */
#include "pin.h"

static void* hold_stderr(void* unused) {
  flockfile(stderr);
  before_pin();
  inline_sleep(300);
  after_pin();
  funlockfile(stderr);
  return unused;
}
static void* use_stderr(void* unused) {
  fprintf(stderr, "%s", ""); /* takes the lock, prints nothing */
  return unused;
}

int main(int argc, char** argv) {
  check_begin();
  start_tickers();
  STAGE("pin with stderr locked");
  pthread_t holder = start_thread(hold_stderr, NULL), waiter[3];
  pause_ms(50);
  for (int i = 0; i < 3; i++) waiter[i] = start_thread(use_stderr, NULL);
  join_thread(holder);
  for (int i = 0; i < 3; i++) join_thread(waiter[i]);
  linger(argc, argv);
  stop_tickers();
  return check_end();
}
