/* A thread-per-connection echo server with many clients: every byte comes back, in order, through every pair of calls. */
#include "net.h"

#include <stdatomic.h>

enum { CLIENTS = 60, ROUNDS = 25, LARGEST = 20000, WAYS = 4 };
static int lfd;
static struct sockaddr_in address;
static atomic_int served;

static ssize_t get(int fd, void* buffer, size_t length, int way) {
  struct iovec parts[2] = {{buffer, length / 3}, {(char*)buffer + length / 3, length - length / 3}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  switch (way % WAYS) {
    case 0:
      return read(fd, buffer, length);
    case 1:
      return recv(fd, buffer, length, 0);
    case 2:
      return readv(fd, parts, 2);
    default:
      return way % 8 < 4 ? recvmsg(fd, &message, 0) : recvfrom(fd, buffer, length, 0, NULL, NULL);
  }
}

static ssize_t put(int fd, void* buffer, size_t length, int way) {
  struct iovec parts[2] = {{buffer, length / 2}, {(char*)buffer + length / 2, length - length / 2}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  switch (way % WAYS) {
    case 0:
      return write(fd, buffer, length);
    case 1:
      return send(fd, buffer, length, MSG_NOSIGNAL);
    case 2:
      return writev(fd, parts, 2);
    default:
      return way % 8 < 4 ? sendmsg(fd, &message, MSG_NOSIGNAL)
                         : sendto(fd, buffer, length, MSG_NOSIGNAL, NULL, 0);
  }
}

static void* serve(void* argument) {
  int fd = (int)(long)argument;
  char* buffer = malloc(LARGEST);
  ssize_t n;
  for (int i = fd; (n = get(fd, buffer, LARGEST, i)) > 0; i++) {
    ssize_t m = put(fd, buffer, (size_t)n, i + 1);
    CHECK(m == n, "server sent %zd of %zd: errno %d", m, n, errno);
  }
  CHECK(n == 0, "server received %zd: errno %d", n, errno);
  CHECK(close(fd) == 0, "close");
  free(buffer);
  served++;
  return NULL;
}

static void* accept_all(void* unused) {
  (void)unused;
  pthread_t t[CLIENTS];
  for (int i = 0; i < CLIENTS; i++) {
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    memset(&peer, 0, sizeof peer);
    int fd = accept(lfd, (struct sockaddr*)&peer, &length);
    NEED(fd >= 0);
    CHECK(
        length == sizeof peer && peer.sin_family == AF_INET && peer.sin_addr.s_addr == htonl(INADDR_LOOPBACK),
        "peer address");
    t[i] = start_thread(serve, (void*)(long)fd);
  }
  for (int i = 0; i < CLIENTS; i++) join_thread(t[i]);
  return NULL;
}

static void* client(void* argument) {
  int id = (int)(long)argument;
  int fd = connected_to(&address);
  char *out = malloc(LARGEST), *in = malloc(LARGEST);
  long position = id;
  for (int round = 0; round < ROUNDS; round++) {
    size_t length = (size_t)(round % 5 == 0 ? LARGEST : 1 + (id * 131 + round * 977) % 3000);
    fill_stream(out, position, length);
    memset(in, 0, length);
    ssize_t n = put(fd, out, length, id + round);
    CHECK(n == (ssize_t)length, "client sent %zd of %zu: errno %d", n, length, errno);
    for (size_t got = 0; got < length; got += (size_t)n)
      if ((n = get(fd, in + got, length - got, id + round)) <= 0) {
        CHECK(0, "client received %zd: errno %d", n, errno);
        return NULL;
      }
    CHECK(memcmp(in, out, length) == 0, "client %d, round %d: other bytes came back", id, round);
    position += (long)length;
  }
  CHECK(shutdown(fd, SHUT_WR) == 0, "shutdown");
  char rest;
  CHECK(read(fd, &rest, 1) == 0, "the server did not close");
  close(fd);
  free(out);
  free(in);
  return NULL;
}

int main(void) {
  check_begin();
  STAGE("echo");
  pthread_t t[CLIENTS];
  lfd = listener(&address, 128);
  pthread_t server = start_thread(accept_all, NULL);
  for (long i = 1; i < CLIENTS; i++) t[i] = start_thread(client, (void*)i);
  client((void*)0);
  for (int i = 1; i < CLIENTS; i++) join_thread(t[i]);
  join_thread(server);
  CHECK(served == CLIENTS, "%d of %d connections served", (int)served, CLIENTS);
  close(lfd);
  return check_end();
}
