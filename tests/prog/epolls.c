/* epoll: level and edge triggering, one-shot, time-outs, nested sets, several waiters, errors. */
#include "net.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

static void add(int ep, int fd, uint32_t events, uint64_t data) {
  struct epoll_event e = {.events = events, .data.u64 = data};
  NEED(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e) == 0);
}

static int wait_for(int way, int ep, struct epoll_event* e, int n, int ms) {
  return way ? epoll_pwait(ep, e, n, ms, NULL) : epoll_wait(ep, e, n, ms);
}

static void* write_late(void* argument) {
  pause_ms(40);
  CHECK(write(*(int*)argument, "12345", 5) == 5, "write");
  return NULL;
}

static void* triggers(void* argument) {
  int way = (int)(long)argument, s[2], ep = epoll_create1(EPOLL_CLOEXEC), n;
  char b[16];
  struct epoll_event e[4];
  stream_pair(s);
  /* level */
  add(ep, s[0], EPOLLIN, 42);
  double begin = now();
  CHECK((n = wait_for(way, ep, e, 4, 80)) == 0 && now() - begin >= 0.079, "time-out: %d after %.4f s", n,
        now() - begin);
  CHECK((n = wait_for(way, ep, e, 4, 0)) == 0, "no time: %d", n);
  pthread_t t = start_thread(write_late, &s[1]);
  CHECK((n = wait_for(way, ep, e, 4, -1)) == 1 && e[0].data.u64 == 42 && e[0].events == EPOLLIN, "ready: %d",
        n);
  join_thread(t);
  CHECK(read(s[0], b, 2) == 2, "read");
  CHECK((n = wait_for(way, ep, e, 4, 20000)) == 1, "level: %d while data are there", n);
  CHECK(read(s[0], b, sizeof b) == 3 && (n = wait_for(way, ep, e, 4, 0)) == 0, "level: %d after all was read",
        n);
  /* edge */
  e[0] = (struct epoll_event){.events = EPOLLIN | EPOLLET, .data.u64 = 43};
  CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, s[0], e) == 0, "modify");
  t = start_thread(write_late, &s[1]);
  CHECK((n = wait_for(way, ep, e, 4, 20000)) == 1 && e[0].data.u64 == 43, "edge: %d", n);
  join_thread(t);
  CHECK((n = wait_for(way, ep, e, 4, 30)) == 0, "edge: %d although nothing new came", n);
  CHECK(write(s[1], "x", 1) == 1 && (n = wait_for(way, ep, e, 4, 20000)) == 1, "edge: %d after more data", n);
  CHECK(read(s[0], b, sizeof b) == 6, "read");
  /* one-shot */
  e[0] = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 44};
  CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, s[0], e) == 0, "modify");
  CHECK(write(s[1], "x", 1) == 1 && (n = wait_for(way, ep, e, 4, 20000)) == 1 && e[0].data.u64 == 44,
        "one-shot: %d", n);
  CHECK((n = wait_for(way, ep, e, 4, 30)) == 0, "one-shot: %d for the second time", n);
  e[0] = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 45};
  CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, s[0], e) == 0, "arm again");
  CHECK((n = wait_for(way, ep, e, 4, 20000)) == 1 && e[0].data.u64 == 45, "armed again: %d", n);
  /* hang-up, then gone by close */
  close(s[1]);
  e[0] = (struct epoll_event){.events = EPOLLIN | EPOLLRDHUP, .data.u64 = 46};
  CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, s[0], e) == 0, "modify");
  CHECK((n = wait_for(way, ep, e, 4, 20000)) == 1 && e[0].events == (EPOLLIN | EPOLLRDHUP | EPOLLHUP),
        "hang-up: %x", e[0].events);
  close(s[0]);
  CHECK((n = wait_for(way, ep, e, 4, 0)) == 0, "a closed descriptor: %d", n);
  close(ep);
  return NULL;
}

static void* errors(void* unused) {
  (void)unused;
  int ep = epoll_create1(0), p[2], dir = open("/", O_RDONLY);
  struct epoll_event e = {.events = EPOLLIN};
  volatile int negative = -3;
  NEED(pipe(p) == 0);
  CHECK(epoll_wait(-1, &e, 1, 0) == -1 && errno == EBADF, "no descriptor: errno %d", errno);
  CHECK(epoll_wait(p[0], &e, 1, 0) == -1 && errno == EINVAL, "not an epoll: errno %d", errno);
  CHECK(epoll_wait(ep, &e, 0, 0) == -1 && errno == EINVAL, "no room: errno %d", errno);
  CHECK(epoll_wait(ep, &e, negative, 0) == -1 && errno == EINVAL, "negative room: errno %d", errno);
  add(ep, p[0], EPOLLIN, 1);
  CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &e) == -1 && errno == EEXIST, "added twice: errno %d", errno);
  CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, p[1], &e) == -1 && errno == ENOENT, "not there: errno %d", errno);
  CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, dir, &e) == -1 && errno == EPERM, "a directory: errno %d", errno);
  CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, ep, &e) == -1 && errno == EINVAL, "itself: errno %d", errno);
  CHECK(write(p[1], "x", 1) == 1, "write");
  CHECK(epoll_wait(ep, wild_address(), 1, 1000) == -1 && errno == EFAULT, "a bad address: errno %d", errno);
  close(p[0]);
  close(p[1]);
  close(dir);
  close(ep);
  return NULL;
}

