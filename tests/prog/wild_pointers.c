/*
 * Pointers to nowhere: calls of the kernel give EFAULT, functions of libc that look themselves fault, and a handler that jumps out
 * of them leaves a thread that works on. The two kinds are those of the native run: what each did is printed.
 */
#include "net.h"

#include <poll.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>

static __thread sigjmp_buf back;
static void on_fault(int unused) {
  (void)unused;
  siglongjmp(back, 1);
}

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static int pair[2], epoll_fd;
enum {
  LOCK, TRYLOCK, UNLOCK, TIMEDLOCK_TIME, COND_SIGNAL, COND_WAIT, SEM_POST, SEM_WAIT, SEM_TIMED_TIME, RDLOCK, RWUNLOCK, BARRIER, ONCE,
  NANOSLEEP, CLOCK_NANOSLEEP, POLL, PPOLL_TIME, SELECT_SET, SELECT_TIME, EPOLL_EVENTS, READ, WRITE, RECV, SEND, RECVMSG, SENDMSG, READV,
  IOVEC, ACCEPT_ADDRESS, CONNECT_ADDRESS, FUTEX, SIGTIMEDWAIT, MASK, CALLS
};
static const char* const names[CALLS] = {
    "mutex_lock", "mutex_trylock", "mutex_unlock", "mutex_timedlock, time", "cond_signal", "cond_wait", "sem_post", "sem_wait",
    "sem_timedwait, time", "rwlock_rdlock", "rwlock_unlock", "barrier_wait", "once", "nanosleep", "clock_nanosleep", "poll", "ppoll, time",
    "select, set", "select, time", "epoll_wait", "read", "write", "recv", "send", "recvmsg", "sendmsg", "readv", "readv, buffer",
    "accept, address", "connect, address", "futex", "sigtimedwait", "sigmask"};

static void nothing(void) {}
static long call(int which) {
  void* wild = wild_address();
  static sem_t none;
  struct pollfd p = {pair[0], POLLIN, 0};
  struct iovec bad = {wild, 4};
  fd_set set;
  struct timeval moment = {0, 1000};
  switch (which) {
    case LOCK: return pthread_mutex_lock(wild);
    case TRYLOCK: return pthread_mutex_trylock(wild);
    case UNLOCK: return pthread_mutex_unlock(wild);
    case TIMEDLOCK_TIME: return pthread_mutex_timedlock(&held, wild);
    case COND_SIGNAL: return pthread_cond_signal(wild);
    case COND_WAIT: return pthread_cond_wait(wild, wild);
    case SEM_POST: return sem_post(wild);
    case SEM_WAIT: return sem_wait(wild);
    case SEM_TIMED_TIME: return sem_timedwait(&none, wild);
    case RDLOCK: return pthread_rwlock_rdlock(wild);
    case RWUNLOCK: return pthread_rwlock_unlock(wild);
    case BARRIER: return pthread_barrier_wait(wild);
    case ONCE: return pthread_once(wild, nothing);
    case NANOSLEEP: return nanosleep(wild, NULL);
    case CLOCK_NANOSLEEP: return clock_nanosleep(CLOCK_MONOTONIC, 0, wild, NULL);
    case POLL: return poll(wild, 1, 5);
    case PPOLL_TIME: return ppoll(&p, 1, wild, NULL);
    case SELECT_SET: return select(5, wild, NULL, NULL, &moment);
    case SELECT_TIME:
      FD_ZERO(&set);
      FD_SET(pair[0], &set);
      return select(pair[0] + 1, &set, NULL, NULL, wild);
    case EPOLL_EVENTS: return epoll_wait(epoll_fd, wild, 1, 5);
    case READ: return read(pair[1], wild, 4);
    case WRITE: return write(pair[0], wild, 4);
    case RECV: return recv(pair[1], wild, 4, 0);
    case SEND: return send(pair[0], wild, 4, 0);
    case RECVMSG: return recvmsg(pair[1], wild, 0);
    case SENDMSG: return sendmsg(pair[0], wild, 0);
    case READV: return readv(pair[1], wild, 1);
    case IOVEC: return readv(pair[1], &bad, 1);
    case ACCEPT_ADDRESS: return accept(pair[0], wild, wild);
    case CONNECT_ADDRESS: return connect(pair[0], wild, 16);
    case FUTEX: return syscall(SYS_futex, wild, 128, 0, NULL, NULL, 0);
    case SIGTIMEDWAIT: return sigtimedwait(wild, NULL, NULL);
    default: return pthread_sigmask(SIG_BLOCK, wild, NULL);
  }
}

static atomic_int ticks, stop;
static void* ticker(void* unused) {
  while (!stop) {
    ticks++;
    usleep(200);
  }
  return unused;
}
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void works_on(const char* after) {
  char c = 0;
  int before = ticks;
  usleep(300);
  for (int i = 0; i < 8000 && ticks == before; i++) usleep(1000);
  CHECK(ticks > before, "after %s: others do not go on", after);
  pthread_mutex_lock(&lock);
  usleep(10);
  pthread_mutex_unlock(&lock);
  CHECK(write(pair[1], "y", 1) == 1 && read(pair[0], &c, 1) == 1 && c == 'y', "after %s: a byte through a socket", after);
}
static char did[CALLS][80];
static void* all(void* argument) {
  for (int i = 0; i < CALLS; i++) {
    char text[80];
    errno = 0;
    if (sigsetjmp(back, 1) == 0) {
      long r = call(i);
      snprintf(text, sizeof text, "%ld errno %d", r, errno);
    } else {
      strcpy(text, "faults");
    }
    if (!did[i][0]) strcpy(did[i], text);
    CHECK(strcmp(did[i], text) == 0, "%s: %s, before it was: %s", names[i], text, did[i]);
    works_on(names[i]);
  }
  return argument;
}

int main(void) {
  check_begin();
  pthread_mutex_lock(&held);
  stream_pair(pair);
  NEED(write(pair[0], "data", 4) == 4);
  epoll_fd = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN};
  NEED(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, pair[1], &event) == 0);
  signal(SIGSEGV, on_fault);
  signal(SIGBUS, on_fault);
  pthread_t t[2];
  for (int i = 0; i < 2; i++) t[i] = start_thread(ticker, NULL);
  STAGE("in a thread");
  join_thread(start_thread(all, NULL));
  STAGE("in another");
  join_thread(start_thread(all, NULL));
  stop = 1;
  for (int i = 0; i < 2; i++) join_thread(t[i]);
  for (int i = 0; i < CALLS; i++) printf("%s: %s\n", names[i], did[i]);
  return check_end();
}
