/*
 * Every number of a descriptor is the program's: it may put files there (dup2, dup3, by name and by number), and close
 * all it does not know (close_range, closefrom, by name, by number, one by one), from the initial thread too.
 */
// run: name=1
// run: name=32 args=32
#include "../prog/net.h"

#include <sys/resource.h>
#include <sys/syscall.h>

static void* echo(void* argument) {
  int fd = *(int*)argument;
  char c;
  while (recv(fd, &c, 1, 0) == 1) CHECK(send(fd, &c, 1, 0) == 1, "send: errno %d", errno);
  return NULL;
}

/* Threads that wait for each other. */
static void* use_some(void* unused) {
  (void)unused;
  int s[2];
  char c;
  stream_pair(s);
  pthread_t t = start_thread(echo, &s[1]);
  for (int i = 0; i < 20; i++) {
    CHECK(send(s[0], "x", 1, 0) == 1 && recv(s[0], &c, 1, 0) == 1, "socket: errno %d", errno);
    if (i % 5 == 0) pause_ms(1);
  }
  close(s[0]);
  join_thread(t);
  close(s[1]);
  return NULL;
}

static void work(void) {
  pthread_t t[4];
  for (int i = 0; i < 4; i++) t[i] = start_thread(use_some, NULL);
  for (int i = 0; i < 4; i++) join_thread(t[i]);
}

static int limit = 1024;

static void* onto_all(void* unused) {
  (void)unused;
  int p[2];
  char c;
  NEED(pipe(p) == 0);
  for (int fd = 5; fd < limit; fd++) {
    if (fd == p[0] || fd == p[1]) continue;
    int by = fd % 4;
    int r = by == 0   ? dup2(p[1], fd)
            : by == 1 ? dup3(p[1], fd, O_CLOEXEC)
            : by == 2 ? (int)syscall(SYS_dup2, p[1], fd)
                      : (int)syscall(SYS_dup3, p[1], fd, 0);
    CHECK(r == fd, "number %d: %d, errno %d", fd, r, errno);
    CHECK(write(fd, "d", 1) == 1 && read(p[0], &c, 1) == 1, "descriptor %d", fd);
    CHECK(close(fd) == 0, "close of %d: errno %d", fd, errno);
  }
  errno = 0;
  CHECK(dup2(999, 9) == -1 && errno == EBADF, "dup2 of nothing: errno %d", errno);
  close(p[0]);
  close(p[1]);
  return NULL;
}

static void* close_all(void* argument) {
  switch ((long)argument) {
    case 0:
      CHECK(close_range(3, ~0U, 0) == 0, "close_range: errno %d", errno);
      break;
    case 1:
      CHECK(syscall(SYS_close_range, 3, ~0U, 0) == 0, "by number: errno %d", errno);
      break;
    case 2:
      closefrom(3);
      break;
    case 3:
      for (int fd = 3; fd < 1100; fd++) syscall(SYS_close, fd);
      break;
    case 4:
      for (int fd = 3; fd < 1100; fd++) close(fd);
      break;
    case 5:
      for (unsigned fd = 3; fd < 1100; fd += 7) CHECK(close_range(fd, fd + 6, 0) == 0, "piece %u: errno %d", fd, errno);
      break;
  }
  errno = 0;
  CHECK(close_range(5, 4, 0) == -1 && errno == EINVAL, "a wrong range: errno %d", errno);
  errno = 0;
  CHECK(close_range(3, 4, 64) == -1 && errno == EINVAL, "a wrong flag: errno %d", errno);
  int fd = open("/dev/null", O_RDONLY);
  CHECK(fd == 3, "the next number is %d", fd);
  close(fd);
  return NULL;
}

int main(int argc, char** argv) {
  check_begin();
  if (argc > 1) {
    limit = atoi(argv[1]);
    struct rlimit r = {(rlim_t)limit, (rlim_t)limit};
    NEED(setrlimit(RLIMIT_NOFILE, &r) == 0);
  } else {
    struct rlimit r;
    NEED(getrlimit(RLIMIT_NOFILE, &r) == 0);
    if (r.rlim_cur < 1024) limit = (int)r.rlim_cur;
  }
  work();
  for (int in_main = 0; in_main < 2; in_main++) {
    STAGE(in_main ? "onto all, main" : "onto all");
    if (in_main)
      onto_all(NULL);
    else
      join_thread(start_thread(onto_all, NULL));
    work();
    for (long way = 0; way < 6; way++) {
      STAGE(in_main ? "close all, main" : "close all");
      if (in_main)
        close_all((void*)way);
      else
        join_thread(start_thread(close_all, (void*)way));
      work();
    }
  }
  return check_end();
}
