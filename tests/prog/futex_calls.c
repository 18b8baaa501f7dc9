/* futex through syscall(): waits, wakes, time-outs on both clocks, bit sets, requeueing, errors. */
#include "check.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>

static long futex(void* word, int op, unsigned value, const void* timeout_or_count, void* word2,
                  unsigned value3) {
  return syscall(SYS_futex, word, op, value, timeout_or_count, word2, value3);
}

struct waiter {
  _Atomic unsigned* word;
  int op;
  unsigned bits;
  long result;
  int error;
};
static _Atomic unsigned one, two;
static atomic_int started;

static void* wait_once(void* argument) {
  struct waiter* w = argument;
  started++;
  w->result = futex(w->word, w->op, 0, NULL, NULL, w->bits);
  w->error = errno;
  return NULL;
}

static void start_waiters(struct waiter* w, pthread_t* t, int n, int op) {
  int before = started;
  for (int i = 0; i < n; i++) {
    w[i] = (struct waiter){&one, op, 1u << i % 4, -9, 0};
    t[i] = start_thread(wait_once, &w[i]);
  }
  CHECK(EVENTUALLY(started == before + n), "waiters started");
  pause_ms(60); /* asleep by now, or almost; a wake that finds fewer is repeated */
}

static void finish(struct waiter* w, pthread_t* t, int n) {
  for (int i = 0; i < n; i++) {
    join_thread(t[i]);
    CHECK(w[i].result == 0 || (w[i].result == -1 && w[i].error == EAGAIN), "waiter %d: %ld, errno %d", i,
          w[i].result, w[i].error);
  }
}

static void wake(int private) {
  STAGE(private ? "wake, private" : "wake, shared");
  int flag = private ? FUTEX_PRIVATE_FLAG : 0;
  struct waiter w[10];
  pthread_t t[10];
  CHECK(futex(&one, FUTEX_WAKE | flag, 100, NULL, NULL, 0) == 0, "wake of nobody");
  start_waiters(w, t, 10, FUTEX_WAIT | flag);
  for (int woken = 0; woken < 10;) {
    long n = futex(&one, FUTEX_WAKE | flag, 3, NULL, NULL, 0);
    CHECK(n >= 0 && n <= 3, "a wake of three woke %ld", n);
    if (n < 0) return;
    woken += (int)n;
    CHECK(woken <= 10, "%d of 10 woken", woken);
    if (n == 0) pause_ms(1);
  }
  finish(w, t, 10);
  CHECK(futex(&one, FUTEX_WAKE | flag, 100, NULL, NULL, 0) == 0, "somebody is left");
}

/* Waiters and wakers of the two bit halves do not see each other. */
static void bitset(void) {
  STAGE("bit sets");
  struct waiter w[8];
  pthread_t t[8];
  start_waiters(w, t, 8, FUTEX_WAIT_BITSET_PRIVATE);
  CHECK(futex(&one, FUTEX_WAKE_BITSET_PRIVATE, 100, NULL, NULL, 16) == 0, "a bit of nobody");
  for (int bit = 0; bit < 4; bit++)
    for (int woken = 0; woken < 2;) {
      long n = futex(&one, FUTEX_WAKE_BITSET_PRIVATE, 100, NULL, NULL, 1u << bit);
      CHECK(n >= 0 && n + woken <= 2, "bit %d woke %ld", bit, n);
      if (n < 0) return;
      woken += (int)n;
      if (n == 0) pause_ms(1);
    }
  finish(w, t, 8);
  CHECK(futex(&one, FUTEX_WAIT_BITSET_PRIVATE, 0, NULL, NULL, 0) == -1 && errno == EINVAL,
        "no bits: errno %d", errno);
  CHECK(futex(&one, FUTEX_WAKE_BITSET_PRIVATE, 1, NULL, NULL, 0) == -1 && errno == EINVAL,
        "no bits: errno %d", errno);
}

static void requeue(int compare) {
  STAGE(compare ? "compare and requeue" : "requeue");
  struct waiter w[9];
  pthread_t t[9];
  int op = compare ? FUTEX_CMP_REQUEUE_PRIVATE : FUTEX_REQUEUE_PRIVATE;
  start_waiters(w, t, 9, FUTEX_WAIT_PRIVATE);
  if (compare)
    CHECK(futex(&one, op, 1, (void*)100, &two, 77) == -1 && errno == EAGAIN, "another value: errno %d",
          errno);
  long woken = 0, moved = 0;
  while (woken + moved < 9) {
    long n = futex(&one, op, woken ? 0 : 1, (void*)100, &two, 0);
    CHECK(n >= 0, "requeue: errno %d", errno);
    if (n < 0) return;
    if (n > 0 && !woken) woken = 1, n--;
    /* REQUEUE counts only the woken; CMP_REQUEUE the moved too */
    moved = compare ? moved + n : 8;
    pause_ms(1);
  }
  CHECK(futex(&one, FUTEX_WAKE_PRIVATE, 100, NULL, NULL, 0) == 0, "somebody was not moved");
  long n = futex(&two, FUTEX_WAKE_PRIVATE, 3, NULL, NULL, 0);
  CHECK(n == 3, "three of the moved: %ld", n);
  n = futex(&two, FUTEX_WAKE_PRIVATE, 100, NULL, NULL, 0);
  CHECK(n == 5, "the other moved: %ld", n);
  finish(w, t, 9);
}

