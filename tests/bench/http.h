/* What both bench servers share: the listening socket, the request scanner and the answer. They differ only
 * in how they wait.
 *
 * Enough HTTP/1.1 for wrk and curl: requests without a body, pipelined or not, on connections that the client
 * closes. */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define BODY                                          \
  "0123456789012345678901234567890123456789012345678" \
  "01234567890123456789012345678901234567890123456789\n"
#define ANSWER "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\n" BODY
#define FOUR_TIMES(s) s s s s

enum { REQUEST_MAX = 4096, ANSWER_LENGTH = sizeof(ANSWER) - 1 };
_Static_assert(sizeof(BODY) - 1 == 100, "the Content-Length above is 100");

/* Answers are all the same, so what a connection still has to send is a number of bytes: its place in one
 * answer follows. */
static const char answers[] = FOUR_TIMES(FOUR_TIMES(ANSWER));

/* Counts the complete requests at the start of `data`; *used is their length. */
static size_t count_requests(const char* data, size_t length, size_t* used) {
  size_t count = 0;
  *used = 0;
  for (const char* end; (end = memmem(data + *used, length - *used, "\r\n\r\n", 4)); count++)
    *used = (size_t)(end - data) + 4;
  return count;
}

/* Writes owed bytes of answers until none is left (0) or a write fails (-1, errno). */
static int write_answers(int fd, size_t* owed) {
  while (*owed > 0) {
    size_t skip = (ANSWER_LENGTH - *owed % ANSWER_LENGTH) % ANSWER_LENGTH;
    size_t most = sizeof(answers) - 1 - skip;
    ssize_t written = write(fd, answers + skip, *owed < most ? *owed : most);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return -1;
    *owed -= (size_t)written;
  }
  return 0;
}

static void die(const char* what) {
  perror(what);
  exit(1);
}

/* Listens on a free port of 127.0.0.1 (or on `port`) and prints "port N". */
static int listen_and_say(int port) {
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  signal(SIGPIPE, SIG_IGN);

  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) die("socket");
  int one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(listener, (struct sockaddr*)&address, sizeof address) < 0) die("bind");
  if (listen(listener, 65535) < 0) die("listen");
  socklen_t size = sizeof address;
  if (getsockname(listener, (struct sockaddr*)&address, &size) < 0) die("getsockname");
  printf("port %d\n", ntohs(address.sin_port));
  fflush(stdout);
  return listener;
}

/* The next connection, or -1 when there is none to be had just now. */
static int accept_connection(int listener, int flags) {
  int fd = accept4(listener, NULL, NULL, flags | SOCK_CLOEXEC);
  if (fd >= 0) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
    usleep(1000);
  } else if (errno != EINTR && errno != ECONNABORTED) {
    die("accept4");
  }
  return fd;
}
