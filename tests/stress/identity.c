/*
 * Who a thread is, looked at again and again between calls that block in every way, so that it moves between kernel
 * threads: addresses and values of thread-local variables, errno, pthread_self, ids, names, stack, FP mode, mask.
 */
// run: modes=default,carriers1
// cflags: -lm -frounding-math
#include "stress.h"

#include <fenv.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/select.h>

enum { N = 48 };
static __thread long value = -1;
static __thread unsigned char area[300];
static __thread long* self_pointer;
static pthread_key_t key;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static sem_t sem;
static atomic_long moves;

struct me {
  long id;
  pthread_t self;
  pid_t tid;
  int* error_address;
  long* value_address;
  int rounding, pair[2], ep;
  char name[16];
  void* stack;
  size_t stack_size;
};

static void* nothing(void* argument) { return argument; }

static void block(struct me* m, unsigned how) {
  char c = 'x';
  struct pollfd f = {m->pair[0], POLLIN, 0};
  struct timeval tv = {0, 300};
  struct timespec until;
  struct epoll_event event;
  switch (how % 13) {
    case 0:
      usleep(200);
      break;
    case 1:
      sched_yield();
      break;
    case 2:
      poll(NULL, 0, 1);
      break;
    case 3:
      select(0, NULL, NULL, NULL, &tv);
      break;
    case 4:
      pthread_mutex_lock(&lock);
      usleep(20);
      pthread_mutex_unlock(&lock);
      break;
    case 5:
      while (sem_wait(&sem) != 0) {
      }
      sched_yield();
      sem_post(&sem);
      break;
    case 6:
      CHECK(write(m->pair[1], &c, 1) == 1 && read(m->pair[0], &c, 1) == 1, "socket");
      break;
    case 7:
      pthread_rwlock_rdlock(&rwlock);
      sched_yield();
      pthread_rwlock_unlock(&rwlock);
      break;
    case 8:
      pthread_rwlock_wrlock(&rwlock);
      pthread_rwlock_unlock(&rwlock);
      break;
    case 9:
      pthread_mutex_lock(&lock);
      until = ms_from_now(CLOCK_REALTIME, 1);
      pthread_cond_timedwait(&cond, &lock, &until);
      pthread_mutex_unlock(&lock);
      break;
    case 10:
      CHECK(join_thread(start_thread(nothing, m)) == m, "join");
      break;
    case 11:
      CHECK(send(m->pair[1], &c, 1, 0) == 1 && poll(&f, 1, -1) == 1 && recv(m->pair[0], &c, 1, 0) == 1,
            "poll");
      break;
    case 12:
      epoll_wait(m->ep, &event, 1, 1);
      break; /* a time-out is no failure */
  }
}

/* Not inlined: a compiler may keep addresses of thread-local variables within one function, as it does in `live`. */
__attribute__((noinline)) static void examine(const struct me* m) {
  char name[16];
  char local;
  CHECK(value == m->id && &value == m->value_address && *self_pointer == m->id, "thread %ld: value %ld",
        m->id, value);
  for (int i = 0; i < 300; i += 37) CHECK(area[i] == (unsigned char)m->id, "thread %ld: area", m->id);
  CHECK(&errno == m->error_address, "thread %ld: errno moved", m->id);
  CHECK(pthread_equal(m->self, pthread_self()), "thread %ld: pthread_self", m->id);
  CHECK(gettid() == m->tid, "thread %ld: gettid %d, was %d", m->id, (int)gettid(), (int)m->tid);
  CHECK(pthread_getspecific(key) == m, "thread %ld: specific value", m->id);
  CHECK(pthread_getname_np(pthread_self(), name, sizeof name) == 0 && !strcmp(name, m->name),
        "thread %ld is called %s", m->id, name);
  CHECK(fegetround() == m->rounding, "thread %ld: rounding mode %d", m->id, fegetround());
  CHECK(&local > (char*)m->stack && &local < (char*)m->stack + m->stack_size,
        "thread %ld runs on another stack", m->id);
}

static void* live(void* argument) {
  static const int roundings[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  struct me m = {.id = (long)argument,
                 .self = pthread_self(),
                 .tid = gettid(),
                 .error_address = &errno,
                 .value_address = &value};
  unsigned random = (unsigned)m.id * 77 + 1;
  pthread_attr_t attr;
  pthread_getattr_np(m.self, &attr);
  pthread_attr_getstack(&attr, &m.stack, &m.stack_size);
  pthread_attr_destroy(&attr);
  value = m.id;
  self_pointer = &value;
  memset(area, (int)m.id, sizeof area);
  snprintf(m.name, sizeof m.name, "live %ld", m.id);
  pthread_setname_np(m.self, m.name);
  pthread_setspecific(key, &m);
  m.rounding = roundings[m.id % 4];
  fesetround(m.rounding);
  stream_pair(m.pair);
  m.ep = epoll_create1(0);
  long* address = &value;
  for (int round = 0; round < scaled(400); round++) {
    errno = 5000 + (int)m.id;
    block(&m, next_random(&random));
    CHECK(errno == 5000 + (int)m.id, "thread %ld: errno %d after calls without failure", m.id, errno);
    CHECK(*address == value && address == &value, "thread %ld: a kept address is not mine any more", m.id);
    examine(&m);
    /* fail, give the processor away, look */
    ssize_t r = read(-1, &random, 1);
    if (round % 3 == 0) sched_yield();
    CHECK(r == -1 && errno == EBADF, "thread %ld: errno %d", m.id, errno);
    moves++;
  }
  close(m.pair[0]);
  close(m.pair[1]);
  close(m.ep);
  return argument;
}

int main(void) {
  stress_begin();
  STAGE("identity");
  pthread_t t[N];
  sem_init(&sem, 0, 3);
  pthread_key_create(&key, NULL);
  for (long i = 0; i < N; i++) t[i] = start_thread(live, (void*)i);
  for (long i = 0; i < N; i++) CHECK(join_thread(t[i]) == (void*)i, "result of thread %ld", i);
  CHECK(moves == (long)N * scaled(400) && value == -1, "%ld rounds, main's value %ld", (long)moves, value);
  return check_end();
}
