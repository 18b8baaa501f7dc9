/*
 * Calls that no signal interrupts do not return EINTR: threads in system calls of all kinds, beside threads whose
 * sleeps and socket traffic end all the time.
 */
// run: name=calls
// run: name=timed args=timed
#include "net.h"

#include <mqueue.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/syscall.h>

static atomic_int stop, traffic;

static void* talk(void* unused) {
  (void)unused;
  int s[2];
  char c = 'x';
  stream_pair(s);
  while (!stop) {
    CHECK(write(s[1], &c, 1) == 1 && read(s[0], &c, 1) == 1, "socket");
    usleep(300);
    traffic++;
  }
  close(s[0]);
  close(s[1]);
  return NULL;
}

/* Echoes to a partner that answers late: the read really sleeps. */
static int ping[8][2];
static void* one_side(void* argument) {
  int fd = ping[(long)argument / 2][(long)argument % 2];
  char c;
  while (read(fd, &c, 1) == 1) {
    usleep(200);
    traffic++;
    if (write(fd, &c, 1) != 1) break;
  }
  return NULL;
}

enum call {
  FLOCK,
  SETLKW,
  WAITPID,
  WAITID,
  MSGRCV,
  MQ,
  SEMOP,
  RECVMMSG,
  INLINE_POLL,
  INLINE_SLEEP,
  SEMTIMEDOP,
  EPOLL_PWAIT2,
  SIGTIMEDWAIT, /* the kernel ends these for the sake of another request of the same thread */
  CALLS
};
static const char* const call_name[CALLS] = {"flock",
                                             "F_SETLKW",
                                             "waitpid",
                                             "waitid",
                                             "msgrcv",
                                             "mq_timedreceive",
                                             "semop",
                                             "recvmmsg",
                                             "poll by instruction",
                                             "nanosleep by instruction",
                                             "semtimedop",
                                             "epoll_pwait2",
                                             "sigtimedwait"};
static int lock_fd[2], message_queue, semaphores, idle[2];

static long inline_syscall(long number, long a, long b, long c) {
  long result;
  register long fourth __asm__("r10") = 0;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                   : "rcx", "r11", "memory");
  return result;
}

static pid_t short_lived(void) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    usleep(120000);
    _exit(0);
  }
  return pid;
}

/* Each call sleeps about 120 ms and then ends by itself or because main lets it. */
static void* call(void* argument) {
  enum call which = (enum call)(long)argument;
  struct timespec span = ms_span(120);
  long r = -1;
  errno = 0;
  switch (which) {
    case FLOCK:
      r = flock(lock_fd[1], LOCK_EX);
      break;
    case SETLKW: { /* held by another process */
      struct flock whole = {.l_type = F_WRLCK};
      r = fcntl(lock_fd[0], F_SETLKW, &whole);
      whole.l_type = F_UNLCK;
      CHECK(fcntl(lock_fd[0], F_SETLK, &whole) == 0, "unlock");
      break;
    }
    case WAITPID:
      r = waitpid(short_lived(), NULL, 0) > 0 ? 0 : -1;
      break;
    case WAITID: {
      siginfo_t info;
      r = waitid(P_PID, (id_t)short_lived(), &info, WEXITED);
      break;
    }
    case MSGRCV: {
      struct {
        long type;
        char text[8];
      } m;
      r = msgrcv(message_queue, &m, sizeof m.text, 0, 0) == 1 ? 0 : -1;
      break;
    }
    case MQ: {
      char name[64], text[16];
      struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = 16};
      snprintf(name, sizeof name, "/check-%d", (int)getpid());
      mqd_t q = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, &attr);
      if (q == (mqd_t)-1) return NULL; /* no such queues here */
      struct timespec until = ms_from_now(CLOCK_REALTIME, 120);
      r = mq_timedreceive(q, text, sizeof text, NULL, &until) == -1 && errno == ETIMEDOUT ? 0 : -1;
      mq_close(q);
      mq_unlink(name);
      break;
    }
    case SEMOP: {
      struct sembuf down = {0, -1, 0};
      r = semop(semaphores, &down, 1);
      break;
    }
    case SEMTIMEDOP: {
      struct sembuf down = {1, -1, 0};
      r = semtimedop(semaphores, &down, 1, &span) == -1 && errno == EAGAIN ? 0 : -1;
      break;
    }
    case EPOLL_PWAIT2: {
      struct epoll_event e;
      int ep = epoll_create1(0);
      r = syscall(SYS_epoll_pwait2, ep, &e, 1, &span, NULL, 8);
      if (r == -1 && errno == ENOSYS) r = 0;
      close(ep);
      break;
    }
    case SIGTIMEDWAIT: {
      sigset_t set;
      sigemptyset(&set);
      sigaddset(&set, SIGUSR2);
      pthread_sigmask(SIG_BLOCK, &set, NULL);
      r = sigtimedwait(&set, NULL, &span) == -1 && errno == EAGAIN ? 0 : -1;
      break;
    }
    case RECVMMSG: {
      char text[16];
      struct iovec part = {text, sizeof text};
      struct mmsghdr header = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
      r = recvmmsg(idle[0], &header, 1, 0, NULL) == 1 ? 0 : -1;
      break;
    }
    case INLINE_POLL:
      r = inline_syscall(SYS_poll, 0, 0, 120);
      break;
    case INLINE_SLEEP:
      r = inline_syscall(SYS_nanosleep, (long)&span, 0, 0);
      break;
    default:
      break;
  }
  CHECK(r == 0, "%s: %ld, errno %d", call_name[which], r, errno);
  return NULL;
}

