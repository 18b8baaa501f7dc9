/*
 * A descriptor that is closed, or replaced, while a thread waits for it: the thread goes on waiting for the file that it
 * was, whose other end notices nothing, and gets that file's bytes, never those of the file that has the number now.
 */
#include "net.h"

#include <poll.h>
#include <sys/syscall.h>

enum { RECV, READ, RECVMSG, WRITE, POLL, ACCEPT, KINDS };
static const char* const kind_name[] = {"recv", "read of a pipe", "recvmsg", "write to a pipe", "poll", "accept"};
enum { CLOSE, DUP2, DUP3, RANGE, BY_NUMBER, WAYS };

struct wait {
  int kind, fd, error;
  ssize_t result;
  char bytes[8];
  volatile int begun, ended;
};

static void* waits(void* argument) {
  struct wait* w = argument;
  struct iovec iov = {w->bytes, sizeof w->bytes};
  struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
  struct pollfd p = {w->fd, POLLIN, 0};
  w->begun = 1;
  errno = 0;
  switch (w->kind) {
    case RECV: w->result = recv(w->fd, w->bytes, sizeof w->bytes, 0); break;
    case READ: w->result = read(w->fd, w->bytes, sizeof w->bytes); break;
    case RECVMSG: w->result = recvmsg(w->fd, &m, 0); break;
    case WRITE: w->result = write(w->fd, "written", 7); break;
    case POLL: w->result = poll(&p, 1, 20000); break;
    case ACCEPT: w->result = accept(w->fd, NULL, NULL); break;
  }
  w->error = errno;
  if (w->kind == POLL) w->error = p.revents;
  w->ended = 1;
  return NULL;
}

static void take_away(int way, int fd, int other) {
  switch (way) {
    case CLOSE: CHECK(close(fd) == 0, "close"); break;
    case DUP2: CHECK(dup2(other, fd) == fd, "dup2"); break;
    case DUP3: CHECK(dup3(other, fd, O_CLOEXEC) == fd, "dup3"); break;
    case RANGE: CHECK(close_range((unsigned)fd, (unsigned)fd, 0) == 0, "close_range"); break;
    case BY_NUMBER: CHECK(syscall(SYS_close, fd) == 0, "close by number"); break;
  }
}

/* How long the pauses are; longer after a try in which the thread came too late to its wait. */
static int patience = 40;

