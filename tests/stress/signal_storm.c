/*
 * Signals to threads in all kinds of blocking calls, at a high rate: handlers run in their thread, no call fails but
 * with EINTR, no data are lost, and a thread that ends under fire ends.
 */
// run: modes=default,carriers1
#include "stress.h"

#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>

enum { TARGETS = 24 };
static __thread long my_id = -1;
static atomic_long handled[TARGETS], strangers, interrupted;
static atomic_int ready, ended;
static long sent[TARGETS];
static sem_t sem;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static long protected_value;

static void handler(int unused) {
  int saved = errno;
  (void)unused;
  if (my_id < 0 || my_id >= TARGETS)
    strangers++;
  else
    handled[my_id]++;
  errno = saved;
}

struct target {
  long id;
  int pair[2];
  long received;
};

static void* writer(void* argument) {
  struct target* me = argument;
  unsigned random = (unsigned)me->id;
  unsigned char piece[4];
  for (long at = 0; at < scaled(800); at += 4) {
    fill_stream(piece, at, 4);
    ssize_t n;
    while ((n = write(me->pair[1], piece, 4)) == -1 && errno == EINTR) {
    }
    CHECK(n == 4, "write: %zd, errno %d", n, errno);
    if (at % 16 == 0) nap(&random, 300);
  }
  shutdown(me->pair[1], SHUT_WR);
  return NULL;
}

static void* target(void* argument) {
  struct target* me = argument;
  unsigned char b[16];
  unsigned random = (unsigned)me->id + 100;
  my_id = me->id;
  ready++;
  for (;;) {
    struct pollfd f = {me->pair[0], POLLIN, 0};
    struct timespec span = {0, 300000}, until;
    int r = 0;
    switch (next_random(&random) % 8) {
      case 0:
        r = nanosleep(&span, NULL);
        break;
      case 1:
        r = poll(&f, 1, 1);
        break;
      case 2:
        r = sem_wait(&sem);
        if (r == 0) sem_post(&sem);
        break;
      case 3: {
        CHECK(pthread_mutex_lock(&lock) == 0, "mutex");
        long v = protected_value;
        usleep(10);
        protected_value = v + 1;
        CHECK(pthread_mutex_unlock(&lock) == 0, "mutex");
        me->received += 1L << 32; /* counts the passages */
        break;
      }
      case 4: {
        pthread_mutex_lock(&lock);
        until = ms_from_now(CLOCK_REALTIME, 1);
        int t = pthread_cond_timedwait(&cond, &lock, &until);
        CHECK(t == 0 || t == ETIMEDOUT, "timedwait: %d", t);
        pthread_mutex_unlock(&lock);
        break;
      }
      default: {
        ssize_t n = me->id % 2 ? read(me->pair[0], b, sizeof b) : recv(me->pair[0], b, sizeof b, 0);
        if (n > 0) {
          CHECK(is_stream(b, me->received & 0xFFFFFFFF, (size_t)n), "wrong bytes at %ld",
                me->received & 0xFFFFFFFF);
          me->received += n;
        }
        if (n == 0) {
          ended++;
          return NULL;
        }
        r = n < 0 ? -1 : 0;
      }
    }
    if (r < 0) {
      CHECK(errno == EINTR, "errno %d", errno);
      interrupted++;
    }
  }
}

int main(void) {
  stress_begin();
  static struct target targets[TARGETS];
  pthread_t t[TARGETS], w[TARGETS];
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  NEED(sigaction(SIGUSR1, &action, NULL) == 0);
  action.sa_flags = SA_RESTART;
  NEED(sigaction(SIGUSR2, &action, NULL) == 0);
  sem_init(&sem, 0, 2);
  STAGE("storm");
  for (long i = 0; i < TARGETS; i++) {
    targets[i].id = i;
    if (i % 3)
      stream_pair(targets[i].pair);
    else
      tcp_pair(targets[i].pair);
    t[i] = start_thread(target, &targets[i]);
  }
  CHECK(EVENTUALLY(ready == TARGETS), "targets start");
  for (int i = 0; i < TARGETS; i++) w[i] = start_thread(writer, &targets[i]);
  unsigned random = 1;
  while (ended < TARGETS) { /* they are joined only later: their ids stay good */
    int i = (int)(next_random(&random) % TARGETS);
    int r = pthread_kill(t[i], next_random(&random) % 3 ? SIGUSR1 : SIGUSR2);
    CHECK(r == 0 || r == ESRCH, "pthread_kill: %d", r);
    sent[i]++;
    if (next_random(&random) % 4 == 0) usleep(50);
  }
  long passages = 0, total = 0;
  for (int i = 0; i < TARGETS; i++) {
    join_thread(w[i]);
    join_thread(t[i]);
    CHECK((targets[i].received & 0xFFFFFFFF) == scaled(800), "target %d received %ld bytes", i,
          targets[i].received & 0xFFFFFFFF);
    CHECK(handled[i] <= sent[i], "target %d: %ld signals, %ld handled", i, sent[i], (long)handled[i]);
    passages += targets[i].received >> 32;
    total += handled[i];
  }
  CHECK(protected_value == passages, "%ld passages of the mutex, %ld counted", passages, protected_value);
  CHECK(strangers == 0, "%ld signals were handled by a thread they were not sent to", (long)strangers);
  CHECK(total > 0 && interrupted > 0, "%ld handled, %ld calls interrupted", total, (long)interrupted);
  return check_end();
}
