/*
 * Time limits that run out just when data come: whatever a receiving call says, no byte, connection or datagram is
 * lost or comes twice, and nothing is written into the buffer of a call that has ended.
 */
// run: modes=default,carriers1
#include "stress.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/select.h>

enum kind { RECV_TIMEOUT, POLL, PPOLL, SELECT, EPOLL, EPOLL_ET, DONTWAIT_POLL, WAITALL_TIMEOUT, KINDS };
static const char* const kind_name[KINDS] = {"SO_RCVTIMEO", "poll",       "ppoll",        "select",
                                             "epoll",       "epoll edge", "MSG_DONTWAIT", "MSG_WAITALL"};

struct channel {
  enum kind kind;
  int in, out, quota, tcp;
  long received, timeouts;
};

static void* sender(void* argument) {
  struct channel* c = argument;
  unsigned random = 7 + (unsigned)c->kind;
  unsigned char piece[8];
  /* SO_RCVTIMEO is counted in ticks of 1 to 10 ms, the others to the microsecond */
  int slow = c->kind == RECV_TIMEOUT || c->kind == WAITALL_TIMEOUT;
  for (long sent = 0; sent < c->quota;) {
    size_t n = 1 + next_random(&random) % sizeof piece;
    if (n > (size_t)(c->quota - sent)) n = (size_t)(c->quota - sent);
    fill_stream(piece, sent, n);
    CHECK(write(c->out, piece, n) == (ssize_t)n, "write: errno %d", errno);
    sent += (long)n;
    if (slow ? next_random(&random) % 3 == 0 : next_random(&random) % 2 == 0)
      nap(&random, slow ? 8000 : 2000);
  }
  shutdown(c->out, SHUT_WR);
  return NULL;
}

/* Receives into a buffer with guards that is dead when the call has ended; a call without success leaves it alone. */
__attribute__((noinline)) static ssize_t receive(struct channel* c, unsigned char* out, int flags) {
  unsigned char guarded[64];
  memset(guarded, 0xA5, sizeof guarded);
  ssize_t n = recv(c->in, guarded + 24, 16, flags);
  int error = errno;
  for (int i = 0; i < 64; i++)
    if ((i < 24 || i >= 24 + (n > 0 ? (int)n : 0)) && guarded[i] != 0xA5) {
      CHECK(0, "%s: a byte outside of the %zd received ones was written", kind_name[c->kind], n);
      break;
    }
  if (n > 0) memcpy(out, guarded + 24, (size_t)n);
  errno = error;
  return n;
}

/* Uses the stack where the last buffer was, and sees whether somebody writes there. */
__attribute__((noinline)) static int stack_is_quiet(void) {
  volatile unsigned char area[512];
  for (int i = 0; i < 512; i++) area[i] = (unsigned char)(i * 3);
  usleep(30);
  for (int i = 0; i < 512; i++)
    if (area[i] != (unsigned char)(i * 3)) return 0;
  return 1;
}

