/*
 * Timers of CPU time, as profilers use them: SIGPROF and SIGVTALRM arrive while threads compute, in a thread that takes them, and
 * nothing that runs meanwhile is disturbed; per-process timers with a signal do the same.
 */
#include "check.h"

#include <stdatomic.h>
#include <sys/time.h>

static atomic_long prof, virt, timer_ticks, in_wrong_thread;
static __thread int takes = 1;
static void on_prof(int unused) {
  (void)unused;
  int saved = errno;
  if (!takes) in_wrong_thread++;
  prof++;
  errno = saved;
}
static void on_virtual(int unused) {
  (void)unused;
  virt++;
}
static void on_timer(int unused) {
  (void)unused;
  timer_ticks++;
}
static unsigned long crunch(unsigned long v, long n) {
  for (long i = 0; i < n; i++) v = v * 6364136223846793005ul + 1442695040888963407ul;
  return v;
}
static void* compute(void* argument) {
  unsigned long want = crunch(7, 200000);
  double end = now() + 15;
  if (argument) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPROF);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    takes = 0;
  }
  errno = 77;
  for (int i = 0; i < 50 || ((prof < 20 || virt < 10 || timer_ticks < 10) && now() < end); i++)
    CHECK(crunch(7, 200000) == want && errno == 77, "a computation was disturbed, errno %d", errno);
  return NULL;
}
static void* wait_too(void* unused) {
  for (int i = 0; i < 30; i++) {
    double begin = now();
    pause_ms(2);
    CHECK(now() - begin >= 0.00199, "a sleep was too short");
  }
  return unused;
}

static void run(int main_blocks) {
  pthread_t t[6];
  sigset_t set;
  prof = virt = timer_ticks = 0;
  for (long i = 0; i < 4; i++) t[i] = start_thread(compute, (void*)(long)(i == 3));
  t[4] = start_thread(wait_too, NULL);
  sigemptyset(&set);
  sigaddset(&set, SIGPROF);
  sigaddset(&set, SIGVTALRM);
  sigaddset(&set, SIGRTMIN);
  if (main_blocks) pthread_sigmask(SIG_BLOCK, &set, NULL);
  for (int i = 0; i < 5; i++) join_thread(t[i]);
  CHECK(prof >= 20 && virt >= 10 && timer_ticks >= 10, "%ld SIGPROF, %ld SIGVTALRM, %ld of a timer", (long)prof, (long)virt,
        (long)timer_ticks);
  CHECK(in_wrong_thread == 0, "%ld handlers in a thread that blocks the signal", (long)in_wrong_thread);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

int main(void) {
  check_begin();
  struct sigaction set;
  struct itimerval each = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
  struct sigevent event;
  struct itimerspec every = {{0, 1000000}, {0, 1000000}};
  timer_t timer;
  memset(&set, 0, sizeof set);
  set.sa_flags = SA_RESTART;
  set.sa_handler = on_prof;
  sigaction(SIGPROF, &set, NULL);
  set.sa_handler = on_virtual;
  sigaction(SIGVTALRM, &set, NULL);
  set.sa_handler = on_timer;
  sigaction(SIGRTMIN, &set, NULL);
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGRTMIN;
  NEED(setitimer(ITIMER_PROF, &each, NULL) == 0 && setitimer(ITIMER_VIRTUAL, &each, NULL) == 0);
  NEED(timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) == 0 && timer_settime(timer, 0, &every, NULL) == 0);
  STAGE("main takes them");
  run(0);
  STAGE("only threads take them");
  run(1);
  setitimer(ITIMER_PROF, &off, NULL);
  setitimer(ITIMER_VIRTUAL, &off, NULL);
  timer_delete(timer);
  return check_end();
}
