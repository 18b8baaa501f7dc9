/* pthread_kill: the handler runs in the target thread, whatever the target does; signal 0; threads that ended. */
#include "check.h"

#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/syscall.h>

static __thread volatile int hits;
static __thread volatile pthread_t ran_in;
static __thread char* volatile stack_of_handler;
static atomic_int total;

static void handler(int signal_number) {
  int saved = errno;
  char here;
  CHECK(signal_number == SIGUSR1, "signal %d", signal_number);
  hits++;
  ran_in = pthread_self();
  stack_of_handler = &here;
  total++;
  errno = saved;
}

enum way { SLEEPS, READS, WAITS, POLLS, SPINS, LOCKS, CONDS, WAYS };
static const char* const way_name[WAYS] = {"nanosleep", "read",  "sem_wait",          "poll",
                                           "spin",      "mutex", "condition variable"};
struct target {
  enum way way;
  int fds[2];
  sem_t sem;
  pthread_mutex_t lock;
  pthread_cond_t cond;
  atomic_int started, leave, hits;
};

static void* be_target(void* argument) {
  struct target* me = argument;
  char c, here;
  struct pollfd p = {me->fds[0], POLLIN, 0};
  me->started = 1;
  while (!me->leave) {
    switch (me->way) {
      case SLEEPS:
        usleep(200000);
        break;
      case READS:
        CHECK(read(me->fds[0], &c, 1) == 1 || errno == EINTR, "read: errno %d", errno);
        break;
      case WAITS:
        CHECK(sem_wait(&me->sem) == 0 || errno == EINTR, "sem_wait: errno %d", errno);
        break;
      case POLLS:
        CHECK(poll(&p, 1, 200) >= 0 || errno == EINTR, "poll: errno %d", errno);
        break;
      case SPINS:
        break;
      case LOCKS:
        CHECK(pthread_mutex_lock(&me->lock) == 0 && pthread_mutex_unlock(&me->lock) == 0, "mutex");
        break;
      case CONDS:
        pthread_mutex_lock(&me->lock);
        struct timespec until = ms_from_now(CLOCK_REALTIME, 200);
        int r = me->leave ? 0 : pthread_cond_timedwait(&me->cond, &me->lock, &until);
        CHECK(r == 0 || r == ETIMEDOUT, "timedwait: %d", r);
        pthread_mutex_unlock(&me->lock);
        break;
      default:
        break;
    }
    me->hits = hits;
  }
  me->hits = hits;
  if (hits > 0) {
    CHECK(pthread_equal(ran_in, pthread_self()), "pthread_self in the handler");
    long distance = &here - stack_of_handler;
    CHECK(distance > -200000 && distance < 200000, "the handler ran on another stack, %ld bytes away",
          distance);
  }
  return NULL;
}

static void kill_in(enum way way) {
  STAGE(way_name[way]);
  struct target me = {.way = way};
  NEED(pipe(me.fds) == 0);
  sem_init(&me.sem, 0, 0);
  pthread_mutex_init(&me.lock, NULL);
  pthread_cond_init(&me.cond, NULL);
  if (way == LOCKS) pthread_mutex_lock(&me.lock);
  total = 0;
  hits = 0;
  pthread_t t = start_thread(be_target, &me);
  CHECK(EVENTUALLY(me.started), "the target starts");
  for (int i = 1; i <= 5; i++) {
    pause_ms(5);
    CHECK(pthread_kill(t, SIGUSR1) == 0, "pthread_kill");
    /* a mutex is not left for a handler, but the handler runs at once */
    CHECK(EVENTUALLY(total == i), "%d signals, handler ran %d times", i, (int)total);
  }
  me.leave = 1;
  if (way == LOCKS) pthread_mutex_unlock(&me.lock);
  CHECK(write(me.fds[1], "x", 1) == 1, "write");
  sem_post(&me.sem);
  pthread_mutex_lock(&me.lock);
  pthread_cond_broadcast(&me.cond);
  pthread_mutex_unlock(&me.lock);
  join_thread(t);
  CHECK(me.hits == 5 && hits == 0, "the handler ran %d times in the target, %d times in main", (int)me.hits,
        hits);
  close(me.fds[0]);
  close(me.fds[1]);
}

static void* kill_yourself(void* unused) {
  (void)unused;
  for (int i = 1; i <= 3; i++) {
    CHECK(i % 2 ? pthread_kill(pthread_self(), SIGUSR1) == 0 : raise(SIGUSR1) == 0, "signal to myself");
    CHECK(hits == i, "the handler has not run when the call returns");
  }
  return NULL;
}

static void* kill_main(void* argument) {
  CHECK(pthread_kill(*(pthread_t*)argument, SIGUSR1) == 0, "pthread_kill of main");
  return NULL;
}

static void* end_at_once(void* argument) { return argument; }

int main(void) {
  check_begin();
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  NEED(sigaction(SIGUSR1, &action, NULL) == 0);
  for (int way = 0; way < WAYS; way++) kill_in((enum way)way);
  STAGE("signals to myself");
  join_thread(start_thread(kill_yourself, NULL));
  kill_yourself(NULL);
  STAGE("signal to main");
  hits = 0;
  pthread_t self = pthread_self(), t = start_thread(kill_main, &self);
  join_thread(t);
  CHECK(EVENTUALLY(hits == 1) && pthread_equal(ran_in, self), "main's handler ran %d times", hits);
  STAGE("signal 0 and errors");
  struct target idle = {.way = SPINS};
  t = start_thread(be_target, &idle);
  CHECK(pthread_kill(t, 0) == 0, "signal 0");
  CHECK(pthread_kill(t, 65) == EINVAL && pthread_kill(t, -1) == EINVAL, "no such signal");
  idle.leave = 1;
  join_thread(t);
  CHECK(idle.hits == 0, "signal 0 ran a handler");
  t = start_thread(end_at_once, NULL);
  pause_ms(30);
  CHECK(pthread_kill(t, 0) == 0 && pthread_kill(t, SIGUSR1) == 0,
        "a thread that ended and is not joined yet");
  join_thread(t);
  return check_end();
}
