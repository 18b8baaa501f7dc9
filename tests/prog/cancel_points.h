/* cancel_points.h: the calls of cancel_points.cpp, each with what it waits for. */
#ifndef CANCEL_POINTS_H
#define CANCEL_POINTS_H

#include "check.h"

#include <fcntl.h>
#include <mqueue.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <threads.h>

#include <cstddef>
#include <initializer_list>

enum Way { kBlocked, kDisabled, kPending };

struct Point;
struct Try {
  const Point* point;
  Way way;
  pthread_t thread;
  int fd[2] = {-1, -1}, other = -1, queue = -1;
  sem_t sem, release;
  pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_t joined;
  pid_t child = 0;
  mqd_t mq = (mqd_t)-1;
  char path[64];
  volatile int inside = 0, cleaned = 0, destroyed = 0, returned = 0, flag = 0;
  volatile long result = 0;
};
struct Point {
  const char* name;
  void (*setup)(Try*);   // so that the call would wait
  long (*call)(Try*);
  void (*release)(Try*);  // ends the wait
  long want;              // the call's result after that
};

static int serial;

// ---- what to wait on ----
static void a_pipe(Try* t) { NEED(pipe(t->fd) == 0); }
static void put(Try* t) { NEED(write(t->fd[1], "x", 1) == 1); }
static void a_full_pipe(Try* t) {
  static char block[4096];
  NEED(pipe(t->fd) == 0);
  int flags = fcntl(t->fd[1], F_GETFL);
  fcntl(t->fd[1], F_SETFL, flags | O_NONBLOCK);
  while (write(t->fd[1], block, sizeof block) > 0) {
  }
  fcntl(t->fd[1], F_SETFL, flags);
}
static void drain(Try* t) {
  static char block[1 << 16];
  NEED(read(t->fd[0], block, sizeof block) > 0);
}
static void a_pair(Try* t) { NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, t->fd) == 0); }
static void a_full_pair(Try* t) {
  static char block[4096];
  NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, t->fd) == 0);
  while (send(t->fd[1], block, sizeof block, MSG_DONTWAIT) > 0) {
  }
}
static void drain_pair(Try* t) {
  static char block[4096];
  while (recv(t->fd[0], block, sizeof block, MSG_DONTWAIT) > 0) {
  }
}
static socklen_t unix_name(Try* t, sockaddr_un* a) {
  memset(a, 0, sizeof *a);
  a->sun_family = AF_UNIX;
  int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "vthr-test-%d-%d", getpid(), t->queue);
  return (socklen_t)(offsetof(sockaddr_un, sun_path) + 1 + (size_t)n);
}
static void a_listener(Try* t) {
  sockaddr_un a;
  t->queue = ++serial;
  socklen_t n = unix_name(t, &a);
  t->fd[0] = socket(AF_UNIX, SOCK_STREAM, 0);
  NEED(t->fd[0] >= 0 && bind(t->fd[0], (sockaddr*)&a, n) == 0 && listen(t->fd[0], 0) == 0);
}
static void dial(Try* t) {
  sockaddr_un a;
  socklen_t n = unix_name(t, &a);
  t->fd[1] = socket(AF_UNIX, SOCK_STREAM, 0);
  NEED(t->fd[1] >= 0 && connect(t->fd[1], (sockaddr*)&a, n) == 0);
}
static void a_full_listener(Try* t) {
  a_listener(t);
  dial(t);  // fills the queue
  t->other = socket(AF_UNIX, SOCK_STREAM, 0);
}
static void answer(Try* t) { NEED(accept(t->fd[0], NULL, NULL) >= 0); }
static void an_epoll(Try* t) {
  a_pipe(t);
  t->other = epoll_create1(0);
  epoll_event e{};
  e.events = EPOLLIN;
  NEED(epoll_ctl(t->other, EPOLL_CTL_ADD, t->fd[0], &e) == 0);
}
static void a_sem(Try* t) { sem_init(&t->sem, 0, 0); }
static void post(Try* t) { sem_post(&t->sem); }
static void nothing(Try*) {}
static void notify(Try* t) {
  pthread_mutex_lock(&t->mutex);
  t->flag = 1;
  pthread_cond_broadcast(&t->cond);
  pthread_mutex_unlock(&t->mutex);
}
static void* until_released(void* p) {
  int state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  while (sem_wait(&((Try*)p)->release) != 0) {
  }
  return p;
}
static void a_thread(Try* t) {
  sem_init(&t->release, 0, 0);
  t->joined = start_thread(until_released, t);
}
static void end_thread(Try* t) {
  sem_post(&t->release);
  if (t->way == kPending) pause_ms(50);
}
static void on_usr1(int) {}
static void to_thread(Try* t) {
  if (t->way == kPending) return;
  pthread_kill(t->thread, SIGUSR1);
}
static void pending_usr1(Try* t) {
  sigset_t set;
  (void)t;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
}
static void a_child(Try* t) {
  NEED(pipe(t->fd) == 0);
  t->child = fork();
  NEED(t->child >= 0);
  if (t->child == 0) {
    char c;
    close(t->fd[1]);
    _exit(read(t->fd[0], &c, 1) == 1 ? 7 : 7);
  }
}
static void end_child(Try* t) {
  put(t);
  siginfo_t info;
  if (t->way == kPending) waitid(P_PID, (id_t)t->child, &info, WEXITED | WNOWAIT);
}
static void a_fifo(Try* t) {
  snprintf(t->path, sizeof t->path, "/tmp/vthr-fifo-%d-%d", getpid(), ++serial);
  NEED(mkfifo(t->path, 0600) == 0);
}
static void open_fifo(Try* t) {
  t->other = open(t->path, O_RDWR);
  NEED(t->other >= 0);
}
static void a_lock(Try* t) {
  snprintf(t->path, sizeof t->path, "/tmp/vthr-lock-%d-%d", getpid(), ++serial);
  t->other = open(t->path, O_CREAT | O_RDWR, 0600);
  int ready[2];
  char c;
  NEED(t->other >= 0 && pipe(t->fd) == 0 && pipe(ready) == 0);
  t->child = fork();
  if (t->child == 0) {
    struct flock fl {};
    fl.l_type = F_WRLCK;
    close(t->fd[1]);
    _exit(fcntl(t->other, F_SETLK, &fl) != 0 || write(ready[1], "x", 1) != 1 || read(t->fd[0], &c, 1) > 9);
  }
  NEED(read(ready[0], &c, 1) == 1);
  close(ready[0]);
  close(ready[1]);
}
static void a_msg_queue(Try* t) { NEED((t->queue = msgget(IPC_PRIVATE, IPC_CREAT | 0600)) >= 0); }
struct Message {
  long type;
  char text[4];
};
static void send_message(Try* t) {
  Message m{1, "abc"};
  NEED(msgsnd(t->queue, &m, 4, IPC_NOWAIT) == 0);
}
static void a_full_msg_queue(Try* t) {
  a_msg_queue(t);
  Message m{1, "abc"};
  while (msgsnd(t->queue, &m, 4, IPC_NOWAIT) == 0) {
  }
}
static void take_message(Try* t) {
  Message m;
  NEED(msgrcv(t->queue, &m, 4, 0, IPC_NOWAIT) >= 0);
}

