/* accept, accept4 and connect: addresses, flags, errors, listeners that are shut down, non-blocking forms. */
#include "net.h"

#include <poll.h>

static struct sockaddr_in address;
static int lfd;

static void* late_client(void* unused) {
  (void)unused;
  pause_ms(60);
  int fd = connected_to(&address);
  char c;
  CHECK(read(fd, &c, 1) == 0, "the server closes");
  close(fd);
  return NULL;
}

static int accept_by(int way, struct sockaddr* peer, socklen_t* length) {
  return way == 0 ? accept(lfd, peer, length)
                  : accept4(lfd, peer, length,
                            way == 1   ? 0
                            : way == 2 ? SOCK_CLOEXEC
                                       : SOCK_NONBLOCK);
}

static void* accepts(void* unused) {
  (void)unused;
  for (int way = 0; way < 4; way++) {
    struct sockaddr_storage peer;
    struct sockaddr_in other;
    socklen_t length = sizeof peer, other_length = sizeof other;
    pthread_t t = start_thread(late_client, NULL);
    int fd = accept_by(way, (struct sockaddr*)&peer, &length);
    CHECK(fd >= 0, "accept %d: errno %d", way, errno);
    CHECK(length == sizeof(struct sockaddr_in), "length of the address %d", (int)length);
    CHECK(
        getpeername(fd, (struct sockaddr*)&other, &other_length) == 0 && !memcmp(&other, &peer, sizeof other),
        "peer address");
    CHECK(!!(fcntl(fd, F_GETFD) & FD_CLOEXEC) == (way == 2), "close-on-exec of accept %d", way);
    CHECK(!!(fcntl(fd, F_GETFL) & O_NONBLOCK) == (way == 3), "O_NONBLOCK of accept %d", way);
    close(fd);
    join_thread(t);
    /* without address, and with too little room for it */
    t = start_thread(late_client, NULL);
    fd = accept_by(way, NULL, NULL);
    CHECK(fd >= 0, "accept %d without address: errno %d", way, errno);
    close(fd);
    join_thread(t);
    t = start_thread(late_client, NULL);
    memset(&peer, 0x77, sizeof peer);
    length = 4;
    fd = accept_by(way, (struct sockaddr*)&peer, &length);
    CHECK(fd >= 0 && length == sizeof(struct sockaddr_in), "accept %d with short address: %d, length %d", way,
          fd, (int)length);
    CHECK(((char*)&peer)[4] == 0x77, "more than 4 bytes of address were written");
    close(fd);
    join_thread(t);
  }
  return NULL;
}

static void* errors(void* unused) {
  (void)unused;
  struct sockaddr_in a;
  socklen_t length = sizeof a;
  int plain = socket(AF_INET, SOCK_STREAM, 0), datagram = socket(AF_INET, SOCK_DGRAM, 0), p[2];
  NEED(pipe(p) == 0);
  CHECK(accept(-1, NULL, NULL) == -1 && errno == EBADF, "accept on no descriptor: errno %d", errno);
  CHECK(accept(plain, NULL, NULL) == -1 && errno == EINVAL, "accept without listen: errno %d", errno);
  CHECK(accept(datagram, NULL, NULL) == -1 && errno == EOPNOTSUPP, "accept on UDP: errno %d", errno);
  CHECK(accept(p[0], NULL, NULL) == -1 && errno == ENOTSOCK, "accept on a pipe: errno %d", errno);
  CHECK(accept4(lfd, NULL, NULL, 0x40000000) == -1 && errno == EINVAL, "accept4 with bad flags: errno %d",
        errno);
  CHECK(connect(-1, (struct sockaddr*)&address, sizeof address) == -1 && errno == EBADF,
        "connect, no descriptor: errno %d", errno);
  CHECK(connect(p[0], (struct sockaddr*)&address, sizeof address) == -1 && errno == ENOTSOCK,
        "connect, pipe: errno %d", errno);
  CHECK(connect(plain, (struct sockaddr*)&address, 3) == -1 && errno == EINVAL,
        "connect, short address: errno %d", errno);
  CHECK(connect(plain, wild_address(), sizeof address) == -1 && errno == EFAULT,
        "connect, bad address: errno %d", errno);
  a = address;
  a.sin_family = AF_INET6;
  CHECK(connect(plain, (struct sockaddr*)&a, sizeof a) == -1 && errno == EAFNOSUPPORT,
        "connect, family: errno %d", errno);
  /* bound and never listening: always refused, and the socket may try again */
  int silent = bound_socket(SOCK_STREAM, &a);
  for (int i = 0; i < 3; i++) {
    CHECK(connect(plain, (struct sockaddr*)&a, sizeof a) == -1 && errno == ECONNREFUSED, "refused: errno %d",
          errno);
    int pending = -1;
    length = sizeof pending;
    CHECK(getsockopt(plain, SOL_SOCKET, SO_ERROR, &pending, &length) == 0 && pending == 0,
          "SO_ERROR %d is left", pending);
  }
  close(silent);
  close(plain);
  close(datagram);
  close(p[0]);
  close(p[1]);
  return NULL;
}

