/* pthread_cancel of the initial thread while it waits for a condition, a semaphore or a thread: it ends there, with its
 * cleanup handlers, and the mutex is locked again for them. Each in a process of its own; also with cancellation disabled,
 * when it must go on waiting. */
#include "../prog/check.h"

#include <semaphore.h>

static pthread_t initial;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static sem_t sem, release;
static volatile int cleaned, inside, flag, returned;
static int which, disabled, timed;

static void wake(void) {
  pthread_mutex_lock(&mutex);
  flag = 1;
  pthread_cond_signal(&cond);
  pthread_mutex_unlock(&mutex);
  sem_post(&sem);
  sem_post(&release);
}

static void* canceller(void* unused) {
  void* end = NULL;
  (void)unused;
  EVENTUALLY(inside);
  pause_ms(20); /* it waits by now; if not, it meets the cancellation at the entry */
  CHECK(pthread_cancel(initial) == 0, "pthread_cancel");
  if (disabled) {
    pause_ms(20);
    CHECK(!returned, "wait %d ended by a cancellation that is disabled", which);
    wake();
  }
  int r = pthread_join(initial, &end);
  CHECK(r == 0 && end == PTHREAD_CANCELED, "join: %d, end %p", r, end);
  CHECK(cleaned == 1, "wait %d: cleanup ran %d times", which, cleaned);
  CHECK(returned == disabled, "wait %d returned %d", which, returned);
  _exit(check_findings != 0);
}

static void* until_released(void* unused) {
  int old;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
  sem_wait(&release);
  return unused;
}

static void unlock(void* unused) {
  (void)unused;
  CHECK(pthread_mutex_trylock(&mutex) == EBUSY && pthread_mutex_unlock(&mutex) == 0, "the mutex is not mine");
}
static void cleanup(void* unused) {
  (void)unused;
  cleaned++;
}

static void wait_here(pthread_t t) {
  struct timespec limit = ms_from_now(CLOCK_REALTIME, 100000);
  if (which == 0) {
    pthread_mutex_lock(&mutex);
    pthread_cleanup_push(unlock, NULL);
    while (!flag) timed ? pthread_cond_timedwait(&cond, &mutex, &limit) : pthread_cond_wait(&cond, &mutex);
    pthread_cleanup_pop(1);
  } else if (which == 1) {
    CHECK((timed ? sem_timedwait(&sem, &limit) : sem_wait(&sem)) == 0, "sem_wait");
  } else {
    CHECK((timed ? pthread_timedjoin_np(t, NULL, &limit) : pthread_join(t, NULL)) == 0, "join");
  }
}

static void child(void) {
  int old;
  initial = pthread_self();
  sem_init(&sem, 0, 0);
  sem_init(&release, 0, 0);
  pthread_t t = start_thread(until_released, NULL);
  start_thread(canceller, NULL);
  pthread_cleanup_push(cleanup, NULL);
  if (disabled) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
  inside = 1;
  wait_here(t);
  returned = 1;
  if (disabled) pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
  pthread_testcancel();
  pthread_cleanup_pop(0);
  _exit(3);
}

int main(void) {
  check_begin();
  for (int i = 0; i < 12; i++) {
    which = i / 4, disabled = i % 2, timed = i / 2 % 2;
    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0) {
      alarm(20);
      child();
    }
    int status = 0;
    NEED(waitpid(pid, &status, 0) == pid);
    CHECK(status == 0, "wait %d%s%s: status %#x", which, timed ? ", timed" : "", disabled ? ", disabled" : "", (unsigned)status);
  }
  return check_end();
}
