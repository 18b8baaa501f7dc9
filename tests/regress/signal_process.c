/*
 * Signals to the process that main blocks and one thread takes, whatever that thread does; and those that nobody takes for
 * the moment: they wait, with all that they carry, for the next one, who may be main.
 */
#include "../prog/check.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/select.h>

static atomic_int total, in_main, step, stop;
static pthread_t initial, taker;
static int null_pipe[2];
static void handler(int unused) {
  (void)unused;
  if (pthread_equal(pthread_self(), initial)) in_main++;
  CHECK(pthread_equal(pthread_self(), taker), "the handler ran in the wrong thread");
  total++;
}

static sigset_t one(int signal_number) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal_number);
  return set;
}

static void* other(void* unused) {
  while (!stop) pause_ms(1);
  return unused;
}

enum way { SPINS, SLEEPS, READS, SUSPENDS, PAUSES, PPOLLS, PSELECTS, WAYS };
static const char* const way_name[WAYS] = {"spin", "nanosleep", "read", "sigsuspend", "pause", "ppoll", "pselect"};
static void* takes(void* argument) {
  enum way way = (enum way)(long)argument;
  taker = pthread_self();
  sigset_t usr1 = one(SIGUSR1), mask;
  struct timespec limit = ms_span(20000);
  char c;
  pthread_sigmask(SIG_BLOCK, NULL, &mask);
  sigdelset(&mask, SIGUSR1);
  if (way <= READS || way == PAUSES) pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
  step = 1;
  while (total < 5) {
    switch (way) {
      case SPINS:
        break;
      case SLEEPS:
        usleep(100000);
        break;
      case READS:
        CHECK(read(null_pipe[0], &c, 1) == -1 && errno == EINTR, "read: errno %d", errno);
        break;
      case SUSPENDS:
        CHECK(sigsuspend(&mask) == -1 && errno == EINTR, "sigsuspend: errno %d", errno);
        break;
      case PAUSES: {
        struct timespec nap = ms_span(1); /* pause alone is a race */
        nanosleep(&nap, NULL);
        if (total < 5 && total % 2) break;
        alarm(25);
        if (total == 0) CHECK(pause() == -1 && errno == EINTR, "pause: errno %d", errno);
        break;
      }
      case PPOLLS:
        CHECK(ppoll(NULL, 0, &limit, &mask) == -1 && errno == EINTR, "ppoll: errno %d", errno);
        break;
      case PSELECTS:
        CHECK(pselect(0, NULL, NULL, NULL, &limit, &mask) == -1 && errno == EINTR, "pselect: errno %d", errno);
        break;
      default:
        break;
    }
  }
  return NULL;
}

static void take_in(enum way way) {
  STAGE(way_name[way]);
  total = step = stop = 0;
  pthread_t others[5], t;
  for (int i = 0; i < 5; i++) others[i] = start_thread(other, NULL);
  t = start_thread(takes, (void*)(long)way);
  CHECK(EVENTUALLY(step == 1), "the taker starts");
  for (int i = 1; i <= 5; i++) {
    pause_ms(way == PAUSES && i == 1 ? 50 : 5);
    CHECK(kill(getpid(), SIGUSR1) == 0, "kill");
    CHECK(EVENTUALLY(total == i), "%d signals, the handler ran %d times", i, (int)total);
  }
  join_thread(t);
  stop = 1;
  for (int i = 0; i < 5; i++) join_thread(others[i]);
}

/* A thread that takes a signal, and then not any more: it stays for main's sigwait, and is the sender's own. */
static void* takes_for_a_while(void* unused) {
  sigset_t usr1 = one(SIGUSR1);
  taker = pthread_self();
  for (int i = 0; i < 3; i++) {
    pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
    pause_ms(2);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    pause_ms(2);
  }
  step = 1;
  while (!stop) pause_ms(1);
  return unused;
}
static void left_to_main(void) {
  STAGE("left to main");
  sigset_t usr1 = one(SIGUSR1), pending;
  struct timespec limit = ms_span(15000);
  siginfo_t info;
  step = stop = 0;
  pthread_t t = start_thread(takes_for_a_while, NULL);
  CHECK(EVENTUALLY(step == 1), "the thread starts");
  for (int i = 0; i < 3; i++) {
    pid_t child = fork();
    if (child == 0) _exit(kill(getppid(), SIGUSR1) != 0);
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    CHECK(EVENTUALLY(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1)), "it is not pending");
    memset(&info, 0, sizeof info);
    CHECK(sigtimedwait(&usr1, &info, &limit) == SIGUSR1, "sigtimedwait: errno %d", errno);
    CHECK(info.si_code == SI_USER && info.si_pid == child, "code %d, from %d instead of %d", info.si_code,
          (int)info.si_pid, (int)child);
  }
  stop = 1;
  join_thread(t);
}

/* alarm: nobody sends it. A thread unblocks it only after it has come. */
static void* unblocks_late(void* unused) {
  sigset_t pending, usr2 = one(SIGUSR2);
  taker = pthread_self();
  CHECK(EVENTUALLY(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR2)), "it is not pending");
  pthread_sigmask(SIG_UNBLOCK, &usr2, NULL);
  CHECK(EVENTUALLY(total == 1), "the handler ran %d times", (int)total);
  return unused;
}
static void late(void) {
  STAGE("unblocked late");
  total = 0;
  signal(SIGUSR2, handler);
  CHECK(kill(getpid(), SIGUSR2) == 0, "kill");
  join_thread(start_thread(unblocks_late, NULL));
}

/* The default action ends the process if any thread lets the signal in. */
static void* lets_in(void* unused) {
  sigset_t term = one(SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &term, NULL);
  for (;;) pause_ms(10);
  return unused;
}
static int dies(void* unused) {
  (void)unused;
  start_thread(lets_in, NULL);
  pause_ms(20);
  kill(getpid(), SIGTERM);
  pause_ms(15000);
  return 3;
}

/* main has ended by pthread_exit. */
static void* after_main(void* unused) {
  sigset_t usr1 = one(SIGUSR1);
  taker = pthread_self();
  total = 0;
  pause_ms(20);
  pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
  kill(getpid(), SIGUSR1);
  CHECK(EVENTUALLY(total == 1), "the handler ran %d times", (int)total);
  _exit(check_findings != 0);
  return unused;
}
static int without_main(void* unused) {
  (void)unused;
  start_thread(after_main, NULL);
  pthread_exit(NULL);
}

int main(void) {
  check_begin();
  initial = pthread_self();
  NEED(pipe(null_pipe) == 0);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  NEED(sigaction(SIGUSR1, &action, NULL) == 0);
  sigset_t all;
  sigfillset(&all);
  sigdelset(&all, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &all, NULL);
  for (int way = 0; way < WAYS; way++) take_in((enum way)way);
  left_to_main();
  late();
  STAGE("death");
  int status = in_child(dies, NULL);
  CHECK(killed_by(status, SIGTERM), "status %#x", status);
  STAGE("without main");
  CHECK(exited_with(in_child(without_main, NULL), 0), "the child");
  CHECK(in_main == 0, "main ran the handler");
  return check_end();
}
