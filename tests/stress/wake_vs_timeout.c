/* Time limits that run out just when somebody wakes the waiter: tokens of every kind of lock are neither lost nor doubled. */
// run: modes=default,carriers1
#include "stress.h"

#include <linux/futex.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum { WAITERS = 4 };
enum kind { SEM, SEM_MONO, COND, COND_MONO, COND_BROADCAST, FUTEX, MUTEX, RWLOCK, JOIN, KINDS };
static const char* const kind_name[KINDS] = {"semaphore", "semaphore monotonic",
                                             "condition", "condition monotonic",
                                             "broadcast", "futex",
                                             "mutex",     "rwlock",
                                             "join"};
static struct place {
  enum kind kind;
  int quota, given;
  atomic_int taken, timeouts, over;
  sem_t sem;
  pthread_mutex_t lock;
  pthread_cond_t cond;
  pthread_rwlock_t rwlock;
  _Atomic unsigned word; /* tokens of the futex */
  int tokens;
  long guarded, entered;
} places[KINDS];

static struct timespec soon(clockid_t clock, unsigned* random) {
  struct timespec t;
  clock_gettime(clock, &t);
  t.tv_nsec += (long)(next_random(random) % 1200000);
  if (t.tv_nsec >= 1000000000L) {
    t.tv_sec++;
    t.tv_nsec -= 1000000000L;
  }
  return t;
}

/* Takes one token if one comes in time: 1, else 0. */
static int take(struct place* p, unsigned* random) {
  struct timespec until =
      soon(p->kind == SEM_MONO || p->kind == COND_MONO || p->kind == FUTEX ? CLOCK_MONOTONIC : CLOCK_REALTIME,
           random);
  int r = 0;
  switch (p->kind) {
    case SEM:
    case SEM_MONO:
      r = p->kind == SEM ? sem_timedwait(&p->sem, &until) : sem_clockwait(&p->sem, CLOCK_MONOTONIC, &until);
      CHECK(r == 0 || errno == ETIMEDOUT, "%s: errno %d", kind_name[p->kind], errno);
      return r == 0;
    case COND:
    case COND_MONO:
    case COND_BROADCAST:
      pthread_mutex_lock(&p->lock);
      while (p->tokens == 0 && r == 0)
        r = p->kind == COND_MONO ? pthread_cond_clockwait(&p->cond, &p->lock, CLOCK_MONOTONIC, &until)
                                 : pthread_cond_timedwait(&p->cond, &p->lock, &until);
      CHECK(r == 0 || r == ETIMEDOUT, "%s: %d", kind_name[p->kind], r);
      r = p->tokens > 0;
      if (r) p->tokens--;
      pthread_mutex_unlock(&p->lock);
      return r;
    default: { /* futex: a counter of tokens */
      unsigned n = p->word;
      while (n > 0)
        if (atomic_compare_exchange_weak(&p->word, &n, n - 1)) return 1;
      long w = syscall(SYS_futex, &p->word, FUTEX_WAIT_BITSET_PRIVATE, 0, &until, NULL, ~0u);
      CHECK(w == 0 || errno == EAGAIN || errno == ETIMEDOUT, "futex: errno %d", errno);
      n = p->word;
      while (n > 0)
        if (atomic_compare_exchange_weak(&p->word, &n, n - 1)) return 1;
      return 0;
    }
  }
}

static void* waiter(void* argument) {
  struct place* p = argument;
  unsigned random = (unsigned)(uintptr_t)&random;
  while (p->taken < p->quota) {
    if (take(p, &random))
      p->taken++;
    else
      p->timeouts++;
  }
  return NULL;
}

