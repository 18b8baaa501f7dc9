/*
 * O_NONBLOCK belongs to the program: set by fcntl, at creation or by ioctl it makes calls return EAGAIN at once;
 * a descriptor on which threads sleep does not show it; setting it does not disturb those that sleep already.
 */
#include "net.h"

#include <stdatomic.h>
#include <sys/ioctl.h>

struct reader {
  int fd;
  atomic_int state; /* 1: about to read, 2: has returned */
  ssize_t result;
  char byte;
};
static void* read_one(void* argument) {
  struct reader* r = argument;
  r->state = 1;
  r->result = read(r->fd, &r->byte, 1);
  r->state = 2;
  return NULL;
}

static int flag_of(int fd) { return !!(fcntl(fd, F_GETFL) & O_NONBLOCK); }

static pthread_t start_reader(struct reader* r, int fd) {
  *r = (struct reader){.fd = fd};
  pthread_t t = start_thread(read_one, r);
  CHECK(EVENTUALLY(r->state == 1), "the reader starts");
  pause_ms(20);
  CHECK(r->state == 1, "the reader does not wait: %zd", r->result);
  return t;
}

static void finish_reader(struct reader* r, pthread_t t, int out, char byte) {
  CHECK(write(out, &byte, 1) == 1, "write");
  join_thread(t);
  CHECK(r->result == 1 && r->byte == byte, "the reader got %zd, '%c'", r->result, r->byte);
}

static const char* kind_name;
static void part(const char* name) {
  static char text[80];
  snprintf(text, sizeof text, "%s: %s", kind_name, name);
  STAGE(text);
}

static void* end_to_end(void* argument) {
  int *pair = argument, in = pair[0], out = pair[1], on = 1, off = 0;
  struct reader r;
  char c;
  part("a reader sleeps");
  pthread_t t = start_reader(&r, in);
  CHECK(!flag_of(in) && !flag_of(out), "O_NONBLOCK shows while a reader sleeps");
  finish_reader(&r, t, out, 'a');
  CHECK(!flag_of(in) && !flag_of(out), "O_NONBLOCK is left behind");

  part("O_NONBLOCK is set meanwhile");
  t = start_reader(&r, in);
  CHECK(fcntl(in, F_SETFL, fcntl(in, F_GETFL) | O_NONBLOCK) == 0, "fcntl");
  pause_ms(30);
  CHECK(r.state == 1, "setting O_NONBLOCK ended a read that slept: %zd", r.result);
  errno = 0;
  CHECK(read(in, &c, 1) == -1 && errno == EAGAIN, "a new read: errno %d", errno);
  finish_reader(&r, t, out, 'b');
  CHECK(flag_of(in), "the flag is gone");

  part("a duplicate");
  int copy = dup(in);
  CHECK(flag_of(copy), "a duplicate does not share the flag");
  CHECK(read(copy, &c, 1) == -1 && errno == EAGAIN, "read of the duplicate: errno %d", errno);
  CHECK(ioctl(copy, FIONBIO, &off) == 0 && !flag_of(in), "FIONBIO off");
  close(copy);
  part("FIONBIO");
  t = start_reader(&r, in);
  finish_reader(&r, t, out, 'c');
  CHECK(ioctl(in, FIONBIO, &on) == 0 && flag_of(in), "FIONBIO on");
  CHECK(read(in, &c, 1) == -1 && errno == EAGAIN, "read after FIONBIO: errno %d", errno);

  part("writes until it is full");
  static const char block[4096];
  ssize_t n;
  long total = 0, got = 0;
  CHECK(fcntl(out, F_SETFL, fcntl(out, F_GETFL) | O_NONBLOCK) == 0, "fcntl");
  while ((n = write(out, block, sizeof block)) > 0) total += n;
  CHECK(n == -1 && errno == EAGAIN && total > 0, "full: %zd, errno %d, %ld bytes", n, errno, total);
  part("reads until it is empty");
  char sink[5000];
  while (EVENTUALLY((n = read(in, sink, sizeof sink)) > 0 || errno != EAGAIN || got == total) && n > 0)
    got += n;
  CHECK(n == -1 && errno == EAGAIN && got == total, "%ld written, %ld read, errno %d", total, got, errno);
  return NULL;
}

static void* from_birth(void* unused) {
  (void)unused;
  int p[2], s[2];
  char c, four[4];
  NEED(pipe2(p, O_NONBLOCK) == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, s) == 0);
  CHECK(read(p[0], &c, 1) == -1 && errno == EAGAIN, "pipe2: errno %d", errno);
  CHECK(read(s[0], &c, 1) == -1 && errno == EAGAIN, "socketpair: errno %d", errno);
  CHECK(recv(s[0], &c, 1, MSG_WAITALL) == -1 && errno == EAGAIN, "MSG_WAITALL: errno %d", errno);
  CHECK(write(s[1], "x", 1) == 1 && recv(s[0], four, 4, MSG_WAITALL) == 1, "MSG_WAITALL with one byte there");
  struct sockaddr_in a;
  int u = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
  a = loopback();
  NEED(bind(u, (struct sockaddr*)&a, sizeof a) == 0);
  CHECK(recvfrom(u, &c, 1, 0, NULL, NULL) == -1 && errno == EAGAIN, "UDP: errno %d", errno);
  close(u);
  for (int i = 0; i < 2; i++) {
    close(p[i]);
    close(s[i]);
  }
  return NULL;
}

int main(void) {
  check_begin();
  int pair[2];
  for (int in_thread = 0; in_thread < 2; in_thread++)
    for (int kind = 0; kind < 3; kind++) {
      kind_name = kind == 0 ? "pipe" : kind == 1 ? "unix stream" : "TCP";
      if (kind == 0)
        NEED(pipe(pair) == 0);
      else if (kind == 1)
        stream_pair(pair);
      else
        tcp_pair(pair);
      if (in_thread)
        join_thread(start_thread(end_to_end, pair));
      else
        end_to_end(pair);
      close(pair[0]);
      close(pair[1]);
    }
  STAGE("from birth");
  from_birth(NULL);
  join_thread(start_thread(from_birth, NULL));
  return check_end();
}