static void* nonblocking(void* unused) {
  (void)unused;
  struct sockaddr_in a;
  int quiet = listener(&a, 4), pending = -1;
  socklen_t length = sizeof pending;
  CHECK(fcntl(quiet, F_SETFL, O_NONBLOCK) == 0, "fcntl");
  CHECK(accept(quiet, NULL, NULL) == -1 && errno == EAGAIN, "accept without clients: errno %d", errno);
  int c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  int r = connect(c, (struct sockaddr*)&a, sizeof a);
  CHECK(r == 0 || (r == -1 && errno == EINPROGRESS), "connect: %d, errno %d", r, errno);
  struct pollfd p = {c, POLLOUT, 0};
  CHECK(poll(&p, 1, 15000) == 1 && p.revents == POLLOUT, "poll: %x", p.revents);
  CHECK(getsockopt(c, SOL_SOCKET, SO_ERROR, &pending, &length) == 0 && pending == 0, "SO_ERROR %d", pending);
  p.fd = quiet;
  p.events = POLLIN;
  CHECK(poll(&p, 1, 15000) == 1 && p.revents == POLLIN, "poll of the listener: %x", p.revents);
  int s = accept(quiet, NULL, NULL);
  CHECK(s >= 0 && !(fcntl(s, F_GETFL) & O_NONBLOCK), "an accepted socket inherits O_NONBLOCK");
  if (r != 0) /* the first call after it was in progress reports the success */
    CHECK(connect(c, (struct sockaddr*)&a, sizeof a) == 0, "second connect: errno %d", errno);
  CHECK(connect(c, (struct sockaddr*)&a, sizeof a) == -1 && errno == EISCONN,
        "connect of a connected socket: errno %d", errno);
  close(s);
  close(c);
  close(quiet);
  return NULL;
}

/* Shutting a listener down ends the accepts that wait on it. */
static struct sockaddr_in doomed_address;
static void* accept_until_shutdown(void* argument) {
  int fd = (int)(long)argument, n = 0, c;
  while ((c = accept(fd, NULL, NULL)) >= 0) {
    n++;
    close(c);
  }
  CHECK(errno == EINVAL, "accept on a listener that was shut down: errno %d", errno);
  return (void*)(long)n;
}

int main(void) {
  check_begin();
  lfd = listener(&address, 16);
  STAGE("accept in a thread");
  join_thread(start_thread(accepts, NULL));
  STAGE("accept in main");
  accepts(NULL);
  STAGE("errors");
  errors(NULL);
  join_thread(start_thread(errors, NULL));
  STAGE("non-blocking");
  join_thread(start_thread(nonblocking, NULL));
  nonblocking(NULL);
  STAGE("shutdown of a listener");
  pthread_t t[8];
  int doomed = listener(&doomed_address, 64);
  for (int i = 0; i < 8; i++) t[i] = start_thread(accept_until_shutdown, (void*)(long)doomed);
  for (int i = 0; i < 40; i++) close(connected_to(&doomed_address));
  pause_ms(50);
  CHECK(shutdown(doomed, SHUT_RDWR) == 0, "shutdown");
  long total = 0;
  for (int i = 0; i < 8; i++) total += (long)join_thread(t[i]);
  CHECK(total == 40, "accepted %ld of 40", total);
  close(doomed);
  return check_end();
}
