/*
 * Everything at once, as in a large server: connections with a thread each, a pool behind a queue, a cache behind a
 * read-write lock, a slow dependency behind a semaphore, timers, log lines; all answers are right and all threads end.
 */
// run: modes=default,carriers1
#include "stress.h"

#include <semaphore.h>
#include <stdatomic.h>

enum { CLIENTS = 40, POOL = 8, CACHE = 64 };
static struct sockaddr_in address;
static atomic_int stop;
static FILE* log_file;

/* the pool: jobs with an answer to wait for */
struct job {
  unsigned in;
  unsigned long out;
  int done;
  pthread_mutex_t lock;
  pthread_cond_t cond;
  struct job* next;
};
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_cond = PTHREAD_COND_INITIALIZER;
static struct job *queue_head, **queue_tail = &queue_head;

/* the cache and the slow dependency */
static pthread_rwlock_t cache_lock = PTHREAD_RWLOCK_INITIALIZER;
static unsigned long cache[CACHE];
static sem_t slots;
static atomic_int inside, most_inside;
static __thread unsigned long served_by_me;
static pthread_key_t key;
static atomic_long served, counted_at_exit, requests;

static unsigned long answer_of(unsigned n) { return (unsigned long)n * n + 17; }

static unsigned long slow(unsigned n) {
  while (sem_wait(&slots) != 0) {
  }
  int now_inside = ++inside, most = most_inside;
  while (now_inside > most && !atomic_compare_exchange_weak(&most_inside, &most, now_inside)) {
  }
  usleep(300);
  inside--;
  sem_post(&slots);
  return answer_of(n);
}

static unsigned long cached(unsigned n) {
  unsigned long v;
  pthread_rwlock_rdlock(&cache_lock);
  v = cache[n % CACHE];
  pthread_rwlock_unlock(&cache_lock);
  if (v != answer_of(n)) {
    v = slow(n);
    pthread_rwlock_wrlock(&cache_lock);
    cache[n % CACHE] = v;
    pthread_rwlock_unlock(&cache_lock);
  }
  return v;
}

static void* pool_thread(void* unused) {
  (void)unused;
  for (;;) {
    pthread_mutex_lock(&queue_lock);
    while (!queue_head && !stop) pthread_cond_wait(&queue_cond, &queue_lock);
    struct job* j = queue_head;
    if (j) {
      queue_head = j->next;
      if (!queue_head) queue_tail = &queue_head;
    }
    pthread_mutex_unlock(&queue_lock);
    if (!j) return NULL;
    unsigned long v = cached(j->in);
    pthread_mutex_lock(&j->lock);
    j->out = v;
    j->done = 1;
    pthread_cond_signal(&j->cond);
    pthread_mutex_unlock(&j->lock);
  }
}

static unsigned long through_pool(unsigned n) {
  struct job j = {.in = n};
  pthread_mutex_init(&j.lock, NULL);
  pthread_cond_init(&j.cond, NULL);
  pthread_mutex_lock(&queue_lock);
  *queue_tail = &j;
  queue_tail = &j.next;
  pthread_cond_signal(&queue_cond);
  pthread_mutex_unlock(&queue_lock);
  pthread_mutex_lock(&j.lock);
  while (!j.done) {
    struct timespec until = ms_from_now(CLOCK_REALTIME, 1);
    pthread_cond_timedwait(&j.cond, &j.lock, &until);
  }
  pthread_mutex_unlock(&j.lock);
  pthread_mutex_destroy(&j.lock);
  pthread_cond_destroy(&j.cond);
  return j.out;
}

static void count_at_exit(void* v) { counted_at_exit += *(unsigned long*)v; }

static void* serve(void* argument) {
  int fd = (int)(long)argument;
  FILE* in = fdopen(fd, "r");
  char line[100];
  unsigned n;
  pthread_setspecific(key, &served_by_me);
  while (fgets(line, sizeof line, in)) {
    CHECK(sscanf(line, "get %u", &n) == 1, "request %s", line);
    unsigned long v = n % 3 ? cached(n) : through_pool(n);
    int length = snprintf(line, sizeof line, "%u is %lu\n", n, v);
    if (send(fd, line, (size_t)length, MSG_NOSIGNAL) != length) break;
    fprintf(log_file, "%u\n", n);
    served++;
    served_by_me++;
  }
  fclose(in);
  return NULL;
}

static void* accept_all(void* argument) {
  pthread_t t[CLIENTS];
  int n = 0;
  for (; n < CLIENTS; n++) t[n] = start_thread(serve, (void*)(long)accept(*(int*)argument, NULL, NULL));
  for (int i = 0; i < n; i++) join_thread(t[i]);
  return NULL;
}

static void* client(void* argument) {
  unsigned random = (unsigned)(long)argument, got;
  int fd = connected_to(&address);
  FILE* in = fdopen(dup(fd), "r");
  char line[100];
  unsigned long v;
  for (int i = 0; i < scaled(60); i++) {
    unsigned n = next_random(&random) % 500;
    int length = snprintf(line, sizeof line, "get %u\n", n);
    CHECK(write(fd, line, (size_t)length) == length, "write");
    requests++;
    CHECK(fgets(line, sizeof line, in) && sscanf(line, "%u is %lu", &got, &v) == 2 && got == n &&
              v == answer_of(n),
          "answer to %u: %s", n, line);
    if (i % 10 == 0) nap(&random, 3000);
  }
  fclose(in);
  close(fd);
  return NULL;
}

static void* timer(void* argument) {
  long ticks = 0;
  while (!stop) {
    usleep(1000 + (useconds_t)(long)argument * 300);
    ticks++;
  }
  return (void*)ticks;
}

int main(void) {
  stress_begin();
  STAGE("service");
  pthread_t c[CLIENTS], p[POOL], timers[5];
  int lfd = listener(&address, CLIENTS);
  log_file = fopen("/dev/null", "w");
  setvbuf(log_file, NULL, _IOLBF, 0);
  sem_init(&slots, 0, 4);
  pthread_key_create(&key, count_at_exit);
  for (long i = 0; i < 5; i++) timers[i] = start_thread(timer, (void*)i);
  for (int i = 0; i < POOL; i++) p[i] = start_thread(pool_thread, NULL);
  pthread_t acceptor = start_thread(accept_all, &lfd);
  for (long i = 0; i < CLIENTS; i++) c[i] = start_thread(client, (void*)i);
  for (int i = 0; i < CLIENTS; i++) join_thread(c[i]);
  join_thread(acceptor);
  STAGE("the end");
  pthread_mutex_lock(&queue_lock);
  stop = 1;
  pthread_cond_broadcast(&queue_cond);
  pthread_mutex_unlock(&queue_lock);
  for (int i = 0; i < POOL; i++) join_thread(p[i]);
  for (int i = 0; i < 5; i++) CHECK((long)join_thread(timers[i]) > 0, "timer %d does not tick", i);
  CHECK(requests == (long)CLIENTS * scaled(60) && served == requests, "%ld requests, %ld served",
        (long)requests, (long)served);
  CHECK(counted_at_exit == served, "%ld counted by destructors, %ld served", (long)counted_at_exit,
        (long)served);
  CHECK(most_inside <= 4, "%d inside a semaphore of 4", (int)most_inside);
  close(lfd);
  return check_end();
}
