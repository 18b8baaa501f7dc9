/* What a signal does to blocking calls, with and without SA_RESTART: the table of signal(7), one row each. */
#include "net.h"

#include <linux/futex.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>

enum call {
  READ,
  READV,
  RECV,
  RECVFROM,
  RECVMSG,
  ACCEPT,
  SEM_WAIT,
  FUTEX,
  WRITE, /* restarted with SA_RESTART */
  POLL,
  PPOLL,
  SELECT,
  PSELECT,
  EPOLL,
  NANOSLEEP,
  CLOCK_REL,
  CLOCK_ABS,
  USLEEP,
  SLEEP,
  RECV_TIMEOUT,
  SEM_TIMED, /* never */
  CALLS
};
static const char* const name_of[CALLS] = {"read",
                                           "readv",
                                           "recv",
                                           "recvfrom",
                                           "recvmsg",
                                           "accept",
                                           "sem_wait",
                                           "futex",
                                           "write",
                                           "poll",
                                           "ppoll",
                                           "select",
                                           "pselect",
                                           "epoll_wait",
                                           "nanosleep",
                                           "clock_nanosleep",
                                           "clock_nanosleep absolute",
                                           "usleep",
                                           "sleep",
                                           "recv with SO_RCVTIMEO",
                                           "sem_timedwait"};

static __thread volatile int hits;
static void handler(int signal_number) {
  (void)signal_number;
  hits++;
}

struct job {
  enum call call;
  int fd, peer, ep;
  struct sockaddr_in address;
  sem_t sem;
  _Atomic unsigned word;
  atomic_int started, ended;
  long result;
  int error, hits;
  double left;
};

static void* do_call(void* argument) {
  struct job* j = argument;
  char b[16];
  static const char block[1 << 16];
  struct iovec part = {b, sizeof b};
  struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
  struct pollfd p = {j->fd, POLLIN, 0};
  struct epoll_event e;
  struct timeval tv = {20, 0};
  struct timespec span = {20, 0}, rest = {0, 0}, until;
  fd_set in;
  FD_ZERO(&in);
  FD_SET(j->fd, &in);
  hits = 0;
  j->started = 1;
  errno = 0;
  switch (j->call) {
    case READ:
      j->result = read(j->fd, b, sizeof b);
      break;
    case READV:
      j->result = readv(j->fd, &part, 1);
      break;
    case RECV:
    case RECV_TIMEOUT:
      j->result = recv(j->fd, b, sizeof b, 0);
      break;
    case RECVFROM:
      j->result = recvfrom(j->fd, b, sizeof b, 0, NULL, NULL);
      break;
    case RECVMSG:
      j->result = recvmsg(j->fd, &header, 0);
      break;
    case ACCEPT:
      j->result = accept(j->fd, NULL, NULL);
      break;
    case SEM_WAIT:
      j->result = sem_wait(&j->sem);
      break;
    case FUTEX:
      j->result = syscall(SYS_futex, &j->word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
      if (j->result == -1 && errno == EAGAIN) j->result = 0; /* restarted after the word had changed */
      break;
    case WRITE:
      j->result = write(j->fd, block, sizeof block);
      break; /* nothing fits: as if it had not begun */
    case POLL:
      j->result = poll(&p, 1, 20000);
      break;
    case PPOLL:
      j->result = ppoll(&p, 1, &span, NULL);
      break;
    case SELECT:
      j->result = select(j->fd + 1, &in, NULL, NULL, &tv);
      break;
    case PSELECT:
      j->result = pselect(j->fd + 1, &in, NULL, NULL, &span, NULL);
      break;
    case EPOLL:
      j->result = epoll_wait(j->ep, &e, 1, 20000);
      break;
    case NANOSLEEP:
      j->result = nanosleep(&span, &rest);
      break;
    case CLOCK_REL:
      j->error = clock_nanosleep(CLOCK_MONOTONIC, 0, &span, &rest);
      j->result = j->error ? -1 : 0;
      errno = j->error;
      break;
    case CLOCK_ABS:
      until = ms_from_now(CLOCK_MONOTONIC, 20000);
      rest.tv_sec = 10; /* must not be written */
      j->error = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, &rest);
      j->result = j->error ? -1 : 0;
      errno = j->error;
      break;
    case USLEEP:
      j->result = usleep(20000000);
      break;
    case SLEEP:
      rest.tv_sec = sleep(20); /* returns what is left */
      j->result = rest.tv_sec ? -1 : 0;
      errno = EINTR;
      break;
    case SEM_TIMED:
      until = ms_from_now(CLOCK_REALTIME, 20000);
      j->result = sem_timedwait(&j->sem, &until);
      break;
    default:
      break;
  }
  j->error = errno;
  j->hits = hits;
  j->left = (double)rest.tv_sec + (double)rest.tv_nsec / 1e9;
  j->ended = 1;
  return NULL;
}

