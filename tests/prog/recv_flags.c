/* Flags of recv and send on streams: MSG_WAITALL, MSG_PEEK, MSG_DONTWAIT, MSG_TRUNC, MSG_NOSIGNAL, MSG_MORE, MSG_OOB. */
#include "net.h"

static int use_tcp;
static void make_pair(int pair[2]) {
  if (use_tcp)
    tcp_pair(pair);
  else
    stream_pair(pair);
}

/* Sends 1,000 bytes in five pieces, with pauses. */
static void* in_pieces(void* argument) {
  unsigned char piece[200];
  for (int i = 0; i < 5; i++) {
    fill_stream(piece, i * 200, sizeof piece);
    pause_ms(5);
    CHECK(send(*(int*)argument, piece, sizeof piece, 0) == sizeof piece, "send: errno %d", errno);
  }
  return NULL;
}

static ssize_t receive(int way, int fd, void* buffer, size_t length, int flags) {
  struct iovec parts[3] = {{buffer, length / 4},
                           {(char*)buffer + length / 4, length / 4},
                           {(char*)buffer + length / 4 * 2, length - length / 4 * 2}};
  struct msghdr header = {.msg_iov = parts, .msg_iovlen = 3};
  return way == 0   ? recv(fd, buffer, length, flags)
         : way == 1 ? recvfrom(fd, buffer, length, flags, NULL, NULL)
                    : recvmsg(fd, &header, flags);
}

static void* flags_of(void* argument) {
  int way = (int)(long)argument, pair[2];
  unsigned char buffer[2000];
  make_pair(pair);

  pthread_t t = start_thread(in_pieces, &pair[1]);
  ssize_t n = receive(way, pair[0], buffer, 1000, MSG_WAITALL);
  CHECK(n == 1000 && is_stream(buffer, 0, 1000), "MSG_WAITALL: %zd", n);
  join_thread(t);

  t = start_thread(in_pieces, &pair[1]);
  n = receive(way, pair[0], buffer, 300, MSG_PEEK | MSG_WAITALL);
  /* a unix socket's peek stops at what one look finds */
  CHECK(use_tcp ? n == 300 : n > 0 && n <= 300, "MSG_PEEK with MSG_WAITALL: %zd", n);
  CHECK(n > 0 && is_stream(buffer, 0, (size_t)n), "peeked bytes");
  n = receive(way, pair[0], buffer, 1000, MSG_WAITALL);
  CHECK(n == 1000 && is_stream(buffer, 0, 1000), "after peek: %zd", n);
  join_thread(t);

  CHECK(receive(way, pair[0], buffer, 10, MSG_DONTWAIT) == -1 && errno == EAGAIN, "MSG_DONTWAIT: errno %d",
        errno);
  CHECK(receive(way, pair[0], buffer, 10, MSG_DONTWAIT | MSG_WAITALL) == -1 && errno == EAGAIN,
        "with MSG_WAITALL: %d", errno);
  CHECK(receive(way, pair[0], buffer, 10, MSG_DONTWAIT | MSG_PEEK) == -1 && errno == EAGAIN,
        "with MSG_PEEK: %d", errno);
  CHECK(!(fcntl(pair[0], F_GETFL) & O_NONBLOCK), "MSG_DONTWAIT left O_NONBLOCK behind");

  fill_stream(buffer, 0, 20);
  CHECK(send(pair[1], buffer, 20, MSG_DONTWAIT | MSG_NOSIGNAL) == 20, "send without waiting: errno %d",
        errno);
  for (int i = 0; i < 3; i++) {
    memset(buffer, 0, sizeof buffer);
    n = receive(way, pair[0], buffer, 8, MSG_PEEK);
    CHECK(n == 8 && is_stream(buffer, 0, 8), "peek %d: %zd", i, n);
  }
  n = receive(way, pair[0], buffer, 100, 0);
  CHECK(n == 20 && is_stream(buffer, 0, 20), "all of it: %zd", n);

  /* MSG_WAITALL ends early at the end of the stream */
  CHECK(send(pair[1], buffer, 7, 0) == 7, "send");
  shutdown(pair[1], SHUT_WR);
  n = receive(way, pair[0], buffer, 50, MSG_WAITALL);
  CHECK(n == 7, "MSG_WAITALL at the end of the stream: %zd", n);
  CHECK(receive(way, pair[0], buffer, 50, MSG_WAITALL) == 0, "end of file");
  close(pair[0]);
  CHECK(send(pair[1], "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE, "send after shutdown: errno %d", errno);
  close(pair[1]);
  return NULL;
}

/* A full buffer and MSG_DONTWAIT: part of it goes, then EAGAIN. */
static void* full(void* unused) {
  (void)unused;
  int pair[2];
  static const char block[65536];
  make_pair(pair);
  ssize_t n;
  long sent = 0, got = 0;
  while ((n = send(pair[1], block, sizeof block, MSG_DONTWAIT)) > 0) sent += n;
  CHECK(n == -1 && errno == EAGAIN, "full: %zd, errno %d", n, errno);
  char* sink = malloc(sizeof block);
  while (got < sent && (n = recv(pair[0], sink, sizeof block, 0)) > 0) got += n;
  CHECK(got == sent, "%ld sent, %ld received", sent, got);
  CHECK(recv(pair[0], sink, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN, "surplus");
  free(sink);
  close(pair[0]);
  close(pair[1]);
  return NULL;
}

static void* tcp_only(void* unused) {
  (void)unused;
  int pair[2];
  char buffer[64];
  tcp_pair(pair);
  CHECK(send(pair[1], "abc", 3, MSG_MORE) == 3 && send(pair[1], "def", 3, 0) == 3, "MSG_MORE");
  CHECK(recv(pair[0], buffer, 6, MSG_WAITALL) == 6 && !memcmp(buffer, "abcdef", 6), "both pieces");
  CHECK(send(pair[1], "12345678", 8, 0) == 8, "send");
  CHECK(recv(pair[0], NULL, 5, MSG_TRUNC | MSG_WAITALL) == 5, "discard five bytes");
  CHECK(recv(pair[0], buffer, 5, 0) == 3 && !memcmp(buffer, "678", 3), "the rest");
  CHECK(send(pair[1], "!", 1, MSG_OOB) == 1, "urgent byte");
  CHECK(EVENTUALLY(recv(pair[0], buffer, 1, MSG_OOB) == 1), "no urgent byte: errno %d", errno);
  CHECK(buffer[0] == '!', "urgent byte '%c'", buffer[0]);
  close(pair[0]);
  close(pair[1]);
  return NULL;
}

int main(void) {
  check_begin();
  signal(SIGPIPE, SIG_IGN);
  for (use_tcp = 0; use_tcp < 2; use_tcp++) {
    STAGE(use_tcp ? "TCP" : "unix stream");
    pthread_t t[4];
    for (long way = 0; way < 3; way++) t[way] = start_thread(flags_of, (void*)way);
    t[3] = start_thread(full, NULL);
    for (int i = 0; i < 4; i++) join_thread(t[i]);
    for (long way = 0; way < 3; way++) flags_of((void*)way);
    full(NULL);
  }
  STAGE("TCP only");
  join_thread(start_thread(tcp_only, NULL));
  tcp_only(NULL);
  return check_end();
}
