/* SIGPIPE: raised in the writing thread, ends the process by default, not with MSG_NOSIGNAL or when ignored. */
#include "net.h"

#include <sys/resource.h>

static __thread volatile int hits;
static void handler(int unused) {
  (void)unused;
  hits++;
}

static ssize_t put(int way, int fd) {
  struct iovec part = {(void*)"x", 1};
  struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
  switch (way) {
    case 0:
      return write(fd, "x", 1);
    case 1:
      return writev(fd, &part, 1);
    case 2:
      return send(fd, "x", 1, 0);
    case 3:
      return sendmsg(fd, &header, 0);
    case 4:
      return sendto(fd, "x", 1, 0, NULL, 0);
    default:
      return send(fd, "x", 1, MSG_NOSIGNAL);
  }
}

/* A socket or pipe without a reader. */
static int broken(int is_pipe) {
  int p[2];
  if (is_pipe)
    NEED(pipe(p) == 0);
  else
    stream_pair(p);
  close(p[0]);
  return p[1];
}

static void* writers(void* argument) {
  int expect = argument != NULL;
  for (int way = 0; way < 6; way++)
    for (int is_pipe = 0; is_pipe < (way < 2 ? 2 : 1); is_pipe++) {
      int fd = broken(is_pipe);
      hits = 0;
      errno = 0;
      CHECK(put(way, fd) == -1 && errno == EPIPE, "way %d: errno %d", way, errno);
      CHECK(hits == (expect && way < 5), "way %d: the handler ran %d times in the writer", way, hits);
      close(fd);
    }
  return NULL;
}

struct blocked {
  int fd, is_pipe;
};
static void* write_blocked(void* argument) {
  struct blocked* b = argument;
  static const char block[1 << 20];
  ssize_t n;
  long total = 0;
  hits = 0;
  while ((n = write(b->fd, block, sizeof block)) > 0) total += n;
  /* a pipe's write that was cut short raises the signal too, a socket's does not */
  int want = b->is_pipe && total > 0 ? 2 : 1;
  CHECK(n == -1 && errno == EPIPE && hits == want, "a writer that slept: %zd, errno %d, %d signals", n, errno,
        hits);
  return NULL;
}

static void* just_write(void* argument) {
  int fd = broken(0);
  put((int)(long)argument, fd);
  return NULL;
}
static int by_default(void* argument) {
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  signal(SIGPIPE, SIG_DFL);
  join_thread(start_thread(just_write, argument));
  return 17;
}

int main(void) {
  check_begin();
  pthread_t t[6];
  STAGE("by default");
  for (long way = 0; way < 5; way++) {
    int status = in_child(by_default, (void*)way);
    CHECK(killed_by(status, SIGPIPE), "way %ld: status %#x", way, status);
  }
  CHECK(exited_with(in_child(by_default, (void*)5), 17), "MSG_NOSIGNAL");
  STAGE("with a handler");
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  NEED(sigaction(SIGPIPE, &action, NULL) == 0);
  for (int i = 0; i < 6; i++) t[i] = start_thread(writers, (void*)1);
  for (int i = 0; i < 6; i++) join_thread(t[i]);
  CHECK(hits == 0, "main got a SIGPIPE of a thread");
  writers((void*)1);
  STAGE("a writer that sleeps");
  for (int kind = 0; kind < 2; kind++) {
    int p[2];
    if (kind)
      NEED(pipe(p) == 0);
    else
      stream_pair(p);
    struct blocked b = {p[1], kind};
    t[0] = start_thread(write_blocked, &b);
    pause_ms(60);
    close(p[0]);
    join_thread(t[0]);
    close(p[1]);
  }
  STAGE("ignored");
  signal(SIGPIPE, SIG_IGN);
  join_thread(start_thread(writers, NULL));
  writers(NULL);
  return check_end();
}
