/*
 * A random mix of everything for SOAK_SECONDS (5): threads made and ended, locks, time-outs, cancellation, signals, forks, sockets.
 * Each kind of work keeps books that must balance at the end; none may stand still; resident memory stays flat.
 */
// run: modes=default,carriers1
#include "stress.h"

#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>

enum { STANDSTILL = 40 /* seconds */ };
enum kind { BANK, QUEUE, TOKENS, VERSIONS, TEAM, ECHO, BIRTHS, CANCELS, SIGNALS, FORKS, NAPS, KINDS };
static const char* const kind_name[KINDS] = {"bank",   "queue",   "tokens",  "versions", "team", "echo",
                                             "births", "cancels", "signals", "forks",    "naps"};
static atomic_long done[KINDS];
static atomic_int stop;

static unsigned seed_of(long n) { return (unsigned)(n * 2654435761u) ^ (unsigned)getpid(); }

/* --- bank: money moves between accounts and is never made or lost */
enum { ACCOUNTS = 16, CLERKS = 12, MONEY = 1000 };
static struct {
  pthread_mutex_t lock;
  pthread_cond_t more;
  long money;
} account[ACCOUNTS];

static void* clerk(void* argument) {
  unsigned random = seed_of((long)argument);
  while (!stop) {
    int from = (int)(next_random(&random) % ACCOUNTS), to = (int)(next_random(&random) % ACCOUNTS);
    long sum = 1 + next_random(&random) % 50;
    if (from == to) continue;
    int low = from < to ? from : to, high = from < to ? to : from;
    struct timespec until = ms_from_now(CLOCK_REALTIME, next_random(&random) % 3);
    pthread_mutex_lock(&account[low].lock);
    int how = (int)(next_random(&random) % 3), error;
    if (how == 0) error = pthread_mutex_lock(&account[high].lock);
    else if (how == 1) error = pthread_mutex_trylock(&account[high].lock);
    else error = pthread_mutex_timedlock(&account[high].lock, &until);
    if (error == 0) {
      if (account[from].money < sum && from == high && next_random(&random) % 2)
        pthread_cond_timedwait(&account[high].more, &account[high].lock, &until);
      if (account[from].money >= sum) {
        account[from].money -= sum;
        account[to].money += sum;
        pthread_cond_signal(&account[to].more);
        done[BANK]++;
      }
      pthread_mutex_unlock(&account[high].lock);
    } else {
      CHECK(how == 1 ? error == EBUSY : how == 2 && error == ETIMEDOUT, "lock of kind %d: %s", how, strerror(error));
    }
    pthread_mutex_unlock(&account[low].lock);
    if (next_random(&random) % 8 == 0) nap(&random, 500);
  }
  return NULL;
}

/* --- queue: waits without a time-out, so that a lost wake-up is a standstill */
enum { ROOM = 8, MAKERS = 5, TAKERS = 7 };
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t not_full = PTHREAD_COND_INITIALIZER, not_empty = PTHREAD_COND_INITIALIZER;
static long slots[ROOM], made_sum, taken_sum;
static int filled, makers_left = MAKERS;

static void* maker(void* argument) {
  unsigned random = seed_of((long)argument);
  while (!stop) {
    long v = next_random(&random) % 1000;
    pthread_mutex_lock(&queue_lock);
    while (filled == ROOM) pthread_cond_wait(&not_full, &queue_lock);
    slots[filled++] = v;
    made_sum += v;
    pthread_cond_signal(&not_empty);
    pthread_mutex_unlock(&queue_lock);
    if (v % 16 == 0) nap(&random, 1000);
  }
  pthread_mutex_lock(&queue_lock);
  if (--makers_left == 0) pthread_cond_broadcast(&not_empty);
  pthread_mutex_unlock(&queue_lock);
  return NULL;
}
static void* taker(void* argument) {
  unsigned random = seed_of((long)argument);
  for (;;) {
    pthread_mutex_lock(&queue_lock);
    while (filled == 0 && makers_left > 0) pthread_cond_wait(&not_empty, &queue_lock);
    if (filled == 0) {
      pthread_mutex_unlock(&queue_lock);
      return NULL;
    }
    long v = slots[--filled];
    taken_sum += v;
    pthread_cond_signal(&not_full);
    pthread_mutex_unlock(&queue_lock);
    done[QUEUE]++;
    if (v % 16 == 1) nap(&random, 1000);
  }
}

