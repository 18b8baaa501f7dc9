/* The peer of http_threads: the same answers from one epoll loop per CPU, written by hand. It shows what this
 * machine can do.
 *
 *   http_epoll [-p PORT] [-t LOOPS]
 *
 * The initial thread accepts and deals connections to the loops in turn: SO_REUSEPORT would spread 64
 * connections unevenly over two loops. Level-triggered, one read an event: a second read that finds nothing
 * costs more than the rare second event. */
#define _GNU_SOURCE
#include "http.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>

struct connection {
  int fd;
  unsigned length; /* bytes of an incomplete request */
  size_t owed;     /* bytes of answers that the socket did not take */
  char* rest;      /* the incomplete request, NULL for most connections at most times */
};

static void drop(struct connection* c) {
  close(c->fd); /* the only descriptor of the file: epoll forgets it */
  free(c->rest);
  free(c);
}

/* Sends what is owed; while something remains, waits for room in the socket rather than for requests. False:
 * the connection is dead. */
static int flush_owed(int loop, struct connection* c, int was_waiting) {
  int failed = write_answers(c->fd, &c->owed) < 0;
  if (failed && errno != EAGAIN) return 0;
  if (failed == was_waiting) return 1;
  struct epoll_event event = {.events = failed ? EPOLLOUT : EPOLLIN, .data.ptr = c};
  return epoll_ctl(loop, EPOLL_CTL_MOD, c->fd, &event) == 0;
}

static int on_readable(int loop, struct connection* c) {
  char data[REQUEST_MAX];
  size_t length = c->length;
  if (length) memcpy(data, c->rest, length);
  ssize_t got = read(c->fd, data + length, sizeof data - length);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return 0;
  length += (size_t)got;

  size_t used;
  c->owed = count_requests(data, length, &used) * ANSWER_LENGTH;
  c->length = (unsigned)(length - used);
  if (c->length) {
    if (!c->rest && !(c->rest = malloc(REQUEST_MAX))) return 0;
    memcpy(c->rest, data + used, c->length);
  }
  return flush_owed(loop, c, 0);
}

static void* run_loop(void* argument) {
  int loop = *(int*)argument;
  struct epoll_event events[512];
  for (;;) {
    int count = epoll_wait(loop, events, sizeof events / sizeof *events, -1);
    if (count < 0 && errno != EINTR) die("epoll_wait");
    for (int i = 0; i < count; i++) {
      struct connection* c = events[i].data.ptr;
      int alive = c->owed ? flush_owed(loop, c, 1) : on_readable(loop, c);
      if (!alive) drop(c);
    }
  }
  return NULL;
}

static int cpus(void) {
  cpu_set_t mask;
  return sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
}

int main(int argc, char** argv) {
  int port = 0;
  int wanted = cpus();
  for (int option; (option = getopt(argc, argv, "p:t:")) != -1;) {
    if (option == 'p')
      port = atoi(optarg);
    else if (option == 't')
      wanted = atoi(optarg);
    else
      return 2;
  }
  if (wanted < 1) wanted = 1;

  int* loops = calloc((size_t)wanted, sizeof *loops);
  if (!loops) die("calloc");
  for (int i = 0; i < wanted; i++) {
    pthread_t thread;
    if ((loops[i] = epoll_create1(EPOLL_CLOEXEC)) < 0) die("epoll_create1");
    if ((errno = pthread_create(&thread, NULL, run_loop, &loops[i]))) die("pthread_create");
  }

  int listener = listen_and_say(port);
  for (unsigned turn = 0;; turn++) {
    int fd = accept_connection(listener, SOCK_NONBLOCK);
    if (fd < 0) continue;
    struct connection* c = calloc(1, sizeof *c);
    if (!c) {
      close(fd);
      continue;
    }
    c->fd = fd;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(loops[turn % (unsigned)wanted], EPOLL_CTL_ADD, fd, &event) < 0) drop(c);
  }
}
