/* UDP and unix datagram sockets: boundaries, truncation, addresses, many senders, connected sockets, full queues. */
#include "net.h"

#include <poll.h>

enum { SENDERS = 10, EACH = 100 };
static struct sockaddr_in address;
static int server;

static void* sender(void* argument) {
  uint32_t id = (uint32_t)(long)argument, message[2], answer[2];
  struct sockaddr_in own, from;
  int fd = bound_socket(SOCK_DGRAM, &own);
  for (uint32_t i = 0; i < EACH; i++) {
    socklen_t length = sizeof from;
    message[0] = id;
    message[1] = i;
    CHECK(
        sendto(fd, message, sizeof message, 0, (struct sockaddr*)&address, sizeof address) == sizeof message,
        "sendto: %d", errno);
    CHECK(recvfrom(fd, answer, sizeof answer, 0, (struct sockaddr*)&from, &length) == sizeof answer,
          "recvfrom: %d", errno);
    CHECK(answer[0] == id && answer[1] == i + 1, "sender %u got (%u, %u) for %u", id, answer[0], answer[1],
          i);
    CHECK(from.sin_port == address.sin_port && length == sizeof from, "the answer comes from elsewhere");
  }
  close(fd);
  return NULL;
}

/* Several threads serve one socket. */
static void* answer_some(void* argument) {
  int served = 0;
  for (;;) {
    uint32_t message[2];
    struct sockaddr_in from;
    struct iovec part = {message, sizeof message};
    struct msghdr header = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &part, .msg_iovlen = 1};
    ssize_t n = recvmsg(server, &header, 0);
    CHECK(n == sizeof message && header.msg_namelen == sizeof from, "recvmsg: %zd, errno %d", n, errno);
    if (n != sizeof message || message[0] == 9999) return (void*)(long)served;
    message[1]++;
    header.msg_flags = 0;
    CHECK(sendmsg(server, &header, 0) == sizeof message, "sendmsg: errno %d", errno);
    served++;
    (void)argument;
  }
}

static void many(void) {
  STAGE("many senders, many servers");
  pthread_t s[4], c[SENDERS];
  long served = 0;
  server = bound_socket(SOCK_DGRAM, &address);
  for (int i = 0; i < 4; i++) s[i] = start_thread(answer_some, NULL);
  for (long i = 0; i < SENDERS; i++) c[i] = start_thread(sender, (void*)i);
  for (int i = 0; i < SENDERS; i++) join_thread(c[i]);
  uint32_t stop[2] = {9999, 0};
  for (int i = 0; i < 4; i++)
    NEED(sendto(server, stop, sizeof stop, 0, (struct sockaddr*)&address, sizeof address) == sizeof stop);
  for (int i = 0; i < 4; i++) served += (long)join_thread(s[i]);
  CHECK(served == SENDERS * EACH, "%ld messages answered", served);
  close(server);
}

static void* send_later(void* argument) {
  pause_ms(40);
  CHECK(send(*(int*)argument, "0123456789", 10, 0) == 10, "send: errno %d", errno);
  return NULL;
}

