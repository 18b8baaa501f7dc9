/* Asynchronous cancellation reaches a thread wherever it is: computing, yielding, between its own lock operations, waiting
 * for a mutex, in a call by number, bound to a kernel thread. A deferred one leaves a call by number alone. */
#include "../prog/check.h"

#include <linux/futex.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/syscall.h>

static volatile int inside, cleaned, stop;
static int word, fds[2];
static sem_t sem;
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER, mine = PTHREAD_MUTEX_INITIALIZER;

static void compute(void) {
  for (;;) inside = 1;
}
static void yields(void) {
  for (;;) {
    inside = 1;
    sched_yield();
  }
}
static void locks(void) {
  for (;;) {
    inside = 1;
    pthread_mutex_lock(&mine);
    pthread_mutex_unlock(&mine);
    sem_post(&sem);
    sem_trywait(&sem);
  }
}
static void waits_for_mutex(void) {
  inside = 1;
  pthread_mutex_lock(&held);
}
static void futex_by_number(void) {
  inside = 1;
  for (;;) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}
static void read_by_number(void) {
  char c;
  inside = 1;
  for (;;) syscall(SYS_read, fds[0], &c, 1);
}
static void bound(void) {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  compute();
}
static void bound_waits(void) {
  cpu_set_t set;
  int old;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &old);
  inside = 1;
  for (;;) sem_wait(&sem);
}

static void cleanup(void* unused) {
  (void)unused;
  cleaned++;
}
static void* run(void* body) {
  int old;
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
  pthread_cleanup_push(cleanup, NULL);
  ((void (*)(void))body)();
  pthread_cleanup_pop(0);
  return NULL;
}

static void async(const char* name, void (*body)(void)) {
  STAGE(name);
  inside = cleaned = 0;
  pthread_t t = start_thread(run, (void*)body);
  CHECK(EVENTUALLY(inside), "%s did not start", name);
  pause_ms(10);
  CHECK(pthread_cancel(t) == 0, "pthread_cancel");
  CHECK(join_thread(t) == PTHREAD_CANCELED && cleaned == 1, "%s: cleanup %d", name, cleaned);
}

/* Deferred: a call by number is no cancellation point, neither at its entry nor while it waits. */
static void* deferred(void* by_entry) {
  char c = 0;
  int old;
  if (by_entry) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    while (stop == 0) sched_yield();
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
  }
  inside = 1;
  long r = syscall(SYS_read, fds[0], &c, 1);
  inside = r == 1 ? 2 : 3;
  syscall(SYS_close, -1);
  inside += 2;
  pthread_testcancel();
  return NULL;
}

int main(void) {
  check_begin();
  NEED(pipe(fds) == 0);
  sem_init(&sem, 0, 0);
  pthread_mutex_lock(&held);
  async("compute", compute);
  async("yields", yields);
  async("locks", locks);
  async("waits for a mutex", waits_for_mutex);
  async("futex by number", futex_by_number);
  async("read by number", read_by_number);
  async("bound", bound);
  sem_init(&sem, 0, 0);
  async("bound and waiting", bound_waits);
  for (long by_entry = 0; by_entry < 2; by_entry++) {
    STAGE(by_entry ? "deferred, before a call by number" : "deferred, in a call by number");
    inside = stop = 0;
    pthread_t t = start_thread(deferred, (void*)by_entry);
    if (!by_entry) {
      CHECK(EVENTUALLY(inside == 1), "not started");
      pause_ms(10);
    }
    pthread_cancel(t);
    stop = 1;
    pause_ms(10);
    CHECK(inside <= 1, "a call by number ended: %d", inside);
    NEED(write(fds[1], "x", 1) == 1);
    CHECK(join_thread(t) == PTHREAD_CANCELED && inside == 4, "state %d", inside);
  }
  return check_end();
}
