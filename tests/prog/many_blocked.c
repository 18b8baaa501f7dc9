/* 2,000 threads asleep at once, in reads, condition variables, semaphores, polls, sleeps and joins; all come back. */
#include "check.h"

#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>

enum { N = 2000 };
static int gate[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, held = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static sem_t sem;
static int open_gate;
static atomic_int started;
static __thread int mark;

static void* inner(void* argument) {
  char c;
  CHECK(read(gate[0], &c, 1) == 0, "the gate");
  return argument;
}

static void* sleeper(void* argument) {
  long id = (long)argument;
  struct pollfd f = {gate[0], POLLIN, 0};
  char c;
  mark = (int)id;
  started++;
  switch (id % 8) {
    case 0:
      CHECK(read(gate[0], &c, 1) == 0, "read");
      break;
    case 1:
      pthread_mutex_lock(&lock);
      while (!open_gate) pthread_cond_wait(&cond, &lock);
      pthread_mutex_unlock(&lock);
      break;
    case 2:
      CHECK(sem_wait(&sem) == 0, "sem_wait");
      break;
    case 3:
      CHECK(poll(&f, 1, -1) == 1 && (f.revents & POLLHUP), "poll");
      break;
    case 4:
      pause_ms(1000);
      break;
    case 5:
      CHECK(pthread_mutex_lock(&held) == 0 && pthread_mutex_unlock(&held) == 0, "mutex");
      break;
    case 6:
      CHECK(pthread_rwlock_rdlock(&rwlock) == 0 && pthread_rwlock_unlock(&rwlock) == 0, "rwlock");
      break;
    case 7:
      CHECK(join_thread(start_thread(inner, argument)) == argument, "join");
      break;
  }
  CHECK(mark == (int)id, "the thread-local value of thread %ld is %d", id, mark);
  return (void*)(id * 3);
}

int main(void) {
  check_begin();
  static pthread_t t[N];
  pthread_attr_t attr;
  NEED(pipe(gate) == 0 && sem_init(&sem, 0, 0) == 0);
  pthread_mutex_lock(&held);
  pthread_rwlock_wrlock(&rwlock);
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 128 * 1024);
  STAGE("creation");
  for (long i = 0; i < N; i++) NEED(pthread_create(&t[i], i % 2 ? &attr : NULL, sleeper, (void*)i) == 0);
  CHECK(EVENTUALLY(started == N), "%d of %d threads run", (int)started, N);
  pause_ms(200);
  STAGE("all come back");
  close(gate[1]);
  pthread_mutex_unlock(&held);
  pthread_rwlock_unlock(&rwlock);
  pthread_mutex_lock(&lock);
  open_gate = 1;
  pthread_cond_broadcast(&cond);
  pthread_mutex_unlock(&lock);
  for (int i = 2; i < N; i += 8) sem_post(&sem);
  for (long i = 0; i < N; i++) CHECK(join_thread(t[i]) == (void*)(i * 3), "result of thread %ld", i);
  return check_end();
}