static void* receiver(void* argument) {
  struct channel* c = argument;
  unsigned char buffer[16];
  struct epoll_event event = {.events = EPOLLIN | (c->kind == EPOLL_ET ? EPOLLET : 0)};
  int ep = epoll_create1(0);
  NEED(epoll_ctl(ep, EPOLL_CTL_ADD, c->in, &event) == 0);
  if (c->kind == RECV_TIMEOUT || c->kind == WAITALL_TIMEOUT) set_timeout(c->in, SO_RCVTIMEO, 1);
  for (;;) {
    int ready = 1;
    struct pollfd f = {c->in, POLLIN, 0};
    struct timespec span = {0, 700000};
    struct timeval tv = {0, 700};
    fd_set set;
    switch (c->kind) {
      case POLL:
        ready = poll(&f, 1, 1);
        break;
      case PPOLL:
        ready = ppoll(&f, 1, &span, NULL);
        break;
      case SELECT:
        FD_ZERO(&set);
        FD_SET(c->in, &set);
        ready = select(c->in + 1, &set, NULL, NULL, &tv);
        break;
      case EPOLL:
      case EPOLL_ET:
        ready = epoll_wait(ep, &event, 1, 1);
        break;
      case DONTWAIT_POLL:
        if (recv(c->in, buffer, 1, MSG_PEEK | MSG_DONTWAIT) < 0) ready = poll(&f, 1, 1);
        break;
      default:
        break;
    }
    CHECK(ready >= 0, "%s: errno %d", kind_name[c->kind], errno);
    if (ready == 0) {
      c->timeouts++;
      continue;
    }
    ssize_t n;
    do {
      n = receive(c, buffer,
                  c->kind == WAITALL_TIMEOUT                        ? MSG_WAITALL
                  : c->kind == EPOLL_ET || c->kind == DONTWAIT_POLL ? MSG_DONTWAIT
                                                                    : 0);
      if (n > 0) {
        if (!is_stream(buffer, c->received, (size_t)n)) {
          CHECK(0, "%s: wrong bytes at %ld", kind_name[c->kind], c->received);
          return NULL;
        }
        c->received += n;
      }
    } while (n > 0 && c->kind == EPOLL_ET);
    if (n < 0) {
      CHECK(errno == EAGAIN, "%s: errno %d", kind_name[c->kind], errno);
      c->timeouts++;
      CHECK(stack_is_quiet(), "%s: a call that had ended wrote to the stack", kind_name[c->kind]);
    }
    if (n == 0) break;
  }
  close(ep);
  return NULL;
}

/* accept with a time limit: connections that come at that moment are accepted by the next call, none is lost. */
static struct sockaddr_in address;
static void* connector(void* argument) {
  unsigned random = 99;
  for (int i = 0; i < *(int*)argument; i++) {
    int fd = connected_to(&address);
    CHECK(write(fd, &i, sizeof i) == sizeof i, "write");
    char c;
    CHECK(read(fd, &c, 1) == 0, "the acceptor closes");
    close(fd);
    nap(&random, 5000);
  }
  return NULL;
}
static void* acceptor(void* argument) {
  int lfd = listener(&address, 16), quota = scaled(150), got;
  set_timeout(lfd, SO_RCVTIMEO, 2);
  pthread_t t = start_thread(connector, &quota);
  for (int i = 0; i < quota;) {
    int fd = accept(lfd, NULL, NULL);
    if (fd < 0) {
      CHECK(errno == EAGAIN, "accept: errno %d", errno);
      continue;
    }
    CHECK(read(fd, &got, sizeof got) == sizeof got && got == i, "connection %d is number %d", got, i);
    close(fd);
    i++;
  }
  join_thread(t);
  close(lfd);
  (void)argument;
  return NULL;
}

int main(void) {
  stress_begin();
  STAGE("receivers");
  static struct channel channels[2 * KINDS];
  pthread_t s[2 * KINDS], r[2 * KINDS];
  for (int i = 0; i < 2 * KINDS; i++) {
    struct channel* c = &channels[i];
    int pair[2];
    c->kind = (enum kind)(i % KINDS);
    c->tcp = i >= KINDS;
    if (c->tcp)
      tcp_pair(pair);
    else
      stream_pair(pair);
    c->in = pair[0];
    c->out = pair[1];
    c->quota = scaled(c->kind == RECV_TIMEOUT || c->kind == WAITALL_TIMEOUT ? 1500 : 6000);
    r[i] = start_thread(receiver, c);
    s[i] = start_thread(sender, c);
  }
  pthread_t a = start_thread(acceptor, NULL);
  for (int i = 0; i < 2 * KINDS; i++) {
    join_thread(s[i]);
    join_thread(r[i]);
    CHECK(channels[i].received == channels[i].quota, "%s: %ld of %d bytes", kind_name[i % KINDS],
          channels[i].received, channels[i].quota);
    close(channels[i].in);
    close(channels[i].out);
  }
  STAGE("acceptor");
  join_thread(a);
  return check_end();
}
