/*
 * Services for which libc makes threads of its own, used in many threads at once: asynchronous I/O, asynchronous name look-ups,
 * notifications of timers and message queues by a thread.
 */
// cflags: -lanl
#include "check.h"

#include <aio.h>
#include <fcntl.h>
#include <mqueue.h>
#include <netdb.h>
#include <semaphore.h>
#include <stdatomic.h>

enum { THREADS = 8 };
static char folder[] = "/tmp/helper_threads.XXXXXX";
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int notified;
static __thread long mine;

static void on_done(union sigval value) {
  pthread_mutex_lock(&lock); /* which a thread of the program holds meanwhile */
  mine++;
  notified++;
  sem_post(value.sival_ptr);
  pthread_mutex_unlock(&lock);
}

static void* files(void* argument) {
  char path[200], out[THREADS][600], in[600];
  snprintf(path, sizeof path, "%s/%ld", folder, (long)argument);
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  NEED(fd >= 0);
  struct aiocb blocks[4], one;
  struct aiocb* list[4];
  sem_t done;
  sem_init(&done, 0, 0);
  memset(blocks, 0, sizeof blocks);
  for (int i = 0; i < 4; i++) {
    memset(out[i], 'a' + i + (int)(long)argument, sizeof out[i]);
    blocks[i].aio_fildes = fd;
    blocks[i].aio_buf = out[i];
    blocks[i].aio_nbytes = sizeof out[i];
    blocks[i].aio_offset = i * (long)sizeof out[i];
    blocks[i].aio_lio_opcode = LIO_WRITE;
    list[i] = &blocks[i];
  }
  if ((long)argument % 2) {
    CHECK(lio_listio(LIO_WAIT, list, 4, NULL) == 0, "lio_listio: %s", strerror(errno));
  } else {
    for (int i = 0; i < 4; i++) {
      blocks[i].aio_sigevent.sigev_notify = SIGEV_THREAD;
      blocks[i].aio_sigevent.sigev_notify_function = on_done;
      blocks[i].aio_sigevent.sigev_value.sival_ptr = &done;
      CHECK(aio_write(&blocks[i]) == 0, "aio_write: %s", strerror(errno));
    }
    for (int i = 0; i < 4; i++)
      while (sem_wait(&done) != 0) {
      }
  }
  for (int i = 0; i < 4; i++) CHECK(aio_error(&blocks[i]) == 0 && aio_return(&blocks[i]) == sizeof out[i], "aio_return");
  for (int i = 0; i < 4; i++) {
    memset(&one, 0, sizeof one);
    one.aio_fildes = fd;
    one.aio_buf = in;
    one.aio_nbytes = sizeof in;
    one.aio_offset = i * (long)sizeof in;
    const struct aiocb* wait_for = &one;
    CHECK(aio_read(&one) == 0, "aio_read: %s", strerror(errno));
    while (aio_error(&one) == EINPROGRESS) aio_suspend(&wait_for, 1, NULL);
    CHECK(aio_return(&one) == sizeof in && memcmp(in, out[i], sizeof in) == 0, "other bytes were read");
  }
  close(fd);
  unlink(path);
  sem_destroy(&done);
  return NULL;
}

/* A read that has to wait until another thread writes; one that is cancelled or not, but ends. */
static void* pipes(void* unused) {
  int p[2];
  char c = 0;
  NEED(pipe(p) == 0);
  struct aiocb one;
  const struct aiocb* wait_for = &one;
  struct timespec brief = {0, 5000000};
  memset(&one, 0, sizeof one);
  one.aio_fildes = p[0];
  one.aio_buf = &c;
  one.aio_nbytes = 1;
  CHECK(aio_read(&one) == 0, "aio_read");
  CHECK(aio_suspend(&wait_for, 1, &brief) == -1 && (errno == EAGAIN || errno == EINTR), "aio_suspend did not time out");
  CHECK(write(p[1], "z", 1) == 1, "write");
  while (aio_error(&one) == EINPROGRESS) aio_suspend(&wait_for, 1, NULL);
  CHECK(aio_return(&one) == 1 && c == 'z', "the byte");
  close(p[0]);
  close(p[1]);
  return unused;
}