static void* times_out(void* unused) {
  (void)unused;
  unsigned mine = 5;
  struct timespec span = ms_span(60), until;
  double begin = now();
  CHECK(futex(&mine, FUTEX_WAIT_PRIVATE, 5, &span, NULL, 0) == -1 && errno == ETIMEDOUT, "relative: errno %d",
        errno);
  CHECK(now() - begin > 0.055, "60 ms took %.4f s", now() - begin);
  begin = now();
  until = ms_from_now(CLOCK_MONOTONIC, 60);
  CHECK(futex(&mine, FUTEX_WAIT_BITSET_PRIVATE, 5, &until, NULL, ~0u) == -1 && errno == ETIMEDOUT,
        "absolute: errno %d", errno);
  CHECK(now() - begin > 0.055, "60 ms took %.4f s", now() - begin);
  begin = now();
  until = ms_from_now(CLOCK_REALTIME, 60);
  CHECK(futex(&mine, FUTEX_WAIT_BITSET_PRIVATE | FUTEX_CLOCK_REALTIME, 5, &until, NULL, ~0u) == -1 &&
            errno == ETIMEDOUT,
        "absolute on the real-time clock: errno %d", errno);
  CHECK(now() - begin > 0.05, "60 ms took %.4f s", now() - begin);
  until = ms_from_now(CLOCK_MONOTONIC, -5);
  CHECK(futex(&mine, FUTEX_WAIT_BITSET_PRIVATE, 5, &until, NULL, ~0u) == -1 && errno == ETIMEDOUT,
        "in the past: errno %d", errno);
  span.tv_sec = span.tv_nsec = 0;
  CHECK(futex(&mine, FUTEX_WAIT_PRIVATE, 5, &span, NULL, 0) == -1 && errno == ETIMEDOUT, "no time: errno %d",
        errno);
  CHECK(futex(&mine, FUTEX_WAIT_PRIVATE, 4, &span, NULL, 0) == -1 && errno == EAGAIN,
        "another value: errno %d", errno);
  span.tv_nsec = 1000000000L;
  CHECK(futex(&mine, FUTEX_WAIT_PRIVATE, 5, &span, NULL, 0) == -1 && errno == EINVAL, "a bad time: errno %d",
        errno);
  CHECK(futex((char*)&mine + 1, FUTEX_WAIT_PRIVATE, 5, NULL, NULL, 0) == -1 && errno == EINVAL,
        "not aligned: errno %d", errno);
  CHECK(futex(&mine, 99, 5, NULL, NULL, 0) == -1 && errno == ENOSYS, "no such operation: errno %d", errno);
  CHECK(futex(NULL, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) == -1 && errno == EFAULT, "null: errno %d", errno);
  return NULL;
}

/* A lock made of nothing but the system call, fought for by threads and main. */
static _Atomic unsigned lock_word;
static long counter;
static void* fight(void* argument) {
  for (long i = 0; i < (long)argument; i++) {
    unsigned seen = 0;
    if (!atomic_compare_exchange_strong(&lock_word, &seen, 1))
      while (atomic_exchange(&lock_word, 2) != 0) futex(&lock_word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
    long c = counter;
    if (i % 200 == 0) pause_ms(1);
    counter = c + 1;
    if (atomic_exchange(&lock_word, 0) == 2) futex(&lock_word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  }
  return NULL;
}

int main(void) {
  check_begin();
  pthread_t t[16];
  STAGE("time limits and errors");
  times_out(NULL);
  for (int i = 0; i < 8; i++) t[i] = start_thread(times_out, NULL);
  for (int i = 0; i < 8; i++) join_thread(t[i]);
  wake(1);
  wake(0);
  bitset();
  requeue(1);
  requeue(0);
  STAGE("a lock of our own");
  for (int i = 0; i < 16; i++) t[i] = start_thread(fight, (void*)1000);
  fight((void*)1000);
  for (int i = 0; i < 16; i++) join_thread(t[i]);
  CHECK(counter == 17000, "counted %ld", counter);
  return check_end();
}