/* Each of these gets the ten bytes that another thread sends while it waits. */
static void* boundaries(void* argument) {
  int domain = (int)(long)argument, pair[2];
  char buffer[32];
  struct sockaddr_in a, b;
  if (domain == AF_UNIX) {
    NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
  } else {
    pair[0] = bound_socket(SOCK_DGRAM, &a);
    pair[1] = bound_socket(SOCK_DGRAM, &b);
    NEED(connect(pair[0], (struct sockaddr*)&b, sizeof b) == 0 &&
         connect(pair[1], (struct sockaddr*)&a, sizeof a) == 0);
  }
  struct iovec parts[2] = {{buffer, 3}, {buffer + 3, 2}};
  struct msghdr header;
  for (int way = 0; way < 6; way++) {
    pthread_t t = start_thread(send_later, &pair[1]);
    ssize_t n = -1;
    memset(buffer, 0, sizeof buffer);
    memset(&header, 0, sizeof header);
    header.msg_iov = parts;
    header.msg_iovlen = 2;
    switch (way) {
      case 0:
        n = read(pair[0], buffer, sizeof buffer);
        CHECK(n == 10 && !memcmp(buffer, "0123456789", 10), "read: %zd", n);
        break;
      case 1:
        n = recv(pair[0], buffer, 4, 0);
        CHECK(n == 4 && !memcmp(buffer, "0123\0", 5), "recv of 4: %zd", n);
        break;
      case 2:
        n = recv(pair[0], buffer, 4, MSG_TRUNC);
        CHECK(n == 10 && !memcmp(buffer, "0123\0", 5), "recv of 4 with MSG_TRUNC: %zd", n);
        break;
      case 3:
        n = recvmsg(pair[0], &header, 0);
        CHECK(n == 5 && (header.msg_flags & MSG_TRUNC), "recvmsg of 5: %zd, flags %x", n, header.msg_flags);
        break;
      case 4:
        n = recv(pair[0], buffer, sizeof buffer, MSG_PEEK);
        CHECK(n == 10, "peek: %zd", n);
        n = recv(pair[0], buffer, sizeof buffer, MSG_DONTWAIT);
        CHECK(n == 10, "recv after peek: %zd", n);
        break;
      case 5:
        n = recv(pair[0], buffer, sizeof buffer, MSG_WAITALL); /* one message is all */
        CHECK(n == 10, "recv with MSG_WAITALL: %zd", n);
        break;
    }
    CHECK(recv(pair[0], buffer, sizeof buffer, MSG_DONTWAIT) == -1 && errno == EAGAIN,
          "something is left: errno %d", errno);
    join_thread(t);
  }
  /* an empty message is a message */
  CHECK(send(pair[1], "", 0, 0) == 0 && recv(pair[0], buffer, 4, 0) == 0, "empty message");
  CHECK(write(pair[1], "x", 1) == 1 && recv(pair[0], NULL, 0, 0) == 0,
        "receive of nothing takes the message");
  CHECK(recv(pair[0], buffer, 4, MSG_DONTWAIT) == -1 && errno == EAGAIN,
        "the message is still there: errno %d", errno);
  close(pair[0]);
  close(pair[1]);
  return NULL;
}

/* A full queue of a unix socket blocks the sender. */
static void* flood(void* argument) {
  uint32_t i;
  for (i = 0; i < 2000; i++)
    if (send(*(int*)argument, &i, sizeof i, 0) != sizeof i) {
      CHECK(0, "send %u: errno %d", i, errno);
      break;
    }
  return (void*)(long)i;
}
static void* full_queue(void* unused) {
  (void)unused;
  int pair[2];
  NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
  pthread_t t = start_thread(flood, &pair[1]);
  pause_ms(60);
  for (uint32_t want = 0, got; want < 2000; want++) {
    ssize_t n = recv(pair[0], &got, sizeof got, 0);
    CHECK(n == sizeof got && got == want, "message %u is %u", want, got);
  }
  CHECK(join_thread(t) == (void*)2000, "messages sent");
  close(pair[0]);
  close(pair[1]);
  return NULL;
}

/* The error of an unreachable port comes with the next call on a connected socket. */
static void* refused(void* unused) {
  (void)unused;
  struct sockaddr_in nobody, own;
  char c;
  int gone = bound_socket(SOCK_DGRAM, &nobody), fd = bound_socket(SOCK_DGRAM, &own);
  NEED(connect(fd, (struct sockaddr*)&nobody, sizeof nobody) == 0);
  close(gone);
  CHECK(send(fd, "x", 1, 0) == 1, "send: errno %d", errno);
  CHECK(recv(fd, &c, 1, 0) == -1 && errno == ECONNREFUSED, "recv: errno %d", errno);
  close(fd);
  return NULL;
}

int main(void) {
  check_begin();
  many();
  static void* (*const parts[])(void*) = {boundaries, boundaries, full_queue, refused};
  static const long arguments[] = {AF_INET, AF_UNIX, 0, 0};
  static const char* const names[] = {"boundaries of UDP", "boundaries of unix datagrams", "full queue",
                                      "refused"};
  for (int i = 0; i < COUNT_OF(parts); i++) {
    STAGE(names[i]);
    pthread_t t = start_thread(parts[i], (void*)arguments[i]);
    parts[i]((void*)arguments[i]);
    join_thread(t);
  }
  return check_end();
}
