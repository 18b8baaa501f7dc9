/*
 * Calls that the kernel may cut short for a signal do what they were asked for when there is none, beside threads whose
 * sleeps and socket traffic end all the time: sendfile to sockets, getrandom, write to a pipe, tcdrain, io_getevents.
 */
#include "../prog/net.h"

#include <linux/aio_abi.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <termios.h>

enum { SIZE = 4 << 20 };
static atomic_int stop;
static char* data;

static int ping[6][2];
static void* one_side(void* argument) {
  int fd = ping[(long)argument / 2][(long)argument % 2];
  char c;
  while (read(fd, &c, 1) == 1) {
    usleep(200);
    if (write(fd, &c, 1) != 1) break;
  }
  return NULL;
}

static void* consume(void* argument) {
  int fd = *(int*)argument;
  char* buffer = malloc(SIZE / 16);
  long got = 0;
  ssize_t n;
  while ((n = read(fd, buffer, SIZE / 16)) > 0) {
    CHECK(is_stream(buffer, got, (size_t)n), "wrong bytes at %ld", got);
    got += n;
    usleep(1000);
  }
  free(buffer);
  return (void*)got;
}

static void* transfers(void* unused) {
  (void)unused;
  FILE* file = tmpfile();
  NEED(file && fwrite(data, 1, SIZE, file) == SIZE && fflush(file) == 0);
  for (int kind = 0; kind < 3; kind++) {
    int pair[2];
    if (kind == 0)
      stream_pair(pair);
    else if (kind == 1)
      tcp_pair(pair);
    else
      NEED(pipe(pair) == 0);
    pthread_t t = start_thread(consume, &pair[0]);
    off_t at = 0;
    ssize_t n;
    if (kind == 2) {
      n = write(pair[1], data, SIZE);
      at = n;
    } else {
      n = sendfile(pair[1], fileno(file), &at, SIZE + 1000);
    }
    CHECK(n == SIZE && at == SIZE, "kind %d: %zd of %d, offset %ld, errno %d", kind, n, SIZE, (long)at, errno);
    close(pair[1]);
    CHECK((long)join_thread(t) == SIZE, "kind %d: not all came", kind);
    close(pair[0]);
  }
  fclose(file);
  char* random = malloc(SIZE);
  for (int i = 0; i < 5; i++) {
    ssize_t n = getrandom(random, SIZE, 0);
    CHECK(n == SIZE, "getrandom: %zd", n);
  }
  free(random);
  return NULL;
}

static void* waits(void* unused) {
  (void)unused;
  aio_context_t context = 0;
  struct io_event event;
  if (syscall(SYS_io_setup, 4, &context) == 0) {
    struct timespec limit = ms_span(120);
    double begin = now();
    long r = syscall(SYS_io_getevents, context, 1L, 1L, &event, &limit);
    CHECK(r == 0 && now() - begin > 0.11, "io_getevents: %ld after %.3f s, errno %d", r, now() - begin, errno);
    syscall(SYS_io_destroy, context);
  }
  int master = posix_openpt(O_RDWR | O_NOCTTY);
  NEED(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
  char name[64]; /* ptsname's own is shared by all threads */
  NEED(ptsname_r(master, name, sizeof name) == 0);
  int slave = open(name, O_RDWR | O_NOCTTY);
  NEED(slave >= 0);
  for (int i = 0; i < 20; i++) {
    char b[16];
    CHECK(write(slave, "hi", 2) == 2 && tcdrain(slave) == 0, "tcdrain: errno %d", errno);
    CHECK(read(master, b, sizeof b) == 2, "the terminal's other end: errno %d", errno);
  }
  close(slave);
  close(master);
  return NULL;
}

int main(void) {
  check_begin();
  signal(SIGPIPE, SIG_IGN);
  data = malloc(SIZE);
  fill_stream(data, 0, SIZE);
  pthread_t side[12], t[6];
  for (long i = 0; i < 6; i++) stream_pair(ping[i]);
  for (long i = 0; i < 12; i++) side[i] = start_thread(one_side, (void*)i);
  for (int i = 0; i < 6; i++) CHECK(write(ping[i][0], "x", 1) == 1, "first byte");
  for (int i = 0; i < 6; i++) t[i] = start_thread(i < 3 ? transfers : waits, NULL);
  for (int i = 0; i < 6; i++) join_thread(t[i]);
  for (int i = 0; i < 6; i++) shutdown(ping[i][0], SHUT_RDWR);
  for (int i = 0; i < 12; i++) join_thread(side[i]);
  return check_end();
}