// ---- the calls ----
static char byte;
static iovec one_byte() { return {&byte, 1}; }
static long c_read(Try* t) { return read(t->fd[0], &byte, 1); }
static long c_readv(Try* t) {
  iovec v = one_byte();
  return readv(t->fd[0], &v, 1);
}
static long c_write(Try* t) { return write(t->fd[1], "y", 1); }
static long c_writev(Try* t) {
  iovec v = one_byte();
  return writev(t->fd[1], &v, 1);
}
static long c_recv(Try* t) { return recv(t->fd[0], &byte, 1, 0); }
static long c_recvfrom(Try* t) {
  sockaddr_un a;
  socklen_t n = sizeof a;
  return recvfrom(t->fd[0], &byte, 1, 0, (sockaddr*)&a, &n);
}
static long c_recvmsg(Try* t) {
  iovec v = one_byte();
  msghdr m{};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  return recvmsg(t->fd[0], &m, 0);
}
static long c_recvmmsg(Try* t) {
  iovec v = one_byte();
  mmsghdr m{};
  m.msg_hdr.msg_iov = &v;
  m.msg_hdr.msg_iovlen = 1;
  return recvmmsg(t->fd[0], &m, 1, 0, NULL);
}
static long c_send(Try* t) { return send(t->fd[1], "y", 1, 0); }
static long c_sendto(Try* t) { return sendto(t->fd[1], "y", 1, 0, NULL, 0); }
static long c_sendmsg(Try* t) {
  iovec v = one_byte();
  msghdr m{};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  return sendmsg(t->fd[1], &m, 0);
}
static long c_sendmmsg(Try* t) {
  iovec v = one_byte();
  mmsghdr m{};
  m.msg_hdr.msg_iov = &v;
  m.msg_hdr.msg_iovlen = 1;
  return sendmmsg(t->fd[1], &m, 1, 0);
}
static long c_accept(Try* t) { return accept(t->fd[0], NULL, NULL) >= 0; }
static long c_accept4(Try* t) { return accept4(t->fd[0], NULL, NULL, SOCK_CLOEXEC) >= 0; }
static long c_connect(Try* t) {
  sockaddr_un a;
  socklen_t n = unix_name(t, &a);
  return connect(t->other, (sockaddr*)&a, n);
}
static long c_poll(Try* t) {
  pollfd p = {t->fd[0], POLLIN, 0};
  return poll(&p, 1, -1);
}
static long c_ppoll(Try* t) {
  pollfd p = {t->fd[0], POLLIN, 0};
  return ppoll(&p, 1, NULL, NULL);
}
static long c_select(Try* t) {
  fd_set s;
  FD_ZERO(&s);
  FD_SET(t->fd[0], &s);
  return select(t->fd[0] + 1, &s, NULL, NULL, NULL);
}
static long c_pselect(Try* t) {
  fd_set s;
  FD_ZERO(&s);
  FD_SET(t->fd[0], &s);
  return pselect(t->fd[0] + 1, &s, NULL, NULL, NULL, NULL);
}
static long c_epoll_wait(Try* t) {
  epoll_event e;
  return epoll_wait(t->other, &e, 1, -1);
}
static long c_epoll_pwait(Try* t) {
  epoll_event e;
  return epoll_pwait(t->other, &e, 1, -1, NULL);
}
static timespec how_long(Try* t) { return t->way == kBlocked ? ms_span(100000) : ms_span(t->way == kDisabled ? 150 : 0); }
static long c_sleep(Try* t) { return sleep(t->way == kBlocked ? 100 : t->way == kDisabled ? 1 : 0); }
static long c_usleep(Try* t) { return usleep(t->way == kBlocked ? 100000000 : t->way == kDisabled ? 150000 : 0); }
static long c_nanosleep(Try* t) {
  timespec ts = how_long(t);
  return nanosleep(&ts, NULL);
}
static long c_clock_nanosleep(Try* t) {
  timespec ts = how_long(t);
  return clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL);
}
static long c_clock_nanosleep_abs(Try* t) {
  timespec ts = ms_from_now(CLOCK_REALTIME, t->way == kBlocked ? 100000 : t->way == kDisabled ? 150 : 0);
  return clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &ts, NULL);
}
static long c_thrd_sleep(Try* t) {
  timespec ts = how_long(t);
  return thrd_sleep(&ts, NULL);
}
static long c_sem_wait(Try* t) { return sem_wait(&t->sem); }
static long c_sem_timedwait(Try* t) {
  timespec ts = ms_from_now(CLOCK_REALTIME, 100000);
  return sem_timedwait(&t->sem, &ts);
}
static long c_sem_clockwait(Try* t) {
  timespec ts = ms_from_now(CLOCK_MONOTONIC, 100000);
  return sem_clockwait(&t->sem, CLOCK_MONOTONIC, &ts);
}
// The mutex must be the canceled thread's again when its cleanup handler runs.
static void unlock(void* p) {
  Try* t = (Try*)p;
  CHECK(pthread_mutex_trylock(&t->mutex) == EBUSY, "%s: the mutex is not locked again", t->point->name);
  CHECK(pthread_mutex_unlock(&t->mutex) == 0, "%s: unlock", t->point->name);
}
template <class Wait>
static long on_cond(Try* t, Wait wait) {
  long r = 0;
  pthread_mutex_lock(&t->mutex);
  pthread_cleanup_push(unlock, t);
  do {
    r = wait();
  } while (r == 0 && !t->flag);
  pthread_cleanup_pop(1);
  return r;
}
static long c_cond_wait(Try* t) {
  return on_cond(t, [=] { return pthread_cond_wait(&t->cond, &t->mutex); });
}
static long c_cond_timedwait(Try* t) {
  timespec ts = ms_from_now(CLOCK_REALTIME, 100000);
  return on_cond(t, [=] { return pthread_cond_timedwait(&t->cond, &t->mutex, &ts); });
}
static long c_cond_clockwait(Try* t) {
  timespec ts = ms_from_now(CLOCK_MONOTONIC, 100000);
  return on_cond(t, [=] { return pthread_cond_clockwait(&t->cond, &t->mutex, CLOCK_MONOTONIC, &ts); });
}
static long c_cnd_wait(Try* t) {
  return on_cond(t, [=] { return cnd_wait((cnd_t*)&t->cond, (mtx_t*)&t->mutex); });
}
static long c_cnd_timedwait(Try* t) {
  timespec ts = ms_from_now(CLOCK_REALTIME, 100000);
  return on_cond(t, [=] { return cnd_timedwait((cnd_t*)&t->cond, (mtx_t*)&t->mutex, &ts); });
}
static long c_join(Try* t) {
  void* r = NULL;
  long e = pthread_join(t->joined, &r);
  t->joined = 0;
  return e;
}
static long c_timedjoin(Try* t) {
  timespec ts = ms_from_now(CLOCK_REALTIME, 100000);
  long e = pthread_timedjoin_np(t->joined, NULL, &ts);
  t->joined = 0;
  return e;
}
static long c_clockjoin(Try* t) {
  timespec ts = ms_from_now(CLOCK_MONOTONIC, 100000);
  long e = pthread_clockjoin_np(t->joined, NULL, CLOCK_MONOTONIC, &ts);
  t->joined = 0;
  return e;
}
static long c_thrd_join(Try* t) {
  long e = thrd_join(t->joined, NULL);
  t->joined = 0;
  return e;
}
static sigset_t only_usr1() {
  sigset_t s;
  sigemptyset(&s);
  sigaddset(&s, SIGUSR1);
  return s;
}
static void raise_first(Try* t) {
  if (t->way == kPending) pthread_kill(pthread_self(), SIGUSR1);
}
static long c_sigwait(Try* t) {
  sigset_t s = only_usr1();
  int sig = 0;
  raise_first(t);
  sigwait(&s, &sig);
  return sig == SIGUSR1;
}
static long c_sigwaitinfo(Try* t) {
  sigset_t s = only_usr1();
  raise_first(t);
  return sigwaitinfo(&s, NULL) == SIGUSR1;
}
static long c_sigtimedwait(Try* t) {
  sigset_t s = only_usr1();
  timespec ts = ms_span(100000);
  raise_first(t);
  return sigtimedwait(&s, NULL, &ts) == SIGUSR1;
}
static long c_sigsuspend(Try* t) {
  sigset_t s;
  sigemptyset(&s);
  raise_first(t);
  return sigsuspend(&s);
}
static long c_pause(Try* t) {
  sigset_t s = only_usr1();
  pthread_sigmask(SIG_UNBLOCK, &s, NULL);
  if (t->way == kPending) return 0;  // nothing can be there already
  return pause();
}
static long c_waitpid(Try* t) { return waitpid(t->child, NULL, 0) == t->child; }
static long c_waitid(Try* t) {
  siginfo_t info;
  return waitid(P_PID, (id_t)t->child, &info, WEXITED);
}
static long c_open(Try* t) { return open(t->path, O_RDONLY) >= 0; }
static long c_setlkw(Try* t) {
  struct flock fl {};
  fl.l_type = F_WRLCK;
  return fcntl(t->other, F_SETLKW, &fl);
}
static long c_msgrcv(Try* t) {
  Message m;
  return msgrcv(t->queue, &m, 4, 0, 0) == 4;
}
static long c_msgsnd(Try* t) {
  Message m{1, "abc"};
  return msgsnd(t->queue, &m, 4, 0);
}
static long c_system(Try* t) { return system(t->way == kBlocked ? "sleep 100" : "sleep 0.2"); }