static int attempt(int kind, int way) {
  struct sockaddr_in address;
  int p[2], decoy[2], fresh;
  char b[8], full[4096] = {0};
  stream_pair(decoy);
  if (kind == READ || kind == WRITE) {
    NEED(pipe(p) == 0);
    if (kind == WRITE) {
      int t = p[0];
      p[0] = p[1];
      p[1] = t;
      NEED(fcntl(p[0], F_SETFL, O_NONBLOCK) == 0);
      while (write(p[0], full, sizeof full) > 0) {}
      NEED(fcntl(p[0], F_SETFL, 0) == 0);
    }
  } else if (kind == ACCEPT) {
    p[0] = listener(&address, 4);
    p[1] = -1;
  } else if (way % 2) {
    tcp_pair(p);
  } else {
    stream_pair(p);
  }
  struct wait w = {.kind = kind, .fd = p[0]};
  pthread_t t = start_thread(waits, &w);
  while (!w.begun) pause_ms(1);
  pause_ms(patience);
  take_away(way, p[0], decoy[0]);
  pause_ms(patience);
  if (w.ended) { /* it had not begun to wait */
    join_thread(t);
    if (p[1] >= 0) close(p[1]);
    if (way == DUP2 || way == DUP3) close(p[0]);
    close(decoy[0]);
    close(decoy[1]);
    return 0;
  }
  if (way == DUP2 || way == DUP3) {
    fresh = p[0];
  } else {
    fresh = dup(decoy[0]);
    if (fresh != p[0]) {
      CHECK(dup2(fresh, p[0]) == p[0], "the number again");
      close(fresh);
      fresh = p[0];
    }
  }
  CHECK(send(decoy[1], "new", 3, 0) == 3, "bytes for the new file");
  if (kind == ACCEPT) {
    int c = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(c, (struct sockaddr*)&address, sizeof address) == 0, "the listener lives: errno %d", errno);
    join_thread(t);
    CHECK(w.result >= 0, "accept after way %d: %zd, errno %d", way, w.result, w.error);
    close((int)w.result);
    close(c);
  } else if (kind == WRITE) {
    struct pollfd end = {p[1], POLLIN, 0};
    CHECK(poll(&end, 1, 0) == 1 && !(end.revents & POLLHUP), "way %d: the reader sees %x", way, end.revents);
    size_t got = 0;
    ssize_t n;
    char last[7] = "";
    while ((n = read(p[1], full, sizeof full)) > 0) {
      got += (size_t)n;
      if (n >= 7) memcpy(last, full + n - 7, 7);
    }
    CHECK(n == 0 && got >= 7 && !memcmp(last, "written", 7), "way %d: the reader got %zu, end %.7s", way, got, last);
    join_thread(t);
    CHECK(w.result == 7, "write after way %d: %zd, errno %d", way, w.result, w.error);
  } else {
    struct pollfd end = {p[1], kind == READ ? 0 : POLLIN, 0};
    CHECK(poll(&end, 1, 0) == 0, "%s, way %d: the other end sees %x", kind_name[kind], way, end.revents);
    CHECK(write(p[1], "old", 3) == 3, "bytes for the old file: errno %d", errno);
    join_thread(t);
    if (kind == POLL)
      CHECK(w.result == 1 && w.error == POLLIN, "poll after way %d: %zd, %x", way, w.result, w.error);
    else
      CHECK(w.result == 3 && !memcmp(w.bytes, "old", 3), "%s, way %d: %zd, errno %d, %.3s", kind_name[kind], way,
            w.result, w.error, w.bytes);
    /* the last one to hold it has let go */
    end.events = POLLIN;
    CHECK(poll(&end, 1, 15000) == 1 && (end.revents & (POLLHUP | POLLERR | POLLIN)), "%s, way %d: not closed",
          kind_name[kind], way);
  }
  CHECK(recv(fresh, b, sizeof b, MSG_DONTWAIT) == 3 && !memcmp(b, "new", 3), "%s, way %d: the new file's bytes",
        kind_name[kind], way);
  close(fresh);
  if (p[1] >= 0) close(p[1]);
  close(decoy[0]);
  close(decoy[1]);
  return 1;
}

/* Many wait for one descriptor, for both directions, with time-outs. */
static void* waits_in_vain(void* argument) {
  int fd = *(int*)argument;
  char c;
  struct pollfd p = {fd, POLLIN, 0};
  errno = 0;
  CHECK(recv(fd, &c, 1, 0) == -1 && errno == EAGAIN, "recv with a time-out: errno %d", errno);
  CHECK(poll(&p, 1, 50) == 1 && p.revents == POLLNVAL, "poll of what is closed by now: %x", p.revents);
  return NULL;
}
static void many(void) {
  int p[2];
  pthread_t t[20];
  struct timeval limit = {0, 400000};
  stream_pair(p);
  NEED(setsockopt(p[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
  for (int i = 0; i < 20; i++) t[i] = start_thread(waits_in_vain, &p[0]);
  pause_ms(150);
  int fd = p[0];
  close(fd);
  for (int i = 0; i < 20; i++) join_thread(t[i]);
  struct pollfd end = {p[1], POLLIN, 0};
  CHECK(poll(&end, 1, 15000) == 1 && (end.revents & POLLHUP), "not closed: %x", end.revents);
  close(p[1]);
}

static void* each(void* unused) {
  (void)unused;
  for (int kind = 0; kind < KINDS; kind++) {
    STAGE(kind_name[kind]);
    for (int way = 0; way < WAYS; way++) {
      int done = 0;
      for (int i = 0; i < 6 && !done; i++) {
        done = attempt(kind, way);
        if (!done) patience *= 2;
      }
      CHECK(done, "%s, way %d: the wait ended with the close", kind_name[kind], way);
    }
  }
  STAGE("many");
  many();
  return NULL;
}

int main(void) {
  check_begin();
  join_thread(start_thread(each, NULL));
  return check_end();
}