/* --- tokens: taken with and without a limit, always given back */
enum { TOKENS_THERE = 4, HOLDERS = 10 };
static sem_t tokens;
static atomic_int holders;

static void* holder(void* argument) {
  unsigned random = seed_of((long)argument);
  while (!stop) {
    int error = 0;
    struct timespec until = ms_from_now(CLOCK_REALTIME, next_random(&random) % 4);
    switch (next_random(&random) % 3) {
      case 0:
        while (sem_wait(&tokens) != 0 && errno == EINTR) {
        }
        break;
      case 1:
        if (sem_timedwait(&tokens, &until) != 0) error = errno;
        CHECK(error == 0 || error == ETIMEDOUT || error == EINTR, "sem_timedwait: %s", strerror(error));
        break;
      default:
        if (sem_trywait(&tokens) != 0) error = errno;
        CHECK(error == 0 || error == EAGAIN, "sem_trywait: %s", strerror(error));
    }
    if (error != 0) {
      sched_yield();
      continue;
    }
    int n = ++holders;
    CHECK(n <= TOKENS_THERE, "%d hold %d tokens", n, TOKENS_THERE);
    if (next_random(&random) % 4 == 0) nap(&random, 700);
    holders--;
    sem_post(&tokens);
    done[TOKENS]++;
  }
  return NULL;
}

/* --- versions: readers never see a half-written record */
enum { READERS = 8, WRITERS = 2 };
static pthread_rwlock_t record_lock = PTHREAD_RWLOCK_INITIALIZER;
static volatile long record[8];

static void* reader(void* argument) {
  unsigned random = seed_of((long)argument);
  while (!stop) {
    struct timespec until = ms_from_now(CLOCK_REALTIME, 2);
    if (next_random(&random) % 2) pthread_rwlock_rdlock(&record_lock);
    else if (pthread_rwlock_timedrdlock(&record_lock, &until) != 0) continue;
    long first = record[0];
    if (next_random(&random) % 8 == 0) sched_yield();
    for (int i = 1; i < COUNT_OF(record); i++) CHECK(record[i] == first, "a half-written record");
    pthread_rwlock_unlock(&record_lock);
    if (next_random(&random) % 4 == 0) nap(&random, 800);
  }
  return NULL;
}
static void* writer(void* argument) {
  unsigned random = seed_of((long)argument);
  while (!stop) {
    pthread_rwlock_wrlock(&record_lock);
    long next = record[0] + 1;
    for (int i = 0; i < COUNT_OF(record); i++) {
      record[i] = next;
      if (i == 4 && next_random(&random) % 4 == 0) sched_yield();
    }
    pthread_rwlock_unlock(&record_lock);
    done[VERSIONS]++;
    nap(&random, 1500);
  }
  return NULL;
}

/* --- team: rounds at a barrier */
enum { TEAM_SIZE = 5 };
static pthread_barrier_t barrier;
static atomic_long arrived;
static int team_ends; /* written by the serial thread between two barriers */

static void* member(void* argument) {
  unsigned random = seed_of((long)argument);
  for (long round = 1;; round++) {
    arrived++;
    int r = pthread_barrier_wait(&barrier);
    CHECK(arrived == round * TEAM_SIZE, "round %ld: %ld arrived", round, (long)arrived);
    if (r == PTHREAD_BARRIER_SERIAL_THREAD) {
      team_ends = stop;
      done[TEAM]++;
    }
    pthread_barrier_wait(&barrier);
    if (team_ends) return NULL;
    nap(&random, 2000);
  }
}

/* --- echo: connections of random length, each byte checked; slow peers, time-outs, half-closed ends */
static struct sockaddr_in address;

