/* Pipes between threads: blocking reads and writes, readv/writev, end of file, broken pipes, many readers. */
#include "check.h"

#include <fcntl.h>
#include <sys/uio.h>

/* A reader sleeps until data come; a partial read is a success. */
static void* late_writer(void* argument) {
  pause_ms(60);
  CHECK(write(*(int*)argument, "hello", 5) == 5, "write");
  return NULL;
}

static void* reads_what_is_there(void* unused) {
  (void)unused;
  int p[2];
  char buffer[16];
  NEED(pipe(p) == 0);
  pthread_t t = start_thread(late_writer, &p[1]);
  errno = 5;
  ssize_t n = read(p[0], buffer, sizeof buffer);
  CHECK(n == 5 && !memcmp(buffer, "hello", 5), "read returned %zd", n);
  CHECK(errno == 5, "a successful read changed errno to %d", errno);
  join_thread(t);
  CHECK(write(p[1], "ab", 2) == 2 && write(p[1], "cd", 2) == 2, "write");
  CHECK(read(p[0], buffer, 3) == 3 && !memcmp(buffer, "abc", 3), "three of four bytes");
  CHECK(read(p[0], buffer, 3) == 1 && buffer[0] == 'd', "the last byte");
  close(p[1]);
  CHECK(read(p[0], buffer, 3) == 0 && read(p[0], buffer, 3) == 0, "end of file, again and again");
  close(p[0]);
  return NULL;
}

/* A write that does not fit blocks until all of it is in the pipe. */
enum { MUCH = 1000000 };
static void* write_much(void* argument) {
  int fd = *(int*)argument;
  char* data = malloc(MUCH);
  for (int i = 0; i < MUCH; i++) data[i] = (char)(i * 31 >> 3);
  ssize_t n = write(fd, data, MUCH);
  CHECK(n == MUCH, "write returned %zd of %d (errno %d)", n, MUCH, errno);
  struct iovec parts[3] = {{data, 1}, {data + 1, MUCH / 2}, {data + 1 + MUCH / 2, MUCH - 1 - MUCH / 2}};
  n = writev(fd, parts, 3);
  CHECK(n == MUCH, "writev returned %zd of %d (errno %d)", n, MUCH, errno);
  free(data);
  close(fd);
  return NULL;
}

static void* whole_writes(void* unused) {
  (void)unused;
  int p[2];
  NEED(pipe(p) == 0);
  pthread_t t = start_thread(write_much, &p[1]);
  pause_ms(30);
  char a[700], b[1300];
  struct iovec parts[3] = {{a, sizeof a}, {NULL, 0}, {b, sizeof b}};
  long got = 0;
  for (;;) {
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    ssize_t n = got % 3 ? read(p[0], a, sizeof a) : readv(p[0], parts, 3);
    if (n <= 0) {
      CHECK(n == 0, "read: errno %d", errno);
      break;
    }
    for (ssize_t i = 0; i < n; i++) {
      char c = i < (ssize_t)sizeof a ? a[i] : b[i - (ssize_t)sizeof a];
      if (c != (char)((got + i) % MUCH * 31 >> 3)) {
        CHECK(0, "wrong byte at %ld", got + i);
        break;
      }
    }
    got += n;
  }
  CHECK(got == 2 * MUCH, "read %ld of %d bytes", got, 2 * MUCH);
  join_thread(t);
  close(p[0]);
  return NULL;
}

/* Several threads sleep on one pipe; each record goes to exactly one; closing the writing end frees them all. */
static int shared[2];
static void* drain(void* unused) {
  (void)unused;
  uint32_t record;
  long sum = 0;
  ssize_t n;
  while ((n = read(shared[0], &record, sizeof record)) == sizeof record) sum += record;
  CHECK(n == 0, "read returned %zd, errno %d", n, errno);
  return (void*)sum;
}

static void many_readers(void) {
  STAGE("many readers of one pipe");
  pthread_t t[20];
  long sum = 0, want = 0;
  NEED(pipe(shared) == 0);
  for (int i = 0; i < COUNT_OF(t); i++) t[i] = start_thread(drain, NULL);
  pause_ms(20);
  for (uint32_t v = 1; v <= 5000; v++) {
    want += v;
    NEED(write(shared[1], &v, sizeof v) == sizeof v);
  }
  pause_ms(20);
  close(shared[1]);
  for (int i = 0; i < COUNT_OF(t); i++) sum += (long)join_thread(t[i]);
  CHECK(sum == want, "sum of the records %ld, want %ld", sum, want);
  close(shared[0]);
}

/* A token goes round 50 threads and main. */
enum { RING = 50, LAPS = 40 };
static int links[RING + 1][2];
static void* pass_on(void* argument) {
  long i = (long)argument;
  int token;
  for (int lap = 0; lap < LAPS; lap++) {
    CHECK(read(links[i][0], &token, sizeof token) == sizeof token, "read %ld", i);
    token++;
    CHECK(write(links[i + 1][1], &token, sizeof token) == sizeof token, "write %ld", i);
  }
  return NULL;
}

static void ring(void) {
  STAGE("ring of threads");
  pthread_t t[RING];
  for (int i = 0; i <= RING; i++) NEED(pipe(links[i]) == 0);
  for (long i = 0; i < RING; i++) t[i] = start_thread(pass_on, (void*)i);
  int token = 0;
  for (int lap = 0; lap < LAPS; lap++) {
    NEED(write(links[0][1], &token, sizeof token) == sizeof token);
    NEED(read(links[RING][0], &token, sizeof token) == sizeof token);
    CHECK(token == (lap + 1) * RING, "lap %d: token %d", lap, token);
  }
  for (int i = 0; i < RING; i++) join_thread(t[i]);
  for (int i = 0; i <= RING; i++) {
    close(links[i][0]);
    close(links[i][1]);
  }
}

/* The reader goes away while a writer sleeps on a full pipe. */
static void* blocked_writer(void* argument) {
  char block[4096] = {0};
  ssize_t n;
  long total = 0;
  while ((n = write(*(int*)argument, block, sizeof block)) > 0) total += n;
  CHECK(n == -1 && errno == EPIPE, "write to a broken pipe: %zd, errno %d", n, errno);
  CHECK(total >= 4096, "only %ld bytes fitted", total);
  return NULL;
}

static void broken(void) {
  STAGE("broken pipe under a sleeping writer");
  int p[2];
  signal(SIGPIPE, SIG_IGN);
  NEED(pipe(p) == 0);
  pthread_t t = start_thread(blocked_writer, &p[1]);
  pause_ms(80);
  close(p[0]);
  join_thread(t);
  close(p[1]);
}

int main(void) {
  check_begin();
  STAGE("partial reads");
  pthread_t t = start_thread(reads_what_is_there, NULL);
  reads_what_is_there(NULL);
  join_thread(t);
  STAGE("whole writes");
  t = start_thread(whole_writes, NULL);
  pthread_t u = start_thread(whole_writes, NULL);
  join_thread(t);
  join_thread(u);
  whole_writes(NULL);
  many_readers();
  ring();
  broken();
  return check_end();
}
