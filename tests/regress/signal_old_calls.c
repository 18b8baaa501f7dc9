/* sighold, sigrelse, sigpause, sigblock, sigsetmask, gsignal, tgkill in threads. */
// cflags: -Wno-deprecated-declarations
#include "../prog/check.h"

#include <stdatomic.h>
#include <sys/syscall.h>

static __thread volatile int hits;
static void handler(int unused) {
  (void)unused;
  hits++;
}

static atomic_int tid, done;
static void* thread(void* unused) {
  CHECK(sighold(SIGUSR1) == 0, "sighold");
  CHECK(raise(SIGUSR1) == 0 && hits == 0, "held");
  CHECK(sigpause(SIGUSR1) == -1 && errno == EINTR && hits == 1, "sigpause: %d, errno %d", hits, errno);
  CHECK(raise(SIGUSR1) == 0 && hits == 1, "held again");
  CHECK(sigrelse(SIGUSR1) == 0 && hits == 2, "sigrelse");
  CHECK(sigblock(1 << (SIGUSR1 - 1)) == 0, "sigblock");
  CHECK(raise(SIGUSR1) == 0 && hits == 2, "blocked");
  CHECK(sigsetmask(0) == 1 << (SIGUSR1 - 1) && hits == 3, "sigsetmask");
  CHECK(raise(SIGUSR1) == 0 && hits == 4, "raise");
  CHECK(sighold(99) == -1 && errno == EINVAL && raise(99) == -1 && errno == EINVAL, "no such signal");
  CHECK(syscall(SYS_tgkill, getpid(), gettid(), SIGUSR1) == 0 && hits == 5, "tgkill by number");
  CHECK(tgkill(getpid(), gettid(), SIGUSR1) == 0 && hits == 6, "tgkill");
  tid = gettid();
  while (hits < 7) pause_ms(1);
  done = 1;
  return unused;
}

int main(void) {
  check_begin();
  signal(SIGUSR1, handler);
  pthread_t t = start_thread(thread, NULL);
  CHECK(EVENTUALLY(tid != 0), "the thread");
  CHECK(tgkill(getpid(), tid, SIGUSR1) == 0, "tgkill from main");
  CHECK(EVENTUALLY(done), "the handler");
  join_thread(t);
  CHECK(tgkill(getpid(), tid, SIGUSR1) == -1 && errno == ESRCH, "a thread that is gone");
  CHECK(hits == 0, "main ran the handler");
  return check_end();
}
