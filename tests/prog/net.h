/* net.h: sockets on the loopback interface for the programs in tests/prog. */
#ifndef NET_H
#define NET_H

#include "check.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

static inline struct sockaddr_in loopback(void) {
  struct sockaddr_in a;
  memset(&a, 0, sizeof a);
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}

/* A socket bound to a free port of 127.0.0.1; *address is where it is. */
static inline int bound_socket(int type, struct sockaddr_in* address) {
  socklen_t length = sizeof *address;
  int fd = socket(AF_INET, type, 0);
  *address = loopback();
  NEED(fd >= 0 && bind(fd, (struct sockaddr*)address, sizeof *address) == 0);
  NEED(getsockname(fd, (struct sockaddr*)address, &length) == 0);
  return fd;
}

static inline int listener(struct sockaddr_in* address, int backlog) {
  int fd = bound_socket(SOCK_STREAM, address);
  NEED(listen(fd, backlog) == 0);
  return fd;
}

/* A blocking connection to `address`. */
static inline int connected_to(const struct sockaddr_in* address) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  NEED(fd >= 0);
  CHECK(connect(fd, (const struct sockaddr*)address, sizeof *address) == 0, "connect: %s", strerror(errno));
  return fd;
}

/* Two ends of one TCP connection. */
static inline void tcp_pair(int pair[2]) {
  struct sockaddr_in address;
  int lfd = listener(&address, 1);
  pair[0] = connected_to(&address);
  pair[1] = accept(lfd, NULL, NULL);
  NEED(pair[1] >= 0);
  close(lfd);
}

static inline void stream_pair(int pair[2]) { NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0); }

static inline void set_timeout(int fd, int option, long ms) {
  struct timeval tv;
  tv.tv_sec = ms / 1000;
  tv.tv_usec = ms % 1000 * 1000;
  NEED(setsockopt(fd, SOL_SOCKET, option, &tv, sizeof tv) == 0);
}

/* The byte at `position` of a stream that sender and receiver agree on. */
static inline unsigned char stream_byte(long position) {
  return (unsigned char)(position * 13 + (position >> 9));
}

static inline void fill_stream(void* buffer, long position, size_t length) {
  for (size_t i = 0; i < length; i++) ((unsigned char*)buffer)[i] = stream_byte(position + (long)i);
}

/* 1 if the buffer holds the stream from `position` on. */
static inline int is_stream(const void* buffer, long position, size_t length) {
  for (size_t i = 0; i < length; i++)
    if (((const unsigned char*)buffer)[i] != stream_byte(position + (long)i)) return 0;
  return 1;
}

/* Reads exactly `length` bytes with read(); 1 if they came. */
static inline int read_all(int fd, void* buffer, size_t length) {
  for (size_t got = 0; got < length;) {
    ssize_t n = read(fd, (char*)buffer + got, length - got);
    if (n <= 0) return 0;
    got += (size_t)n;
  }
  return 1;
}

#endif