static void* serve(void* argument) {
  int fd = (int)(long)argument;
  char buffer[700];
  ssize_t n;
  while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) {
    for (ssize_t at = 0, sent; at < n; at += sent)
      if ((sent = send(fd, buffer + at, (size_t)(n - at), 0)) < 0) sent = 0;
  }
  close(fd);
  return NULL;
}
static void* accept_all(void* argument) {
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&detached, 128 << 10);
  for (;;) {
    pthread_t t;
    int fd = accept(*(int*)argument, NULL, NULL);
    if (fd < 0) break;
    CHECK(pthread_create(&t, &detached, serve, (void*)(long)fd) == 0, "no thread for a connection");
  }
  pthread_attr_destroy(&detached);
  return NULL;
}
static void* caller(void* argument) {
  unsigned random = seed_of((long)argument);
  unsigned char out[3000], in[3000];
  while (!stop) {
    int fd = connected_to(&address);
    struct timeval limit = {0, 300};
    for (unsigned i = next_random(&random) % 10; i > 0; i--) {
      size_t n = 1 + next_random(&random) % sizeof out, got = 0;
      for (size_t k = 0; k < n; k++) out[k] = (unsigned char)(next_random(&random) >> 3);
      CHECK(send(fd, out, n, 0) == (ssize_t)n, "send: %s", strerror(errno));
      if (next_random(&random) % 3 == 0) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      double end = now() + STANDSTILL;
      while (got < n && now() < end) {
        if (next_random(&random) % 4 == 0) poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, (int)(next_random(&random) % 3));
        ssize_t r = recv(fd, in + got, n - got, 0);
        if (r > 0) got += (size_t)r;
        else CHECK(r < 0 && (errno == EAGAIN || errno == EINTR), "recv: %zd, %s", r, strerror(errno));
      }
      CHECK(got == n && memcmp(in, out, n) == 0, "%zu of %zu bytes, or other ones", got, n);
    }
    if (next_random(&random) % 2) {
      limit.tv_usec = 0;
      setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      shutdown(fd, SHUT_WR);
      CHECK(recv(fd, in, 1, 0) == 0, "bytes or an error at the end: %s", strerror(errno));
    }
    close(fd);
    done[ECHO]++;
    nap(&random, 3000);
  }
  return NULL;
}

/* --- births: threads of several sizes, joined or detached, with values in keys */
static pthread_key_t key;
static atomic_long born, buried;
static void bury(void* value) {
  buried++;
  free(value);
}
static void* live(void* argument) {
  unsigned random = seed_of((long)argument);
  char* text = malloc(1 + next_random(&random) % 2000);
  pthread_setspecific(key, text);
  born++;
  if (next_random(&random) % 2) nap(&random, 2000);
  if (next_random(&random) % 4 == 0) pthread_exit((void*)((long)argument + 1));
  return (void*)((long)argument + 1);
}
static void* mother(void* argument) {
  unsigned random = seed_of((long)argument);
  pthread_t t[12];
  while (!stop) {
    int n = 1 + (int)(next_random(&random) % COUNT_OF(t)), joined = 0;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, (size_t)(64 << 10) << next_random(&random) % 4);
    for (int i = 0; i < n; i++) {
      int error = pthread_create(&t[joined], next_random(&random) % 2 ? &attr : NULL, live, (void*)(long)joined);
      CHECK(error == 0, "pthread_create: %s", strerror(error));
      if (error != 0) continue;
      if (next_random(&random) % 3 == 0) pthread_detach(t[joined]);
      else joined++;
    }
    pthread_attr_destroy(&attr);
    for (int i = 0; i < joined; i++) CHECK((long)join_thread(t[i]) == i + 1, "another thread's value");
    done[BIRTHS]++;
    nap(&random, 2000);
  }
  return NULL;
}

/* --- cancels: threads that wait for ever in one way or another */
enum { VICTIMS = 6 };
static pthread_mutex_t never_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static sem_t nothing;
static int silent[2];
static atomic_long cleaned;
static void clean(void* held) {
  if (held) pthread_mutex_unlock(held);
  cleaned++;
}
static void* wait_for_ever(void* argument) {
  char c;
  int how = (int)(long)argument;
  if (how == 0) pthread_mutex_lock(&never_lock);
  pthread_cleanup_push(clean, how == 0 ? &never_lock : NULL);
  for (;;) switch (how) {
      case 0:
        pthread_cond_wait(&never, &never_lock);
        break;
      case 1:
        sem_wait(&nothing);
        break;
      case 2:
        if (read(silent[0], &c, 1) == 1) return NULL;
        break;
      case 3:
        poll(NULL, 0, -1);
        break;
      default:
        pause_ms(100000);
    }
  pthread_cleanup_pop(0);
  return NULL;
}
static void* canceller(void* argument) {
  unsigned random = seed_of((long)argument);
  while (!stop) {
    pthread_t t[VICTIMS];
    for (int i = 0; i < COUNT_OF(t); i++) t[i] = start_thread(wait_for_ever, (void*)(long)(next_random(&random) % 5));
    nap(&random, 2000);
    for (int i = 0; i < COUNT_OF(t); i++) CHECK(pthread_cancel(t[i]) == 0, "pthread_cancel");
    for (int i = 0; i < COUNT_OF(t); i++) CHECK(join_thread(t[i]) == PTHREAD_CANCELED, "not cancelled");
    done[CANCELS]++;
    nap(&random, 5000);
  }
  return NULL;
}