static void* names(void* unused) {
  struct gaicb request[3], *list[3];
  struct addrinfo hints;
  memset(request, 0, sizeof request);
  memset(&hints, 0, sizeof hints);
  hints.ai_family = AF_INET;
  for (int i = 0; i < 3; i++) {
    request[i].ar_name = i == 1 ? "127.0.0.5" : "localhost";
    request[i].ar_request = &hints;
    list[i] = &request[i];
  }
  CHECK(getaddrinfo_a(GAI_NOWAIT, list, 3, NULL) == 0, "getaddrinfo_a");
  for (int i = 0; i < 3; i++) {
    const struct gaicb* wait_for[] = {&request[i]};
    while (gai_error(&request[i]) == EAI_INPROGRESS) gai_suspend(wait_for, 1, NULL);
    CHECK(gai_error(&request[i]) == 0 && request[i].ar_result, "look-up %d: %s", i, gai_strerror(gai_error(&request[i])));
    if (request[i].ar_result) freeaddrinfo(request[i].ar_result);
  }
  return unused;
}

static void* timers(void* unused) {
  sem_t done;
  timer_t timer;
  struct sigevent event;
  struct itimerspec soon = {{0, 2000000}, {0, 1000000}};
  sem_init(&done, 0, 0);
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_THREAD;
  event.sigev_notify_function = on_done;
  event.sigev_value.sival_ptr = &done;
  NEED(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &soon, NULL) == 0);
  for (int i = 0; i < 5; i++) {
    pthread_mutex_lock(&lock);
    usleep(200);
    pthread_mutex_unlock(&lock);
    while (sem_wait(&done) != 0) {
    }
  }
  timer_delete(timer);
  pause_ms(20); /* a notification may still be under way, with `done` */
  return unused;
}

static void* queues(void* argument) {
  char name[100], text[64];
  struct mq_attr attr = {.mq_maxmsg = 4, .mq_msgsize = sizeof text};
  struct sigevent event;
  sem_t done;
  snprintf(name, sizeof name, "/helper_threads.%d.%ld", (int)getpid(), (long)argument);
  mqd_t q = mq_open(name, O_CREAT | O_RDWR, 0600, &attr);
  if (q == (mqd_t)-1) return NULL; /* not everywhere there are such */
  mq_unlink(name);
  sem_init(&done, 0, 0);
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_THREAD;
  event.sigev_notify_function = on_done;
  event.sigev_value.sival_ptr = &done;
  for (int i = 0; i < 3; i++) {
    CHECK(mq_notify(q, &event) == 0, "mq_notify: %s", strerror(errno));
    CHECK(mq_send(q, "message", 8, 0) == 0, "mq_send");
    while (sem_wait(&done) != 0) {
    }
    CHECK(mq_receive(q, text, sizeof text, NULL) == 8, "mq_receive");
  }
  mq_close(q);
  return NULL;
}

int main(void) {
  check_begin();
  static void* (*const parts[])(void*) = {files, pipes, names, timers, queues};
  static const char* const part_names[] = {"files", "pipes", "names", "timers", "queues"};
  NEED(mkdtemp(folder));
  for (int i = 0; i < COUNT_OF(parts); i++) {
    STAGE(part_names[i]);
    pthread_t t[THREADS];
    for (long k = 0; k < THREADS; k++) t[k] = start_thread(parts[i], (void*)k);
    for (int k = 0; k < THREADS; k++) join_thread(t[k]);
    parts[i]((void*)0);
  }
  CHECK(notified > THREADS, "%d notifications", (int)notified);
  rmdir(folder);
  return check_end();
}
