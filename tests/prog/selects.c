/* select and pselect: sets, time-outs, the remaining time, bad descriptors, limits of FD_SETSIZE. */
#include "net.h"

#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/select.h>

static void* write_late(void* argument) {
  pause_ms(40);
  CHECK(write(*(int*)argument, "x", 1) == 1, "write");
  return NULL;
}

static void* basics(void* unused) {
  (void)unused;
  int p[2], s[2], n;
  char c;
  fd_set in, out;
  struct timeval tv;
  NEED(pipe(p) == 0);
  stream_pair(s);
  int top = (p[0] > s[0] ? p[0] : s[0]) + 2;

  /* the time is over: sets are empty, nothing of the time is left */
  FD_ZERO(&in);
  FD_SET(p[0], &in);
  FD_SET(s[0], &in);
  tv = (struct timeval){0, 80000};
  double begin = now();
  CHECK((n = select(top, &in, NULL, NULL, &tv)) == 0, "time-out: %d", n);
  CHECK(now() - begin >= 0.079, "80 ms took %.4f s", now() - begin);
  CHECK(!FD_ISSET(p[0], &in) && !FD_ISSET(s[0], &in), "a set after a time-out");
  CHECK(tv.tv_sec == 0 && tv.tv_usec == 0, "%ld.%06ld s left after a time-out", (long)tv.tv_sec,
        (long)tv.tv_usec);

  /* ready in time: the rest of the time is written back */
  FD_ZERO(&in);
  FD_SET(p[0], &in);
  FD_SET(s[0], &in);
  tv = (struct timeval){20, 0};
  pthread_t t = start_thread(write_late, &p[1]);
  CHECK((n = select(top, &in, NULL, NULL, &tv)) == 1, "ready: %d", n);
  CHECK(FD_ISSET(p[0], &in) && !FD_ISSET(s[0], &in), "the wrong one is ready");
  double left = (double)tv.tv_sec + (double)tv.tv_usec / 1e6;
  CHECK(left < 19.97 && left > 1, "%.6f of 20 s are left", left);
  join_thread(t);
  CHECK(read(p[0], &c, 1) == 1, "read");

  /* no limit; reading and writing together */
  FD_ZERO(&in);
  FD_SET(s[0], &in);
  t = start_thread(write_late, &s[1]);
  CHECK((n = select(top, &in, NULL, NULL, NULL)) == 1 && FD_ISSET(s[0], &in), "without limit: %d", n);
  join_thread(t);
  FD_ZERO(&out);
  FD_SET(s[0], &out);
  FD_SET(s[0], &in);
  CHECK((n = select(top, &in, &out, NULL, NULL)) == 2 && FD_ISSET(s[0], &in) && FD_ISSET(s[0], &out),
        "both: %d", n);
  CHECK(read(s[0], &c, 1) == 1, "read");
  FD_SET(s[0], &in);
  FD_SET(s[0], &out);
  tv = (struct timeval){0, 0};
  CHECK((n = select(top, &in, &out, NULL, &tv)) == 1 && !FD_ISSET(s[0], &in) && FD_ISSET(s[0], &out),
        "writable only: %d", n);

  /* only the first n descriptors count */
  CHECK(write(s[1], "x", 1) == 1, "write");
  FD_ZERO(&in);
  FD_SET(s[0], &in);
  tv = (struct timeval){0, 0};
  CHECK((n = select(s[0], &in, NULL, NULL, &tv)) == 0, "a descriptor outside of the range: %d", n);

  /* as a sleep */
  tv = (struct timeval){0, 50000};
  begin = now();
  CHECK(select(0, NULL, NULL, NULL, &tv) == 0 && now() - begin >= 0.049, "as a sleep: %.4f s", now() - begin);

  /* end of file is readable; a pipe without reader is writable */
  close(p[1]);
  FD_ZERO(&in);
  FD_SET(p[0], &in);
  CHECK(select(top, &in, NULL, NULL, NULL) == 1 && read(p[0], &c, 1) == 0, "end of file");
  close(p[0]);
  close(s[0]);
  close(s[1]);
  return NULL;
}