/* --- signals: each queued one is handled once, in the thread it was sent to */
enum { TARGETS = 4 };
static pthread_t target[TARGETS];
static atomic_long queued, handled, plain;
static __thread int target_number = -1;
static void on_queued(int number, siginfo_t* info, void* context) {
  (void)number, (void)context;
  if (info->si_value.sival_int != target_number) _exit(3);
  handled++;
}
static void on_plain(int number) {
  (void)number;
  plain++;
}
static void* be_target(void* argument) {
  unsigned random = seed_of((long)argument);
  target_number = (int)(long)argument;
  while (stop < 2) {
    switch (next_random(&random) % 4) {
      case 0:
        nap(&random, 2000);
        break;
      case 1:
        poll(NULL, 0, 1);
        break;
      case 2: {
        struct timespec until = ms_from_now(CLOCK_REALTIME, 1);
        sem_timedwait(&nothing, &until);
        break;
      }
      default:
        for (volatile int i = 0; i < 20000; i++) {
        }
    }
  }
  return NULL;
}
static void* sender(void* argument) {
  unsigned random = seed_of((long)argument);
  while (!stop) {
    int to = (int)(next_random(&random) % TARGETS);
    if (next_random(&random) % 2) {
      union sigval value = {.sival_int = to};
      int error = pthread_sigqueue(target[to], SIGRTMIN, value);
      CHECK(error == 0 || error == EAGAIN, "pthread_sigqueue: %s", strerror(error));
      if (error == 0) queued++;
    } else {
      CHECK(pthread_kill(target[to], SIGUSR1) == 0, "pthread_kill");
    }
    done[SIGNALS]++;
    nap(&random, 1500);
  }
  return NULL;
}

/* --- forks: a child with a thread of its own, or one that is another program */
static void* in_the_child(void* argument) {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  usleep(500);
  pthread_mutex_unlock(&lock);
  return argument;
}
static void* forker(void* argument) {
  unsigned random = seed_of((long)argument);
  while (!stop) {
    int how = (int)(next_random(&random) % 3), code = (int)(next_random(&random) % 100), status = -1;
    pid_t child = fork();
    if (child == 0) {
      alarm(STANDSTILL);
      if (how == 0) _exit(code);
      if (how == 1) {
        pthread_t t;
        void* result = NULL;
        if (pthread_create(&t, NULL, in_the_child, (void*)(long)code) != 0 || pthread_join(t, &result) != 0) _exit(101);
        _exit((int)(long)result);
      }
      char text[20];
      snprintf(text, sizeof text, "exit %d", code);
      execl("/bin/sh", "sh", "-c", text, (char*)NULL);
      _exit(102);
    }
    CHECK(child > 0, "fork: %s", strerror(errno));
    if (child < 0) break;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    CHECK(exited_with(status, code), "a child of kind %d ends with %x, wanted is exit code %d", how, (unsigned)status, code);
    done[FORKS]++;
    nap(&random, 40000);
  }
  return NULL;
}

/* --- naps: none is too short */
static void* sleeper(void* argument) {
  unsigned random = seed_of((long)argument);
  while (!stop) {
    long us = next_random(&random) % 20000;
    double begin = now();
    struct timespec span = {0, us * 1000};
    while (nanosleep(&span, &span) != 0 && errno == EINTR) {
    }
    CHECK(now() - begin >= (double)us / 1e6 - 1e-6, "a nap of %ld us was %g s", us, now() - begin);
    done[NAPS]++;
  }
  return NULL;
}

