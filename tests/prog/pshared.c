/* Process-shared semaphores, mutexes, condition variables and barriers between the threads of two processes. */
#include "check.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { THREADS = 6, ROUNDS = 150 };
static struct shared {
  sem_t ready, ping, pong;
  pthread_mutex_t lock, recursive;
  pthread_cond_t cond;
  pthread_barrier_t barrier;
  pthread_rwlock_t rwlock;
  long counter, deep, written;
  int turn;
  atomic_int serial;
} * s;

static void* work(void* argument) {
  int parent = argument != NULL;
  for (int i = 0; i < ROUNDS; i++) {
    CHECK(pthread_mutex_lock(&s->lock) == 0, "lock");
    long c = s->counter;
    if (i % 50 == 0) pause_ms(1);
    s->counter = c + 1;
    CHECK(pthread_mutex_unlock(&s->lock) == 0, "unlock");
    CHECK(pthread_mutex_lock(&s->recursive) == 0 && pthread_mutex_lock(&s->recursive) == 0, "recursive lock");
    c = s->deep;
    if (i % 50 == 25) pause_ms(1);
    s->deep = c + 1;
    CHECK(pthread_mutex_unlock(&s->recursive) == 0 && pthread_mutex_unlock(&s->recursive) == 0,
          "recursive unlock");
    CHECK(pthread_rwlock_wrlock(&s->rwlock) == 0, "wrlock");
    s->written++;
    CHECK(pthread_rwlock_unlock(&s->rwlock) == 0, "rwlock unlock");
  }
  pthread_mutex_lock(&s->lock);
  for (int i = 0; i < 20; i++) { /* the processes take turns; any thread of a process will do */
    while (s->turn % 2 != parent) pthread_cond_wait(&s->cond, &s->lock);
    s->turn++;
    pthread_cond_broadcast(&s->cond);
  }
  pthread_mutex_unlock(&s->lock);
  for (int i = 0; i < 10; i++) {
    int r = pthread_barrier_wait(&s->barrier);
    CHECK(r == 0 || r == PTHREAD_BARRIER_SERIAL_THREAD, "barrier_wait %d", r);
    s->serial += r == PTHREAD_BARRIER_SERIAL_THREAD;
  }
  for (int i = 0; i < 50; i++) {
    if (parent) {
      sem_post(&s->ping);
      sem_wait(&s->pong);
    } else {
      sem_wait(&s->ping);
      sem_post(&s->pong);
    }
  }
  return NULL;
}

static int both(void* argument) {
  pthread_t t[THREADS];
  for (int i = 0; i < THREADS; i++) t[i] = start_thread(work, argument);
  for (int i = 0; i < THREADS; i++) join_thread(t[i]);
  return check_findings != 0;
}
static void* child_process(void* unused) { return (void*)(long)in_child(both, unused); }

int main(void) {
  check_begin();
  s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  NEED(s != MAP_FAILED);
  pthread_mutexattr_t mutex_attr;
  pthread_condattr_t cond_attr;
  pthread_barrierattr_t barrier_attr;
  pthread_rwlockattr_t rw_attr;
  pthread_mutexattr_init(&mutex_attr);
  pthread_condattr_init(&cond_attr);
  pthread_barrierattr_init(&barrier_attr);
  pthread_rwlockattr_init(&rw_attr);
  NEED(pthread_mutexattr_setpshared(&mutex_attr, PTHREAD_PROCESS_SHARED) == 0);
  NEED(pthread_condattr_setpshared(&cond_attr, PTHREAD_PROCESS_SHARED) == 0);
  NEED(pthread_barrierattr_setpshared(&barrier_attr, PTHREAD_PROCESS_SHARED) == 0);
  NEED(pthread_rwlockattr_setpshared(&rw_attr, PTHREAD_PROCESS_SHARED) == 0);
  pthread_mutex_init(&s->lock, &mutex_attr);
  pthread_mutexattr_settype(&mutex_attr, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&s->recursive, &mutex_attr);
  pthread_cond_init(&s->cond, &cond_attr);
  pthread_barrier_init(&s->barrier, &barrier_attr, 2 * THREADS);
  pthread_rwlock_init(&s->rwlock, &rw_attr);
  NEED(sem_init(&s->ping, 1, 0) == 0 && sem_init(&s->pong, 1, 0) == 0);
  STAGE("two processes");
  pthread_t forker = start_thread(child_process, NULL);
  both(s);
  CHECK(exited_with((int)(long)join_thread(forker), 0), "the child process");
  CHECK(s->counter == 2 * THREADS * ROUNDS && s->deep == s->counter && s->written == s->counter,
        "counted %ld %ld %ld", s->counter, s->deep, s->written);
  CHECK(s->turn == 2 * THREADS * 20 && s->serial == 10, "turn %d, serial %d", s->turn, (int)s->serial);
  return check_end();
}