static void* errors(void* unused) {
  (void)unused;
  fd_set in;
  struct timeval tv = {1, 0}, negative = {-1, 0};
  struct timespec bad = {0, 1000000000L};
  int p[2];
  NEED(pipe(p) == 0);
  static atomic_int next = 200;
  int closed = next++; /* numbers beyond those that were ever open would be ignored */
  NEED(dup2(p[0], closed) == closed && close(closed) == 0);
  FD_ZERO(&in);
  FD_SET(closed, &in);
  FD_SET(p[0], &in);
  CHECK(select(closed + 1, &in, NULL, NULL, &tv) == -1 && errno == EBADF, "no descriptor: errno %d", errno);
  CHECK(select(-1, NULL, NULL, NULL, &tv) == -1 && errno == EINVAL, "a negative range: errno %d", errno);
  CHECK(select(0, NULL, NULL, NULL, &negative) == -1 && errno == EINVAL, "a negative time: errno %d", errno);
  CHECK(pselect(0, NULL, NULL, NULL, &bad, NULL) == -1 && errno == EINVAL, "a bad time: errno %d", errno);
  tv = (struct timeval){0, 3000000}; /* more than a second of microseconds: taken as three seconds */
  FD_ZERO(&in);
  FD_SET(p[0], &in);
  CHECK(write(p[1], "x", 1) == 1 && select(p[0] + 1, &in, NULL, NULL, &tv) == 1,
        "microseconds over a second: errno %d", errno);
  CHECK(select(p[0] + 1, wild_address(), NULL, NULL, &tv) == -1 && errno == EFAULT, "a bad address: errno %d",
        errno);
  close(p[0]);
  close(p[1]);
  return NULL;
}

static void* with_pselect(void* unused) {
  (void)unused;
  int p[2], n;
  char c;
  fd_set in;
  struct timespec limit = ms_span(20000), before = limit;
  NEED(pipe(p) == 0);
  FD_ZERO(&in);
  FD_SET(p[0], &in);
  pthread_t t = start_thread(write_late, &p[1]);
  CHECK((n = pselect(p[0] + 1, &in, NULL, NULL, &limit, NULL)) == 1 && FD_ISSET(p[0], &in), "pselect: %d", n);
  CHECK(limit.tv_sec == before.tv_sec && limit.tv_nsec == before.tv_nsec, "pselect changed the time");
  join_thread(t);
  CHECK(read(p[0], &c, 1) == 1, "read");
  limit = ms_span(60);
  double begin = now();
  CHECK((n = pselect(p[0] + 1, &in, NULL, NULL, &limit, NULL)) == 0 && !FD_ISSET(p[0], &in), "pselect: %d",
        n);
  CHECK(now() - begin >= 0.059, "60 ms took %.4f s", now() - begin);
  close(p[0]);
  close(p[1]);
  return NULL;
}

/* The highest descriptor that a set can hold. */
static void* highest(void* unused) {
  (void)unused;
  int p[2], top = FD_SETSIZE - 1;
  fd_set in;
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  NEED(pipe(p) == 0);
  if (limit.rlim_cur > FD_SETSIZE) {
    NEED(dup2(p[0], top) == top);
    FD_ZERO(&in);
    FD_SET(top, &in);
    pthread_t t = start_thread(write_late, &p[1]);
    CHECK(select(FD_SETSIZE, &in, NULL, NULL, NULL) == 1 && FD_ISSET(top, &in), "descriptor 1023");
    join_thread(t);
    close(top);
  }
  close(p[0]);
  close(p[1]);
  return NULL;
}

int main(void) {
  check_begin();
  static void* (*const parts[])(void*) = {basics, errors, with_pselect, highest};
  static const char* const names[] = {"basics", "errors", "pselect", "highest descriptor"};
  pthread_t t[10];
  for (int i = 0; i < COUNT_OF(parts); i++) {
    STAGE(names[i]);
    parts[i](NULL);
    int n = i == 3 ? 1 : 10;
    for (int k = 0; k < n; k++) t[k] = start_thread(parts[i], NULL);
    for (int k = 0; k < n; k++) join_thread(t[k]);
  }
  return check_end();
}