/* An epoll within an epoll, waited for by epoll_wait and poll. */
static void* nested(void* unused) {
  (void)unused;
  int inner = epoll_create1(0), outer = epoll_create1(0), s[2];
  char b[8];
  struct epoll_event e;
  stream_pair(s);
  add(inner, s[0], EPOLLIN, 7);
  add(outer, inner, EPOLLIN, 8);
  for (int way = 0; way < 3; way++) {
    pthread_t t = start_thread(write_late, &s[1]);
    if (way == 0) {
      CHECK(epoll_wait(outer, &e, 1, -1) == 1 && e.data.u64 == 8, "outer");
    } else {
      struct pollfd p = {way == 1 ? inner : outer, POLLIN, 0};
      CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLIN, "poll: %x", p.revents);
    }
    CHECK(epoll_wait(inner, &e, 1, 0) == 1 && e.data.u64 == 7, "inner");
    join_thread(t);
    CHECK(read(s[0], b, sizeof b) == 5, "read");
  }
  close(inner);
  close(outer);
  close(s[0]);
  close(s[1]);
  return NULL;
}

/* A descriptor is added while another thread waits already. */
static void* wait_once(void* argument) {
  struct epoll_event e;
  CHECK(epoll_wait(*(int*)argument, &e, 1, -1) == 1, "wait");
  return (void*)(long)e.data.u64;
}
static void added_later(void) {
  STAGE("added while somebody waits");
  int ep = epoll_create1(0), ev = eventfd(5, 0);
  pthread_t t = start_thread(wait_once, &ep);
  pause_ms(40);
  add(ep, ev, EPOLLIN, 99);
  CHECK(join_thread(t) == (void*)99, "data of the event");
  close(ev);
  close(ep);
}

/* A pool of threads on one epoll, one-shot connections: each request is handled once. */
enum { CONNECTIONS = 40, REQUESTS = 30, POOL = 8 };
static int pool_ep, stop_event;
static atomic_int handled;
static void* pool_thread(void* unused) {
  (void)unused;
  struct epoll_event e[4];
  for (;;) {
    int n = epoll_wait(pool_ep, e, 4, -1);
    NEED(n > 0);
    for (int i = 0; i < n; i++) {
      int fd = e[i].data.fd;
      unsigned char request;
      if (fd == stop_event) return NULL;
      CHECK(read(fd, &request, 1) == 1, "request: errno %d", errno);
      handled++;
      request++;
      CHECK(write(fd, &request, 1) == 1, "answer");
      e[i].events = EPOLLIN | EPOLLONESHOT;
      CHECK(epoll_ctl(pool_ep, EPOLL_CTL_MOD, fd, &e[i]) == 0, "arm again");
    }
  }
}
static void* client(void* argument) {
  int s[2];
  stream_pair(s);
  add(pool_ep, s[1], EPOLLIN | EPOLLONESHOT, (uint64_t)s[1]);
  for (int i = 0; i < REQUESTS; i++) {
    unsigned char out = (unsigned char)(i + (long)argument), in = 0;
    CHECK(write(s[0], &out, 1) == 1 && read(s[0], &in, 1) == 1 && in == (unsigned char)(out + 1),
          "answer %d to %d", in, out);
  }
  return NULL;
}
static void pool(void) {
  STAGE("pool of threads");
  pthread_t p[POOL], c[CONNECTIONS];
  pool_ep = epoll_create1(0);
  stop_event = eventfd(0, 0);
  add(pool_ep, stop_event, EPOLLIN, (uint64_t)stop_event);
  for (int i = 0; i < POOL; i++) p[i] = start_thread(pool_thread, NULL);
  for (long i = 0; i < CONNECTIONS; i++) c[i] = start_thread(client, (void*)i);
  for (int i = 0; i < CONNECTIONS; i++) join_thread(c[i]);
  CHECK(handled == CONNECTIONS * REQUESTS, "%d requests handled", (int)handled);
  NEED(eventfd_write(stop_event, 1) == 0);
  for (int i = 0; i < POOL; i++) join_thread(p[i]);
}

int main(void) {
  check_begin();
  STAGE("triggers");
  pthread_t t[6];
  for (long i = 0; i < 6; i++) t[i] = start_thread(triggers, (void*)(i % 2));
  triggers((void*)0);
  triggers((void*)1);
  for (int i = 0; i < 6; i++) join_thread(t[i]);
  STAGE("errors");
  errors(NULL);
  join_thread(start_thread(errors, NULL));
  STAGE("nested");
  nested(NULL);
  join_thread(start_thread(nested, NULL));
  added_later();
  pool();
  return check_end();
}