static void prepare(struct job* j) {
  int pair[2];
  sem_init(&j->sem, 0, 0);
  j->peer = -1;
  if (j->call == ACCEPT) {
    j->fd = listener(&j->address, 4);
  } else {
    stream_pair(pair);
    j->fd = pair[0];
    j->peer = pair[1];
  }
  if (j->call == RECV_TIMEOUT) set_timeout(j->fd, SO_RCVTIMEO, 20000);
  if (j->call == WRITE)
    while (send(j->fd, "full", 4, MSG_DONTWAIT) > 0) {
    }
  j->ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN};
  epoll_ctl(j->ep, EPOLL_CTL_ADD, j->fd, &e);
}

/* Lets a restarted call end with success. */
static void satisfy(struct job* j) {
  if (j->call == ACCEPT) {
    close(connected_to(&j->address));
  } else if (j->call == WRITE) {
    char sink[4096];
    shutdown(j->fd, SHUT_RD);
    while (!j->ended)
      if (recv(j->peer, sink, sizeof sink, MSG_DONTWAIT) <= 0) pause_ms(1);
  } else {
    j->word = 1;
    syscall(SYS_futex, &j->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    sem_post(&j->sem);
    CHECK(write(j->peer, "x", 1) == 1, "write");
  }
}

static void* interrupt(void* argument) {
  enum call call = (enum call)((long)argument % CALLS);
  int restart = (long)argument >= CALLS, restarts = restart && call <= WRITE, sent = 0;
  struct job j = {.call = call};
  prepare(&j);
  pthread_t t = start_thread(do_call, &j);
  CHECK(EVENTUALLY(j.started), "the thread starts");
  if (restarts) {
    for (; sent < 3; sent++) {
      pause_ms(25);
      CHECK(pthread_kill(t, restart ? SIGUSR2 : SIGUSR1) == 0, "pthread_kill");
    }
    pause_ms(40);
    CHECK(!j.ended, "%s with SA_RESTART returned: %ld, errno %d", name_of[call], j.result, j.error);
    satisfy(&j);
  } else {
    do { /* once more if the first came before the call had begun */
      pause_ms(25);
      sent++;
      if (!j.ended) CHECK(pthread_kill(t, restart ? SIGUSR2 : SIGUSR1) == 0, "pthread_kill");
    } while (!j.ended && sent < 400);
  }
  join_thread(t);
  if (restarts)
    CHECK(j.result >= 0, "%s with SA_RESTART: %ld, errno %d", name_of[call], j.result, j.error);
  else
    CHECK(j.result == -1 && j.error == EINTR, "%s%s: %ld, errno %d", name_of[call],
          restart ? " with SA_RESTART" : "", j.result, j.error);
  CHECK(j.hits >= 1 && j.hits <= sent, "%s: %d signals, handler ran %d times", name_of[call], sent, j.hits);
  if (call == NANOSLEEP || call == CLOCK_REL || call == SLEEP || call == CLOCK_ABS)
    CHECK(j.left > 1 && j.left <= 20, "%s: %.3f s left", name_of[call], j.left);
  close(j.fd);
  if (j.peer >= 0) close(j.peer);
  close(j.ep);
  return NULL;
}

int main(void) {
  check_begin();
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  NEED(sigaction(SIGUSR1, &action, NULL) == 0);
  action.sa_flags = SA_RESTART;
  NEED(sigaction(SIGUSR2, &action, NULL) == 0);
  STAGE("without and with SA_RESTART");
  pthread_t t[2 * CALLS];
  for (long i = 0; i < 2 * CALLS; i++) t[i] = start_thread(interrupt, (void*)i);
  for (int i = 0; i < 2 * CALLS; i++) join_thread(t[i]);
  return check_end();
}
