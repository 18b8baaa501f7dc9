/*
 * Threads that wait for threads which a cap of 4 may not have let in yet: joiners, creators, pools of timed waiters, a
 * barrier of 8, beside threads in accept; one kind at a time, then all together. Everything ends.
 */
// run: name=no-cap
// run: name=queue timeout=120 env=VTHR_MAX_CONCURRENCY=4 env=VTHR_ADMISSION=queue
// run: name=block timeout=120 env=VTHR_MAX_CONCURRENCY=4 env=VTHR_ADMISSION=block
#include "net.h"

#include <semaphore.h>
#include <stdatomic.h>

static void* nothing(void* argument) {
  usleep(1000);
  return argument;
}

/* Joins a thread that joins a thread. */
static void* join_chain(void* argument) {
  long depth = (long)argument;
  if (depth > 0)
    CHECK(join_thread(start_thread(join_chain, (void*)(depth - 1))) == (void*)(depth - 1),
          "join at depth %ld", depth);
  return argument;
}
static void* joiners(void* unused) {
  pthread_t t[4];
  for (int i = 0; i < 4; i++) t[i] = start_thread(join_chain, (void*)3);
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  return unused;
}

/* Create several threads before they join the first, as a thread pool does; and wait for "I am running" of each. */
static void* tell(void* sem) {
  sem_post(sem);
  return sem;
}
static void* creator(void* argument) {
  pthread_t t[5];
  sem_t running;
  sem_init(&running, 0, 0);
  for (int i = 0; i < 5; i++) {
    t[i] = start_thread(tell, &running);
    if (argument) /* the handshake of a runtime that waits for each thread it starts */
      while (sem_wait(&running) != 0) {
      }
  }
  for (int i = 0; i < 5; i++) join_thread(t[i]);
  sem_destroy(&running);
  return argument;
}
static void* creators(void* unused) {
  pthread_t t[4];
  for (long i = 0; i < 4; i++) t[i] = start_thread(creator, (void*)(i % 2));
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  return unused;
}

/* A pool that looks every 200 ms whether there is work; the work comes from a thread that is made after the pool. */
struct pool {
  pthread_mutex_t lock;
  pthread_cond_t cond;
  int jobs, done, stop;
};
static void* timed_waiter(void* argument) {
  struct pool* p = argument;
  pthread_mutex_lock(&p->lock);
  while (!p->stop || p->jobs) {
    struct timespec until = ms_from_now(CLOCK_REALTIME, 200);
    if (p->jobs == 0) pthread_cond_timedwait(&p->cond, &p->lock, &until);
    if (p->jobs > 0) {
      p->jobs--;
      p->done++;
    }
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}
static void* producer(void* argument) {
  struct pool* p = argument;
  for (int i = 0; i < 20; i++) {
    pthread_mutex_lock(&p->lock);
    p->jobs++;
    pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->lock);
  }
  pthread_mutex_lock(&p->lock);
  p->stop = 1;
  pthread_cond_broadcast(&p->cond);
  pthread_mutex_unlock(&p->lock);
  return NULL;
}
static void* timed_pool(void* unused) {
  struct pool p = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0};
  pthread_t t[6];
  for (int i = 0; i < 6; i++) t[i] = start_thread(timed_waiter, &p);
  pthread_t last = start_thread(producer, &p);
  join_thread(last);
  for (int i = 0; i < 6; i++) join_thread(t[i]);
  CHECK(p.done == 20, "%d jobs done", p.done);
  return unused;
}

static pthread_barrier_t barrier;
static atomic_int serial;
static void* meet(void* unused) {
  for (int i = 0; i < 2; i++)
    if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) serial++;
  return unused;
}
static void* barrier_of_8(void* unused) {
  pthread_t t[8];
  serial = 0;
  NEED(pthread_barrier_init(&barrier, NULL, 8) == 0);
  for (int i = 0; i < 8; i++) t[i] = start_thread(meet, NULL);
  for (int i = 0; i < 8; i++) join_thread(t[i]);
  CHECK(serial == 2, "%d rounds", (int)serial);
  pthread_barrier_destroy(&barrier);
  return unused;
}

static void* holder(void* argument) {
  pthread_mutex_t* m = argument;
  pthread_mutex_lock(m);
  usleep(50000);
  pthread_mutex_unlock(m);
  return NULL;
}

static struct sockaddr_in address;
static int lfd;
static void* acceptor(void* unused) {
  int fd;
  while ((fd = accept(lfd, NULL, NULL)) >= 0) {
    CHECK(write(fd, "a", 1) == 1, "write");
    close(fd);
  }
  return unused;
}
static void* visit(void* unused) {
  char c;
  int fd = connected_to(&address);
  CHECK(read(fd, &c, 1) == 1, "answer of an acceptor");
  close(fd);
  return unused;
}

static void* (*const kinds[])(void*) = {joiners, creators, timed_pool, barrier_of_8};
static const char* const names[] = {"joiners", "creators", "timed waiters", "barrier of 8"};

int main(void) {
  check_begin();
  alarm(110);
  pthread_t a[3], t[8];
  lfd = listener(&address, 16);
  STAGE("threads in accept");
  for (int i = 0; i < 3; i++) a[i] = start_thread(acceptor, NULL);
  for (int i = 0; i < 4; i++) join_thread(start_thread(nothing, NULL));
  for (int i = 0; i < COUNT_OF(kinds); i++) {
    STAGE(names[i]);
    double begin = now();
    kinds[i](NULL);
    CHECK(now() - begin < 20, "it took %.1f s", now() - begin);
  }
  STAGE("a mutex held by a thread that has to run first");
  pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  for (int i = 0; i < 8; i++) t[i] = start_thread(holder, &m);
  for (int i = 0; i < 8; i++) join_thread(t[i]);
  STAGE("all together");
  double begin = now();
  for (int i = 0; i < COUNT_OF(kinds); i++) t[i] = start_thread(kinds[i], NULL);
  for (int i = COUNT_OF(kinds); i < 8; i++) t[i] = start_thread(visit, NULL);
  for (int i = 0; i < 8; i++) join_thread(t[i]);
  CHECK(now() - begin < 60, "it took %.1f s", now() - begin);
  STAGE("the acceptors end");
  shutdown(lfd, SHUT_RDWR);
  for (int i = 0; i < 3; i++) join_thread(a[i]);
  return check_end();
}
