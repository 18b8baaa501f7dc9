/* poll and ppoll: readiness, time-outs, ignored and bad descriptors, hang-ups, many descriptors, many pollers. */
#include "net.h"

#include <poll.h>
#include <stdatomic.h>

static void* write_late(void* argument) {
  pause_ms(40);
  CHECK(write(*(int*)argument, "x", 1) == 1, "write");
  return NULL;
}

/* poll or ppoll, with a time limit in ms (-1: none) */
static int wait_for(int way, struct pollfd* p, nfds_t n, int ms) {
  struct timespec span = ms_span(ms < 0 ? 0 : ms);
  return way == 0 ? poll(p, n, ms) : ppoll(p, n, ms < 0 ? NULL : &span, NULL);
}

static void* basics(void* argument) {
  int way = (int)(long)argument, p[2], q[2], s[2];
  char c;
  NEED(pipe(p) == 0 && pipe(q) == 0);
  stream_pair(s);
  /* nothing is ready: the time passes */
  struct pollfd f[5] = {{p[0], POLLIN, 77},
                        {s[0], POLLIN, 77},
                        {-1, POLLIN, 77},
                        {-7, POLLOUT, 77},
                        {q[0], POLLIN | POLLPRI, 77}};
  double begin = now();
  CHECK(wait_for(way, f, 5, 80) == 0, "time-out");
  CHECK(now() - begin >= 0.079, "80 ms took %.4f s", now() - begin);
  for (int i = 0; i < 5; i++) CHECK(f[i].revents == 0, "revents %d is %x after a time-out", i, f[i].revents);
  begin = now();
  CHECK(wait_for(way, f, 5, 0) == 0 && now() - begin < 5, "no time");
  CHECK(wait_for(way, NULL, 0, 30) == 0, "no descriptors");
  CHECK(wait_for(way, f, 0, 0) == 0, "no descriptors, no time");
  /* one becomes ready */
  pthread_t t = start_thread(write_late, &p[1]);
  CHECK(wait_for(way, f, 5, 20000) == 1 && f[0].revents == POLLIN && f[1].revents == 0, "ready in time: %x",
        f[0].revents);
  join_thread(t);
  CHECK(read(p[0], &c, 1) == 1, "read");
  t = start_thread(write_late, &s[1]);
  CHECK(wait_for(way, f, 5, -1) == 1 && f[1].revents == POLLIN && f[0].revents == 0,
        "ready without limit: %x", f[1].revents);
  join_thread(t);
  CHECK(wait_for(way, f, 5, -1) == 1, "still ready");
  CHECK(read(s[0], &c, 1) == 1 && wait_for(way, f, 5, 0) == 0, "not ready any more");
  /* several at once, the same descriptor twice */
  CHECK(write(p[1], "ab", 2) == 2 && write(q[1], "c", 1) == 1, "write");
  struct pollfd g[4] = {
      {p[0], POLLIN, 0}, {p[0], POLLIN | POLLOUT, 0}, {q[0], POLLIN, 0}, {s[0], POLLOUT | POLLIN, 0}};
  CHECK(wait_for(way, g, 4, 1000) == 4, "four ready");
  CHECK(g[0].revents == POLLIN && g[1].revents == POLLIN && g[2].revents == POLLIN && g[3].revents == POLLOUT,
        "%x %x %x %x", g[0].revents, g[1].revents, g[2].revents, g[3].revents);
  /* a number that is no descriptor is an event at once */
  struct pollfd bad[2] = {{s[0], POLLIN, 0}, {4000, POLLIN, 0}};
  CHECK(wait_for(way, bad, 2, 20000) == 1 && bad[1].revents == POLLNVAL && bad[0].revents == 0,
        "POLLNVAL: %x", bad[1].revents);
  /* hang-ups are reported without being asked for */
  struct pollfd none[2] = {{p[0], 0, 0}, {s[0], 0, 0}};
  CHECK(wait_for(way, none, 2, 30) == 0, "nothing was asked for");
  close(p[1]);
  close(s[1]);
  CHECK(wait_for(way, none, 2, 20000) == 2 && none[0].revents == POLLHUP && none[1].revents == POLLHUP,
        "hang-up: %x %x", none[0].revents, none[1].revents);
  f[0].events = POLLIN;
  CHECK(wait_for(way, f, 1, 20000) == 1 && f[0].revents == (POLLIN | POLLHUP), "data and hang-up: %x",
        f[0].revents);
  struct pollfd r[1] = {{s[0], POLLIN | POLLRDHUP, 0}};
  CHECK(wait_for(way, r, 1, 20000) == 1 && r[0].revents == (POLLIN | POLLRDHUP | POLLHUP), "stream: %x",
        r[0].revents);
  close(q[0]);
  struct pollfd w[1] = {{q[1], POLLOUT, 0}};
  CHECK(wait_for(way, w, 1, 20000) == 1 && w[0].revents == (POLLOUT | POLLERR), "pipe without reader: %x",
        w[0].revents);
  close(p[0]);
  close(q[1]);
  close(s[0]);
  return NULL;
}