static void* giver(void* argument) {
  struct place* p = argument;
  unsigned random = 5;
  for (p->given = 0; p->given < p->quota; p->given++) {
    switch (p->kind) {
      case SEM:
      case SEM_MONO:
        sem_post(&p->sem);
        break;
      case COND:
      case COND_MONO:
      case COND_BROADCAST:
        pthread_mutex_lock(&p->lock);
        p->tokens++;
        if (p->kind == COND_BROADCAST)
          pthread_cond_broadcast(&p->cond);
        else
          pthread_cond_signal(&p->cond);
        pthread_mutex_unlock(&p->lock);
        break;
      default:
        p->word++;
        syscall(SYS_futex, &p->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    if (next_random(&random) % 3 == 0) nap(&random, 900);
  }
  return NULL;
}

/* Locks with time limits: who gets in is alone inside, who does not has not got in. */
static void* enter(void* argument) {
  struct place* p = argument;
  unsigned random = (unsigned)(uintptr_t)&random;
  for (int i = 0; i < p->quota / WAITERS; i++) {
    struct timespec until = soon(CLOCK_REALTIME, &random);
    int write = p->kind == MUTEX || i % 3 == 0;
    int r = p->kind == MUTEX ? pthread_mutex_timedlock(&p->lock, &until)
            : write          ? pthread_rwlock_timedwrlock(&p->rwlock, &until)
                             : pthread_rwlock_timedrdlock(&p->rwlock, &until);
    CHECK(r == 0 || r == ETIMEDOUT, "%s: %d", kind_name[p->kind], r);
    if (r != 0) {
      p->timeouts++;
      continue;
    }
    if (write) {
      long g = p->guarded;
      if (next_random(&random) % 4 == 0) nap(&random, 600);
      CHECK(p->guarded == g, "%s: somebody else was inside", kind_name[p->kind]);
      p->guarded = g + 1;
      p->entered++;
    } else if (next_random(&random) % 4 == 0) {
      long g = p->guarded;
      nap(&random, 600);
      CHECK(p->guarded == g, "%s: written while read", kind_name[p->kind]);
    }
    if (p->kind == MUTEX)
      pthread_mutex_unlock(&p->lock);
    else
      pthread_rwlock_unlock(&p->rwlock);
  }
  return NULL;
}

/* Joins with time limits of threads that end at about that time. */
static void* short_life(void* argument) {
  unsigned random = (unsigned)(uintptr_t)argument;
  nap(&random, 1200);
  return argument;
}
static void* join_them(void* argument) {
  struct place* p = argument;
  unsigned random = (unsigned)(uintptr_t)&random;
  for (long i = 0; i < p->quota / WAITERS / 4; i++) {
    pthread_t t = start_thread(short_life, (void*)(i + 1));
    void* result = NULL;
    int r;
    struct timespec until = soon(CLOCK_REALTIME, &random);
    while ((r = pthread_timedjoin_np(t, &result, &until)) == ETIMEDOUT) {
      p->timeouts++;
      until = soon(CLOCK_REALTIME, &random);
    }
    CHECK(r == 0 && result == (void*)(i + 1), "join: %d, result %p", r, result);
  }
  return NULL;
}

int main(void) {
  stress_begin();
  STAGE("all kinds");
  pthread_t w[KINDS][WAITERS], g[KINDS];
  for (int k = 0; k < KINDS; k++) {
    struct place* p = &places[k];
    p->kind = (enum kind)k;
    p->quota = scaled(k == JOIN ? 2000 : 3000);
    sem_init(&p->sem, 0, 0);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->cond, NULL);
    pthread_rwlock_init(&p->rwlock, NULL);
    for (int i = 0; i < WAITERS; i++)
      w[k][i] = start_thread(k == JOIN ? join_them : k >= MUTEX ? enter : waiter, p);
    if (k < MUTEX) g[k] = start_thread(giver, p);
  }
  for (int k = 0; k < KINDS; k++) {
    struct place* p = &places[k];
    STAGE(kind_name[k]);
    if (k < MUTEX) join_thread(g[k]);
    for (int i = 0; i < WAITERS; i++) join_thread(w[k][i]);
    int left = 0;
    sem_getvalue(&p->sem, &left);
    left += p->tokens + (int)p->word;
    if (k < MUTEX)
      CHECK(p->taken == p->quota && left == 0, "%d of %d tokens taken, %d left", (int)p->taken, p->quota,
            left);
    CHECK(p->guarded == p->entered, "%ld changes, %ld entries", p->guarded, p->entered);
    if (getenv("SHOW")) fprintf(stderr, "%s: %d time-outs\n", kind_name[k], (int)p->timeouts);
  }
  return check_end();
}
