/*
 * Descriptors belong to the program: new ones get the lowest free numbers as if nobody else had any, closing every
 * number in a loop (as daemons do) disturbs nothing, and a limit of 32 leaves most of them.
 */
#include "net.h"

#include <stdatomic.h>
#include <sys/resource.h>

static void* use_some(void* unused) {
  (void)unused;
  int p[2], s[2];
  char c;
  NEED(pipe(p) == 0);
  stream_pair(s);
  for (int i = 0; i < 20; i++) {
    CHECK(write(p[1], "x", 1) == 1 && read(p[0], &c, 1) == 1, "pipe");
    CHECK(write(s[1], "x", 1) == 1 && recv(s[0], &c, 1, 0) == 1, "socket");
    if (i % 5 == 0) pause_ms(1);
  }
  close(p[0]);
  close(p[1]);
  close(s[0]);
  close(s[1]);
  return NULL;
}

static void work(int threads) {
  pthread_t t[16];
  for (int i = 0; i < threads; i++) t[i] = start_thread(use_some, NULL);
  for (int i = 0; i < threads; i++) join_thread(t[i]);
}

/* The numbers of the next four descriptors. */
static void next_numbers(int n[4]) {
  for (int i = 0; i < 4; i++) n[i] = open("/dev/null", O_RDONLY);
  for (int i = 0; i < 4; i++) close(n[i]);
}

static int sleeper_pipe[2];
static void* sleeper(void* unused) {
  (void)unused;
  char c;
  return (void*)(read(sleeper_pipe[0], &c, 1) == 1 && c == 's' ? 1L : 0L);
}

/* Closes what is not ours to keep, by three ways. The sleeper's pipe lies at 3 and 4. */
static int close_all(void* argument) {
  static pthread_t t;
  NEED(pipe(sleeper_pipe) == 0);
  int in = dup2(sleeper_pipe[0], 3), out = dup2(sleeper_pipe[1], 4);
  NEED(in == 3 && out == 4);
  for (int i = 0; i < 2; i++)
    if (sleeper_pipe[i] > 4) close(sleeper_pipe[i]);
  sleeper_pipe[0] = 3;
  sleeper_pipe[1] = 4;
  work(4);
  t = start_thread(sleeper, NULL);
  pause_ms(20);
  switch ((long)argument) {
    case 0:
      for (int fd = 5; fd < 2000; fd++) close(fd);
      break;
    case 1:
      closefrom(5);
      break;
    case 2:
      CHECK(close_range(5, ~0U, 0) == 0, "close_range: errno %d", errno);
      break;
    case 3:
      for (int fd = 5; fd < 2000; fd++)
        if (fcntl(fd, F_GETFD) >= 0) close(fd);
      break;
  }
  work(8);
  CHECK(write(4, "s", 1) == 1 && join_thread(t) == (void*)1, "a thread that slept while all was closed");
  int n[4];
  next_numbers(n);
  CHECK(n[0] == 5 && n[1] == 6 && n[2] == 7 && n[3] == 8, "numbers %d %d %d %d after all was closed", n[0],
        n[1], n[2], n[3]);
  return check_findings != 0;
}

/* dup2 onto any number is possible and takes effect. */
static int dup_everywhere(void* unused) {
  (void)unused;
  int p[2];
  char c;
  NEED(pipe(p) == 0);
  work(4);
  for (int fd = 5; fd < 300; fd++) {
    if (fd == p[0] || fd == p[1]) continue;
    NEED(dup2(p[1], fd) == fd);
    CHECK(write(fd, "d", 1) == 1 && read(p[0], &c, 1) == 1, "descriptor %d", fd);
  }
  work(8);
  return check_findings != 0;
}

/* With a limit of 32 threads work; there is room for nearly as many descriptors as without them. */
static int limited(void* unused) {
  (void)unused;
  struct rlimit limit;
  int fds[40], free_before = 0, free_after = 0;
  NEED(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = 32;
  NEED(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  while (free_before < 40 && (fds[free_before] = open("/dev/null", O_RDONLY)) >= 0) free_before++;
  CHECK(errno == EMFILE, "errno %d", errno);
  for (int i = 0; i < free_before; i++) close(fds[i]);
  work(4); /* sixteen of them */
  work(4);
  while (free_after < 40 && (fds[free_after] = open("/dev/null", O_RDONLY)) >= 0) free_after++;
  CHECK(free_after <= free_before && free_after >= free_before - 6,
        "%d descriptors before, %d after threads ran", free_before, free_after);
  int q[2];
  CHECK(pipe(q) == -1 && errno == EMFILE, "a pipe too many: errno %d", errno);
  for (int i = 0; i < free_after; i++) close(fds[i]);
  work(4);
  return check_findings != 0;
}

static int numbers(void* unused) {
  (void)unused;
  int before[4], after[4];
  next_numbers(before);
  work(8);
  next_numbers(after);
  CHECK(!memcmp(before, after, sizeof before), "numbers %d %d %d %d became %d %d %d %d", before[0], before[1],
        before[2], before[3], after[0], after[1], after[2], after[3]);
  return check_findings != 0;
}

int main(void) {
  check_begin();
  /* in children: each starts from a process that never had a thread, and then from one that has had some */
  for (int round = 0; round < 2; round++) {
    STAGE("numbers");
    CHECK(exited_with(in_child(numbers, NULL), 0), "numbers");
    STAGE("closing all");
    for (long way = 0; way < 4; way++) CHECK(exited_with(in_child(close_all, (void*)way), 0), "way %ld", way);
    STAGE("dup2 onto all");
    CHECK(exited_with(in_child(dup_everywhere, NULL), 0), "dup2");
    STAGE("limit of 32");
    CHECK(exited_with(in_child(limited, NULL), 0), "limited");
    STAGE("threads in the parent");
    work(8);
  }
  return check_end();
}