/* Another process holds the record lock for 120 ms. */
static pid_t hold_record(void) {
  int p[2];
  char c;
  NEED(pipe(p) == 0);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    struct flock whole = {.l_type = F_WRLCK};
    if (fcntl(lock_fd[0], F_SETLK, &whole) != 0 || write(p[1], "x", 1) != 1) _exit(1);
    usleep(120000);
    _exit(0);
  }
  close(p[1]);
  CHECK(read(p[0], &c, 1) == 1, "the other process has the lock");
  close(p[0]);
  return pid;
}

int main(int argc, char** argv) {
  int timed = argc > 1 && !strcmp(argv[1], "timed");
  check_begin();
  signal(SIGPIPE, SIG_IGN);
  char name[128];
  const char* dir = getenv("TMPDIR");
  pthread_t t[20], side[16];
  snprintf(name, sizeof name, "%.80s/check-eintr-%d", dir ? dir : "/tmp", (int)getpid());
  for (int i = 0; i < 2; i++) NEED((lock_fd[i] = open(name, O_RDWR | O_CREAT, 0600)) >= 0);
  unlink(name);
  message_queue = msgget(IPC_PRIVATE, 0600);
  semaphores = semget(IPC_PRIVATE, 2, 0600);
  NEED(message_queue >= 0 && semaphores >= 0);
  NEED(semctl(semaphores, 0, SETVAL, 0) == 0 && semctl(semaphores, 1, SETVAL, 0) == 0);
  stream_pair(idle);
  for (long i = 0; i < 8; i++) stream_pair(ping[i]);
  for (long i = 0; i < 16; i++) side[i] = start_thread(one_side, (void*)i);
  for (int i = 0; i < 8; i++) CHECK(write(ping[i][0], "x", 1) == 1, "first byte");
  for (int i = 0; i < 20; i++) t[i] = start_thread(talk, NULL);
  for (long which = timed ? SEMTIMEDOP : 0; which < (timed ? CALLS : SEMTIMEDOP); which++)
    for (int round = 0; round < 2; round++) {
      STAGE(call_name[which]);
      pid_t holder = which == SETLKW ? hold_record() : -1;
      if (which == FLOCK) NEED(flock(lock_fd[0], LOCK_EX) == 0);
      pthread_t c = start_thread(call, (void*)which);
      pause_ms(120);
      if (which == FLOCK) NEED(flock(lock_fd[0], LOCK_UN) == 0);
      struct {
        long type;
        char text[8];
      } m = {1, "m"};
      struct sembuf up = {0, 1, 0};
      if (which == MSGRCV) CHECK(msgsnd(message_queue, &m, 1, 0) == 0, "msgsnd");
      if (which == SEMOP) CHECK(semop(semaphores, &up, 1) == 0, "semop");
      if (which == RECVMMSG) CHECK(write(idle[1], "x", 1) == 1, "write");
      join_thread(c);
      if (which == FLOCK) NEED(flock(lock_fd[1], LOCK_UN) == 0);
      if (holder > 0) waitpid(holder, NULL, 0);
    }
  CHECK(traffic > 100, "there was no traffic");
  stop = 1;
  for (int i = 0; i < 8; i++) shutdown(ping[i][0], SHUT_RDWR);
  for (int i = 0; i < 16; i++) join_thread(side[i]);
  for (int i = 0; i < 20; i++) join_thread(t[i]);
  msgctl(message_queue, IPC_RMID, NULL);
  semctl(semaphores, 0, IPC_RMID);
  return check_end();
}
