/*
 * Threads that libc makes by itself: for timers with SIGEV_THREAD, message queues and asynchronous I/O. What they call takes
 * locks, posts semaphores and waits for conditions together with the program's threads.
 */
#include "check.h"

#include <aio.h>
#include <fcntl.h>
#include <mqueue.h>
#include <semaphore.h>
#include <time.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static sem_t sem, answer;
static volatile int expirations, inside, joined;
static __thread int own;

static void* helper(void* value) {
  pause_ms(1);
  return value;
}

static void on_timer(union sigval value) {
  pthread_mutex_lock(&mutex);
  CHECK(inside++ == 0, "two threads inside");
  CHECK(own++ == 0, "thread-local data of another thread");
  expirations += value.sival_int;
  pthread_cond_broadcast(&cond);
  inside--;
  pthread_mutex_unlock(&mutex);
}

static void on_request(union sigval value) {
  pthread_t t = start_thread(helper, value.sival_ptr); /* it may make threads itself */
  if (join_thread(t) == value.sival_ptr) joined++;
  sem_post(&sem);
  while (sem_wait(&answer) != 0) {
  }
  sem_post(&sem);
}

static struct sigevent by_thread(void (*function)(union sigval), int value) {
  struct sigevent e;
  memset(&e, 0, sizeof e);
  e.sigev_notify = SIGEV_THREAD;
  e.sigev_notify_function = function;
  e.sigev_value.sival_int = value;
  return e;
}

static void take(sem_t* s) {
  while (sem_wait(s) != 0) {
  }
}

static void* all(void* unused) {
  timer_t timer;
  STAGE("a timer that repeats");
  struct sigevent e = by_thread(on_timer, 1);
  struct itimerspec every = {ms_span(3), ms_span(3)};
  NEED(timer_create(CLOCK_MONOTONIC, &e, &timer) == 0);
  NEED(timer_settime(timer, 0, &every, NULL) == 0);
  pthread_mutex_lock(&mutex);
  while (expirations < 20) {
    CHECK(inside++ == 0, "two threads inside");
    inside--;
    pthread_cond_wait(&cond, &mutex);
  }
  pthread_mutex_unlock(&mutex);
  CHECK(timer_delete(timer) == 0, "timer_delete");
  STAGE("a timer that asks and waits");
  e = by_thread(on_request, 7);
  struct itimerspec once = {{0, 0}, ms_span(2)};
  NEED(timer_create(CLOCK_REALTIME, &e, &timer) == 0);
  NEED(timer_settime(timer, 0, &once, NULL) == 0);
  take(&sem);
  sem_post(&answer);
  take(&sem);
  CHECK(timer_delete(timer) == 0, "timer_delete");
  STAGE("asynchronous I/O");
  char text[8] = "", path[] = "/tmp/vthr-aio-XXXXXX";
  int fd = mkstemp(path);
  NEED(fd >= 0 && write(fd, "content", 7) == 7);
  struct aiocb io;
  memset(&io, 0, sizeof io);
  io.aio_fildes = fd;
  io.aio_buf = text;
  io.aio_nbytes = 7;
  io.aio_sigevent = by_thread(on_request, 8);
  NEED(aio_read(&io) == 0);
  take(&sem);
  const struct aiocb* list[] = {&io};
  CHECK(aio_error(&io) == 0 || aio_suspend(list, 1, NULL) == 0, "aio_suspend: %s", strerror(errno));
  CHECK(aio_return(&io) == 7 && !strcmp(text, "content"), "read '%s'", text);
  sem_post(&answer);
  take(&sem);
  close(fd);
  unlink(path);
  STAGE("a message queue");
  char name[32], message[16];
  struct mq_attr attr = {.mq_maxmsg = 2, .mq_msgsize = sizeof message};
  snprintf(name, sizeof name, "/vthr-mq-%d", getpid());
  mqd_t q = mq_open(name, O_CREAT | O_RDWR, 0600, &attr);
  if (q == (mqd_t)-1 && (errno == ENOSYS || errno == EACCES || errno == EMFILE)) return unused; /* this system has none */
  NEED(q != (mqd_t)-1);
  e = by_thread(on_request, 9);
  CHECK(mq_notify(q, &e) == 0, "mq_notify: %s", strerror(errno));
  NEED(mq_send(q, "hello", 6, 0) == 0);
  take(&sem);
  CHECK(mq_receive(q, message, sizeof message, NULL) == 6 && !strcmp(message, "hello"), "mq_receive");
  sem_post(&answer);
  take(&sem);
  mq_close(q);
  mq_unlink(name);
  return unused;
}

int main(void) {
  check_begin();
  sem_init(&sem, 0, 0);
  sem_init(&answer, 0, 0);
  join_thread(start_thread(all, NULL));
  expirations = 0;
  all(NULL);
  CHECK(joined == 6 || joined == 4, "threads made by notifications: %d", joined);
  return check_end();
}