#define POINT(name, setup, call, release, want) {name, setup, call, release, want}
static const Point points[] = {
    POINT("read", a_pipe, c_read, put, 1),
    POINT("readv", a_pipe, c_readv, put, 1),
    POINT("read of a socket", a_pair, c_read, put, 1),
    POINT("write", a_full_pipe, c_write, drain, 1),
    POINT("writev", a_full_pipe, c_writev, drain, 1),
    POINT("recv", a_pair, c_recv, put, 1),
    POINT("recvfrom", a_pair, c_recvfrom, put, 1),
    POINT("recvmsg", a_pair, c_recvmsg, put, 1),
    POINT("recvmmsg", a_pair, c_recvmmsg, put, 1),
    POINT("send", a_full_pair, c_send, drain_pair, 1),
    POINT("sendto", a_full_pair, c_sendto, drain_pair, 1),
    POINT("sendmsg", a_full_pair, c_sendmsg, drain_pair, 1),
    POINT("sendmmsg", a_full_pair, c_sendmmsg, drain_pair, 1),
    POINT("accept", a_listener, c_accept, dial, 1),
    POINT("accept4", a_listener, c_accept4, dial, 1),
    POINT("connect", a_full_listener, c_connect, answer, 0),
    POINT("poll", a_pipe, c_poll, put, 1),
    POINT("ppoll", a_pipe, c_ppoll, put, 1),
    POINT("select", a_pipe, c_select, put, 1),
    POINT("pselect", a_pipe, c_pselect, put, 1),
    POINT("epoll_wait", an_epoll, c_epoll_wait, put, 1),
    POINT("epoll_pwait", an_epoll, c_epoll_pwait, put, 1),
    POINT("sleep", nothing, c_sleep, nothing, 0),
    POINT("usleep", nothing, c_usleep, nothing, 0),
    POINT("nanosleep", nothing, c_nanosleep, nothing, 0),
    POINT("clock_nanosleep", nothing, c_clock_nanosleep, nothing, 0),
    POINT("clock_nanosleep of a time", nothing, c_clock_nanosleep_abs, nothing, 0),
    POINT("thrd_sleep", nothing, c_thrd_sleep, nothing, 0),
    POINT("sem_wait", a_sem, c_sem_wait, post, 0),
    POINT("sem_timedwait", a_sem, c_sem_timedwait, post, 0),
    POINT("sem_clockwait", a_sem, c_sem_clockwait, post, 0),
    POINT("pthread_cond_wait", nothing, c_cond_wait, notify, 0),
    POINT("pthread_cond_timedwait", nothing, c_cond_timedwait, notify, 0),
    POINT("pthread_cond_clockwait", nothing, c_cond_clockwait, notify, 0),
    POINT("cnd_wait", nothing, c_cnd_wait, notify, 0),
    POINT("cnd_timedwait", nothing, c_cnd_timedwait, notify, 0),
    POINT("pthread_join", a_thread, c_join, end_thread, 0),
    POINT("pthread_timedjoin_np", a_thread, c_timedjoin, end_thread, 0),
    POINT("pthread_clockjoin_np", a_thread, c_clockjoin, end_thread, 0),
    POINT("thrd_join", a_thread, c_thrd_join, end_thread, 0),
    POINT("sigwait", pending_usr1, c_sigwait, to_thread, 1),
    POINT("sigwaitinfo", pending_usr1, c_sigwaitinfo, to_thread, 1),
    POINT("sigtimedwait", pending_usr1, c_sigtimedwait, to_thread, 1),
    POINT("sigsuspend", pending_usr1, c_sigsuspend, to_thread, -1),
    POINT("pause", pending_usr1, c_pause, to_thread, -1),
    POINT("waitpid", a_child, c_waitpid, end_child, 1),
    POINT("waitid", a_child, c_waitid, end_child, 0),
    POINT("open of a FIFO", a_fifo, c_open, open_fifo, 1),
    POINT("fcntl(F_SETLKW)", a_lock, c_setlkw, put, 0),
    POINT("msgrcv", a_msg_queue, c_msgrcv, send_message, 1),
    POINT("msgsnd", a_full_msg_queue, c_msgsnd, take_message, 0),
    POINT("system", nothing, c_system, nothing, 0),
};

#endif
