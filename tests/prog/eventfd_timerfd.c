/* eventfd, timerfd and FIFOs: threads that sleep in read and write on them. */
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

static int counter, semaphore;

static void* add_up(void* unused) {
  (void)unused;
  uint64_t value = 0, sum = 0;
  while (sum < 1000) {
    CHECK(read(counter, &value, 8) == 8, "read: errno %d", errno);
    CHECK(value > 0, "read gave zero");
    sum += value;
  }
  return (void*)(long)sum;
}

static void counting(void) {
  STAGE("eventfd counter");
  counter = eventfd(0, EFD_CLOEXEC);
  NEED(counter >= 0);
  pthread_t t = start_thread(add_up, NULL);
  for (uint64_t i = 1, left = 1000; left > 0; i = i % 40 + 1) {
    uint64_t v = i < left ? i : left;
    NEED(write(counter, &v, 8) == 8);
    left -= v;
    if (i % 8 == 0) pause_ms(1);
  }
  CHECK(join_thread(t) == (void*)1000, "sum of the counts");
  char small[4];
  CHECK(read(counter, small, sizeof small) == -1 && errno == EINVAL, "read of 4 bytes: errno %d", errno);
  uint64_t all = UINT64_MAX;
  CHECK(write(counter, &all, 8) == -1 && errno == EINVAL, "write of the largest number: errno %d", errno);
}

/* A counter at its maximum blocks the writer until somebody reads. */
static void* overfill(void* unused) {
  (void)unused;
  uint64_t v = UINT64_MAX - 1, one = 3;
  CHECK(write(counter, &v, 8) == 8, "fill");
  CHECK(write(counter, &one, 8) == 8, "write that had to wait: errno %d", errno);
  return NULL;
}

static void full(void) {
  STAGE("full eventfd");
  uint64_t v = 0;
  pthread_t t = start_thread(overfill, NULL);
  pause_ms(60);
  CHECK(read(counter, &v, 8) == 8 && v == UINT64_MAX - 1, "first read: %llu", (unsigned long long)v);
  CHECK(read(counter, &v, 8) == 8 && v == 3, "second read: %llu", (unsigned long long)v);
  join_thread(t);
  CHECK(fcntl(counter, F_SETFL, O_NONBLOCK) == 0, "fcntl");
  CHECK(read(counter, &v, 8) == -1 && errno == EAGAIN, "empty and non-blocking: errno %d", errno);
  close(counter);
}

static void* take_one(void* unused) {
  (void)unused;
  uint64_t v = 0;
  CHECK(read(semaphore, &v, 8) == 8 && v == 1, "semaphore read gave %llu", (unsigned long long)v);
  return NULL;
}

static void tokens(void) {
  STAGE("eventfd as a semaphore");
  pthread_t t[30];
  semaphore = eventfd(0, EFD_SEMAPHORE);
  for (int i = 0; i < 30; i++) t[i] = start_thread(take_one, NULL);
  uint64_t ten = 10;
  for (int i = 0; i < 3; i++) {
    pause_ms(10);
    NEED(write(semaphore, &ten, 8) == 8);
  }
  for (int i = 0; i < 30; i++) join_thread(t[i]);
  struct pollfd p = {semaphore, POLLIN, 0};
  CHECK(poll(&p, 1, 0) == 0, "a token is left over");
  close(semaphore);
}

static void* ticks(void* argument) {
  long ms = (long)argument;
  int fd = timerfd_create(CLOCK_MONOTONIC, 0);
  NEED(fd >= 0);
  struct itimerspec every = {ms_span(ms), ms_span(ms)};
  uint64_t n, total = 0;
  double begin = now();
  NEED(timerfd_settime(fd, 0, &every, NULL) == 0);
  while (total < 10) {
    CHECK(read(fd, &n, 8) == 8 && n >= 1, "timerfd read: errno %d", errno);
    total += n;
  }
  CHECK(now() - begin >= (double)(10 * ms) / 1000 - 0.002, "10 ticks of %ld ms took %.3f s", ms,
        now() - begin);
  close(fd);
  return NULL;
}

static char fifo_name[64];
static void* fifo_writer(void* unused) {
  (void)unused;
  pause_ms(60);
  int fd = open(fifo_name, O_WRONLY);
  CHECK(fd >= 0, "open for writing: errno %d", errno);
  pause_ms(30);
  CHECK(write(fd, "through", 7) == 7, "write");
  close(fd);
  return NULL;
}
static void* fifo_reader(void* unused) {
  (void)unused;
  char b[16];
  int fd = open(fifo_name, O_RDONLY); /* sleeps in open until the writer comes */
  CHECK(fd >= 0, "open for reading: errno %d", errno);
  CHECK(read(fd, b, sizeof b) == 7 && !memcmp(b, "through", 7), "read");
  CHECK(read(fd, b, sizeof b) == 0, "end of file");
  close(fd);
  return NULL;
}

static void fifo(void) {
  STAGE("FIFO");
  const char* dir = getenv("TMPDIR");
  snprintf(fifo_name, sizeof fifo_name, "%.30s/check-fifo-%d", dir ? dir : "/tmp", (int)getpid());
  NEED(mkfifo(fifo_name, 0600) == 0);
  pthread_t r = start_thread(fifo_reader, NULL), w = start_thread(fifo_writer, NULL);
  join_thread(r);
  join_thread(w);
  unlink(fifo_name);
}

int main(void) {
  check_begin();
  counting();
  full();
  tokens();
  STAGE("timerfd");
  pthread_t t[10];
  for (long i = 0; i < 10; i++) t[i] = start_thread(ticks, (void*)(3 + i));
  for (int i = 0; i < 10; i++) join_thread(t[i]);
  fifo();
  return check_end();
}
