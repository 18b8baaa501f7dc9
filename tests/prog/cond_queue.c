/* A bounded queue with two condition variables, many producers and consumers, main among them: no item is lost or doubled. */
#include "check.h"

enum { CAPACITY = 4, PRODUCERS = 12, CONSUMERS = 9, EACH = 1200, TOTAL = PRODUCERS * EACH };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t not_full = PTHREAD_COND_INITIALIZER, not_empty = PTHREAD_COND_INITIALIZER;
static int ring[CAPACITY], head, held, done;
static unsigned char seen[TOTAL];

static void put(int item) {
  pthread_mutex_lock(&lock);
  while (held == CAPACITY) pthread_cond_wait(&not_full, &lock);
  ring[(head + held++) % CAPACITY] = item;
  pthread_cond_signal(&not_empty);
  pthread_mutex_unlock(&lock);
}

/* -1: no more will come. Every third call uses a timed wait, whose time-outs must not swallow a signal. */
static int take(int timed) {
  pthread_mutex_lock(&lock);
  while (held == 0 && !done) {
    if (timed) {
      struct timespec until = ms_from_now(CLOCK_REALTIME, 1);
      pthread_cond_timedwait(&not_empty, &lock, &until);
    } else {
      pthread_cond_wait(&not_empty, &lock);
    }
  }
  int item = -1;
  if (held > 0) {
    item = ring[head];
    head = (head + 1) % CAPACITY;
    held--;
    pthread_cond_signal(&not_full);
  }
  pthread_mutex_unlock(&lock);
  return item;
}

static void* produce(void* argument) {
  int base = (int)(long)argument * EACH;
  for (int i = 0; i < EACH; i++) {
    put(base + i);
    if (i % 300 == 17) pause_ms(1);
  }
  return NULL;
}

static void* consume(void* argument) {
  long count = 0;
  for (int item, i = (int)(long)argument; (item = take(i % 3 == 0)) >= 0; i++) {
    CHECK(__atomic_fetch_add(&seen[item], 1, __ATOMIC_RELAXED) == 0, "item %d taken twice", item);
    count++;
  }
  return (void*)count;
}

int main(void) {
  check_begin();
  STAGE("queue");
  pthread_t p[PRODUCERS], c[CONSUMERS];
  for (long i = 0; i < CONSUMERS; i++) c[i] = start_thread(consume, (void*)i);
  for (long i = 1; i < PRODUCERS; i++) p[i] = start_thread(produce, (void*)i);
  produce((void*)0);
  for (int i = 1; i < PRODUCERS; i++) join_thread(p[i]);
  pthread_mutex_lock(&lock);
  done = 1;
  pthread_cond_broadcast(&not_empty);
  pthread_mutex_unlock(&lock);
  long total = 0;
  for (int i = 0; i < CONSUMERS; i++) total += (long)join_thread(c[i]);
  CHECK(total == TOTAL, "%ld items taken, want %d", total, TOTAL);
  for (int i = 0; i < TOTAL; i++) CHECK(seen[i] == 1, "item %d seen %d times", i, seen[i]);
  return check_end();
}
