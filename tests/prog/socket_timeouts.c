/* SO_RCVTIMEO and SO_SNDTIMEO: every call ends with EAGAIN after the time, not before; without them nothing ends. */
#include "net.h"

#include <poll.h>

enum receiver { RECV, READ, READV, RECVFROM, RECVMSG, ACCEPT, RECEIVERS };
static const char* const receiver_name[RECEIVERS] = {"recv",     "read",    "readv",
                                                     "recvfrom", "recvmsg", "accept"};

static ssize_t receive(enum receiver way, int fd, void* buffer, size_t length) {
  struct iovec part = {buffer, length};
  struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
  switch (way) {
    case RECV:
      return recv(fd, buffer, length, 0);
    case READ:
      return read(fd, buffer, length);
    case READV:
      return readv(fd, &part, 1);
    case RECVFROM:
      return recvfrom(fd, buffer, length, 0, NULL, NULL);
    case RECVMSG:
      return recvmsg(fd, &header, 0);
    default:
      return accept(fd, NULL, NULL);
  }
}

static void expect_timeout(const char* name, ssize_t result, double begin, double ms) {
  int error = errno;
  double took = now() - begin;
  CHECK(result == -1 && error == EAGAIN, "%s: %zd, errno %d", name, result, error);
  CHECK(took > ms / 1000 - 0.03 && took < 12, "%s: %.0f ms took %.3f s", name, ms,
        took); /* the kernel counts in jiffies */
}

static void* receiving(void* argument) {
  enum receiver way = (enum receiver)((long)argument % RECEIVERS);
  int kind = (int)((long)argument / RECEIVERS) % 3, pair[2] = {-1, -1};
  char buffer[16];
  struct sockaddr_in a;
  if (way == ACCEPT)
    pair[0] = listener(&a, 4);
  else if (kind == 0)
    stream_pair(pair);
  else if (kind == 1)
    tcp_pair(pair);
  else
    pair[0] = bound_socket(SOCK_DGRAM, &a);
  set_timeout(pair[0], SO_RCVTIMEO, 120);
  for (int i = 0; i < 2; i++) {
    double begin = now();
    expect_timeout(receiver_name[way], receive(way, pair[0], buffer, sizeof buffer), begin, 120);
  }
  /* poll does not care for it */
  struct pollfd p = {pair[0], POLLIN, 0};
  double begin = now();
  CHECK(poll(&p, 1, 200) == 0 && now() - begin > 0.19, "poll ended after %.3f s", now() - begin);
  close(pair[0]);
  if (pair[1] >= 0) close(pair[1]);
  return NULL;
}

static void* sending(void* argument) {
  long way = (long)argument;
  int pair[2];
  static const char block[4096];
  struct iovec part = {(void*)block, sizeof block};
  struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
  if (way % 2)
    tcp_pair(pair);
  else
    stream_pair(pair);
  while (send(pair[0], block, sizeof block, MSG_DONTWAIT) > 0) {
  }
  if (way % 2) { /* what was sent may still be on its way to the peer's buffer */
    pause_ms(50);
    while (send(pair[0], block, sizeof block, MSG_DONTWAIT) > 0) {
    }
  }
  set_timeout(pair[0], SO_SNDTIMEO, 120);
  double begin = now();
  ssize_t n = way / 2 == 0   ? send(pair[0], block, sizeof block, 0)
              : way / 2 == 1 ? write(pair[0], block, sizeof block)
              : way / 2 == 2 ? writev(pair[0], &part, 1)
                             : sendmsg(pair[0], &header, 0);
  expect_timeout("send", n, begin, 120);
  close(pair[0]);
  close(pair[1]);
  return NULL;
}

/* What came before the time was over is a success. */
static void* partial(void* unused) {
  (void)unused;
  int pair[2];
  char buffer[16];
  stream_pair(pair);
  set_timeout(pair[0], SO_RCVTIMEO, 150);
  NEED(write(pair[1], "abc", 3) == 3);
  double begin = now();
  CHECK(recv(pair[0], buffer, 10, MSG_WAITALL) == 3, "MSG_WAITALL with three bytes");
  CHECK(now() - begin > 0.12, "it did not wait for the rest");
  set_timeout(pair[1], SO_SNDTIMEO, 150);
  size_t size = 4 << 20;
  char* much = calloc(1, size);
  begin = now();
  ssize_t n = write(pair[1], much, size);
  CHECK(n > 0 && n < (ssize_t)size, "write of 4 MB nobody reads: %zd, errno %d", n, errno);
  CHECK(now() - begin > 0.12, "it did not wait for room");
  free(much);
  close(pair[0]);
  close(pair[1]);
  return NULL;
}

static void* write_late(void* argument) {
  pause_ms(700);
  CHECK(write(*(int*)argument, "late", 4) == 4, "write");
  return NULL;
}
/* No time limit, or one that was taken back: the call waits. */
static void* unlimited(void* argument) {
  int pair[2];
  char buffer[16];
  struct timeval tv = {-1, -1};
  socklen_t length = sizeof tv;
  stream_pair(pair);
  if (argument) {
    set_timeout(pair[0], SO_RCVTIMEO, 60);
    set_timeout(pair[0], SO_RCVTIMEO, 0);
  }
  CHECK(getsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &tv, &length) == 0 && tv.tv_sec == 0 && tv.tv_usec == 0,
        "SO_RCVTIMEO");
  pthread_t t = start_thread(write_late, &pair[1]);
  ssize_t n = recv(pair[0], buffer, sizeof buffer, 0);
  CHECK(n == 4, "recv without limit: %zd, errno %d", n, errno);
  join_thread(t);
  close(pair[0]);
  close(pair[1]);
  return NULL;
}

/* A connect that cannot be completed: the listener's queue is full. */
static void* connecting(void* unused) {
  (void)unused;
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  int n = snprintf(a.sun_path + 1, 60, "check-timeout-%d-%ld", (int)getpid(), (long)gettid());
  socklen_t length = (socklen_t)(sizeof a.sun_family + 1 + (size_t)n);
  int lfd = socket(AF_UNIX, SOCK_STREAM, 0), fds[8], r = 0, count = 0;
  NEED(bind(lfd, (struct sockaddr*)&a, length) == 0 && listen(lfd, 1) == 0);
  for (; count < 8 && r == 0; count++) {
    fds[count] = socket(AF_UNIX, SOCK_STREAM, 0);
    set_timeout(fds[count], SO_SNDTIMEO, 120);
    double begin = now();
    if ((r = connect(fds[count], (struct sockaddr*)&a, length)) != 0)
      expect_timeout("connect", r, begin, 120);
  }
  CHECK(count < 8, "eight connections on a backlog of 1");
  while (count > 0) close(fds[--count]);
  close(lfd);
  return NULL;
}

int main(void) {
  check_begin();
  pthread_t t[40];
  int n = 0;
  STAGE("in threads");
  for (long i = 0; i < 3 * RECEIVERS; i++) t[n++] = start_thread(receiving, (void*)i);
  for (long i = 0; i < 8; i++) t[n++] = start_thread(sending, (void*)i);
  t[n++] = start_thread(partial, NULL);
  t[n++] = start_thread(unlimited, NULL);
  t[n++] = start_thread(unlimited, (void*)1);
  t[n++] = start_thread(connecting, NULL);
  while (n > 0) join_thread(t[--n]);
  STAGE("in main");
  receiving((void*)RECV);
  receiving((void*)ACCEPT);
  sending((void*)0);
  partial(NULL);
  connecting(NULL);
  return check_end();
}
