/* The forms of the calls that a program built with _FORTIFY_SOURCE uses: __read_chk, __recv_chk, __poll_chk and so on. */
// cflags: -O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
#include "net.h"

#include <poll.h>
#include <setjmp.h>
#include <sys/resource.h>
#include <sys/select.h>

/* The compiler must not know the lengths, or it would call the plain functions. */
static volatile size_t hidden_10 = 10, hidden_64 = 64;
static volatile nfds_t hidden_1 = 1, hidden_9 = 9;
static volatile int hidden_fd = 5000;

static void* write_late(void* argument) {
  pause_ms(30);
  CHECK(write(*(int*)argument, "0123456789", 10) == 10, "write");
  return NULL;
}

static void* sleeps_in_each(void* unused) {
  (void)unused;
  int pair[2];
  char buffer[64];
  struct sockaddr_storage from;
  struct pollfd p[2];
  struct timespec span = ms_span(15000);
  stream_pair(pair);
  for (int way = 0; way < 7; way++) {
    ssize_t n = -1;
    memset(buffer, 0, sizeof buffer);
    p[0] = (struct pollfd){pair[0], POLLIN, 0};
    pthread_t t = start_thread(write_late, &pair[1]);
    switch (way) {
      case 0:
        n = read(pair[0], buffer, hidden_64);
        break;
      case 1:
        n = recv(pair[0], buffer, hidden_64, 0);
        break;
      case 2: {
        socklen_t length = sizeof from;
        n = recvfrom(pair[0], buffer, hidden_10, MSG_WAITALL, (struct sockaddr*)&from, &length);
        break;
      }
      case 3:
        CHECK(poll(p, hidden_1, -1) == 1 && p[0].revents == POLLIN, "poll");
        n = read(pair[0], buffer, hidden_10);
        break;
      case 4:
        CHECK(ppoll(p, hidden_1, &span, NULL) == 1 && p[0].revents == POLLIN, "ppoll");
        n = recv(pair[0], buffer, hidden_10, MSG_DONTWAIT);
        break;
      case 5: {
        fd_set set;
        int fd = pair[0];
        FD_ZERO(&set);
        FD_SET(fd, &set); /* __fdelt_chk */
        CHECK(select(fd + 1, &set, NULL, NULL, NULL) == 1 && FD_ISSET(fd, &set), "select");
        n = read(pair[0], buffer, hidden_64);
        break;
      }
      case 6: {
        FILE* f = fdopen(dup(pair[0]), "r");
        CHECK(fgets(buffer, (int)hidden_10, f) != NULL && !strcmp(buffer, "012345678"), "fgets: '%s'",
              buffer);
        CHECK(fread(buffer, 1, (size_t)hidden_1, f) == 1 && buffer[0] == '9', "fread");
        fclose(f);
        memcpy(buffer, "0123456789", 10);
        n = 10;
        break;
      }
    }
    CHECK(n == 10 && !memcmp(buffer, "0123456789", 10), "way %d: %zd, errno %d", way, n, errno);
    join_thread(t);
  }
  close(pair[0]);
  close(pair[1]);
  return NULL;
}

/* A length that the buffer does not have ends the process with SIGABRT, as without a thread. */
static void* overrun(void* argument) {
  char small[8];
  struct pollfd one[1] = {{0, POLLIN, 0}};
  fd_set set;
  int p[2];
  NEED(pipe(p) == 0);
  switch ((long)argument) {
    case 0:
      return (void*)read(p[0], small, hidden_64);
    case 1:
      return (void*)recv(p[0], small, hidden_64, 0);
    case 2:
      return (void*)recvfrom(p[0], small, hidden_64, 0, NULL, NULL);
    case 3:
      return (void*)(long)poll(one, hidden_9, 0);
    case 4:
      FD_ZERO(&set);
      FD_SET(hidden_fd, &set);
      return NULL;
    default:
      return NULL;
  }
}
static int overrun_child(void* argument) {
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  close(2); /* glibc says that a buffer overflow was detected */
  join_thread(start_thread(overrun, argument));
  return 0;
}

int main(void) {
  check_begin();
  STAGE("sleeps in the checked forms");
  pthread_t t[4];
  for (int i = 0; i < 4; i++) t[i] = start_thread(sleeps_in_each, NULL);
  sleeps_in_each(NULL);
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  STAGE("overruns");
  for (long way = 0; way < 5; way++) {
    int status = in_child(overrun_child, (void*)way);
    CHECK(killed_by(status, SIGABRT), "way %ld: status %#x", way, status);
  }
  return check_end();
}