static double resident_mib(void) {
  long pages = 0;
  FILE* f = fopen("/proc/self/statm", "r");
  if (f && fscanf(f, "%*d %ld", &pages) != 1) pages = 0;
  if (f) fclose(f);
  return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

static pthread_t actor[100];
static int actors;
static void start(int n, void* (*body)(void*)) {
  for (int i = 0; i < n; i++, actors++) actor[actors] = start_thread(body, (void*)(long)(actors + 1));
}

/* Each second: did every kind go on lately? The largest resident size of the first half and of the last quarter. */
static void watch(double seconds, int loud) {
  long last[KINDS] = {0};
  double moved[KINDS], begin = now(), early = 0, late = 0;
  for (int k = 0; k < KINDS; k++) moved[k] = begin;
  for (double t; (t = now() - begin) < seconds;) {
    pause_ms(200);
    double mib = resident_mib();
    if (t < seconds / 2 && mib > early) early = mib;
    if (t > seconds * 3 / 4 && mib > late) late = mib;
    for (int k = 0; k < KINDS; k++) {
      if (done[k] != last[k]) moved[k] = now();
      last[k] = done[k];
      if (now() - moved[k] < STANDSTILL) continue;
      printf("FAIL: %s stands still at %ld\n", kind_name[k], last[k]);
      fflush(stdout);
      _exit(1);
    }
  }
  CHECK(late <= early * 1.15 + 8, "resident: %.1f MiB in the first half, %.1f MiB in the last quarter", early, late);
  if (loud) fprintf(stderr, "resident at most %.1f MiB in the first half, %.1f MiB in the last quarter\n", early, late);
}

int main(void) {
  const char* wanted = getenv("SOAK_SECONDS");
  double seconds = wanted ? atof(wanted) : 5.0 * stress_scale();
  struct sigaction set;
  stress_begin();
  alarm((unsigned)seconds + 3 * STANDSTILL);
  STAGE("soak");
  memset(&set, 0, sizeof set);
  set.sa_flags = SA_SIGINFO | SA_RESTART;
  set.sa_sigaction = on_queued;
  sigaction(SIGRTMIN, &set, NULL);
  set.sa_flags = 0;
  set.sa_handler = on_plain;
  sigaction(SIGUSR1, &set, NULL);
  for (int i = 0; i < ACCOUNTS; i++) {
    pthread_mutex_init(&account[i].lock, NULL);
    pthread_cond_init(&account[i].more, NULL);
    account[i].money = MONEY;
  }
  sem_init(&tokens, 0, TOKENS_THERE);
  sem_init(&nothing, 0, 0);
  pthread_barrier_init(&barrier, NULL, TEAM_SIZE);
  pthread_key_create(&key, bury);
  NEED(pipe(silent) == 0);
  int lfd = listener(&address, 100);
  pthread_t acceptor = start_thread(accept_all, &lfd);
  for (long i = 0; i < TARGETS; i++) target[i] = start_thread(be_target, (void*)i);
  start(CLERKS, clerk);
  start(MAKERS, maker);
  start(TAKERS, taker);
  start(HOLDERS, holder);
  start(READERS, reader);
  start(WRITERS, writer);
  start(TEAM_SIZE, member);
  start(6, caller);
  start(3, mother);
  start(2, canceller);
  start(3, sender);
  start(2, forker);
  start(6, sleeper);

  watch(seconds, wanted != NULL);
  STAGE("the end");
  stop = 1;
  for (int i = 0; i < actors; i++) join_thread(actor[i]);
  shutdown(lfd, SHUT_RDWR);
  join_thread(acceptor);
  close(lfd);
  CHECK(EVENTUALLY(handled == queued), "%ld signals queued, %ld handled", (long)queued, (long)handled);
  stop = 2;
  for (int i = 0; i < TARGETS; i++) join_thread(target[i]);
  long money = 0;
  int left = -1;
  for (int i = 0; i < ACCOUNTS; i++) money += account[i].money;
  CHECK(money == (long)ACCOUNTS * MONEY, "%ld in the bank", money);
  CHECK(made_sum == taken_sum && filled == 0, "%ld put into the queue, %ld taken", made_sum, taken_sum);
  sem_getvalue(&tokens, &left);
  CHECK(left == TOKENS_THERE, "%d tokens left", left);
  CHECK(cleaned == done[CANCELS] * VICTIMS, "%ld of %ld cancelled threads cleaned up", (long)cleaned, done[CANCELS] * VICTIMS);
  CHECK(EVENTUALLY(born == buried), "%ld born, %ld buried", (long)born, (long)buried);
  for (int k = 0; k < KINDS; k++) {
    CHECK(done[k] > 0, "%s: nothing done", kind_name[k]);
    if (wanted) fprintf(stderr, "%s %ld%s", kind_name[k], (long)done[k], k + 1 < KINDS ? ", " : "\n");
  }
  return check_end();
}