static void* errors(void* unused) {
  (void)unused;
  struct timespec bad = {0, 1000000000L}, negative = {-1, 0};
  volatile nfds_t too_many = 0x7FFFFFFF;
  CHECK(poll((struct pollfd*)wild_address(), 1, 0) == -1 && errno == EFAULT, "bad address: errno %d", errno);
  CHECK(poll(wild_address(), too_many, 0) == -1 && errno == EINVAL, "too many: errno %d", errno);
  CHECK(ppoll(NULL, 0, &bad, NULL) == -1 && errno == EINVAL, "bad time: errno %d", errno);
  CHECK(ppoll(NULL, 0, &negative, NULL) == -1 && errno == EINVAL, "negative time: errno %d", errno);
  struct timespec span = ms_span(20);
  CHECK(ppoll(NULL, 0, &span, NULL) == 0 && span.tv_sec == 0 && span.tv_nsec == 20000000,
        "ppoll changed the time");
  return NULL;
}

/* 500 descriptors; another thread makes them ready one by one. */
enum { MANY = 250 };
static int many[MANY][2];
static void* make_ready(void* unused) {
  (void)unused;
  for (int i = 0; i < MANY; i++) {
    int k = i * 7 % MANY;
    if (i % 25 == 0) pause_ms(1);
    CHECK(write(many[k][1], "x", 1) == 1, "write");
  }
  return NULL;
}
static void* poll_many(void* argument) {
  int way = (int)(long)argument, got = 0;
  struct pollfd f[2 * MANY];
  for (int i = 0; i < MANY; i++) {
    if (way == 0)
      stream_pair(many[i]);
    else
      NEED(pipe(many[i]) == 0);
    f[2 * i] = (struct pollfd){many[i][0], POLLIN, 0};
    f[2 * i + 1] = (struct pollfd){many[i][1], 0, 0};
  }
  pthread_t t = start_thread(make_ready, NULL);
  while (got < MANY) {
    int n = wait_for(way, f, 2 * MANY, 20000), seen = 0;
    NEED(n > 0);
    for (int i = 0; i < 2 * MANY; i++)
      if (f[i].revents) {
        char c;
        CHECK(f[i].revents == POLLIN && i % 2 == 0, "descriptor %d: %x", i, f[i].revents);
        CHECK(read(f[i].fd, &c, 1) == 1, "read");
        seen++;
      }
    CHECK(seen == n, "poll said %d, %d are ready", n, seen);
    got += seen;
  }
  CHECK(wait_for(way, f, 2 * MANY, 0) == 0, "something is left");
  join_thread(t);
  for (int i = 0; i < MANY; i++) {
    close(many[i][0]);
    close(many[i][1]);
  }
  return NULL;
}

/* Many threads poll one descriptor: all are told. */
static int common[2];
static atomic_int told;
static void* poll_common(void* argument) {
  struct pollfd f = {common[0], POLLIN, 0};
  int r = (long)argument % 2 ? poll(&f, 1, -1) : poll(&f, 1, 20000);
  CHECK(r == 1 && f.revents == POLLIN, "poll: %d, %x", r, f.revents);
  told++;
  return NULL;
}

int main(void) {
  check_begin();
  pthread_t t[30];
  STAGE("basics");
  for (long i = 0; i < 6; i++) t[i] = start_thread(basics, (void*)(i % 2));
  basics((void*)0);
  basics((void*)1);
  for (int i = 0; i < 6; i++) join_thread(t[i]);
  STAGE("errors");
  errors(NULL);
  join_thread(start_thread(errors, NULL));
  STAGE("500 descriptors");
  join_thread(start_thread(poll_many, (void*)0));
  join_thread(start_thread(poll_many, (void*)1));
  poll_many((void*)0);
  STAGE("many pollers");
  NEED(pipe(common) == 0);
  for (long i = 0; i < 30; i++) t[i] = start_thread(poll_common, (void*)i);
  pause_ms(50);
  CHECK(told == 0, "%d were told too early", (int)told);
  CHECK(write(common[1], "x", 1) == 1, "write");
  for (int i = 0; i < 30; i++) join_thread(t[i]);
  return check_end();
}
