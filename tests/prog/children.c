/* Waiting for child processes in threads: wait, waitpid, wait3, wait4, waitid, by name and by number, and system(). */
#include "check.h"

#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

/* A child that ends with `code` when the other end of *go is closed. */
static pid_t child_of(int code, int* go) {
  int p[2];
  NEED(pipe(p) == 0);
  pid_t pid = fork();
  if (pid == 0) {
    char c;
    close(p[1]);
    if (read(p[0], &c, 1) < 0) _exit(99);
    _exit(code);
  }
  NEED(pid > 0);
  close(p[0]);
  *go = p[1];
  return pid;
}
static pthread_mutex_t fork_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t locked_child(int code, int* go) {
  /* the pipes of one child must not live on in another */
  pthread_mutex_lock(&fork_lock);
  pid_t pid = child_of(code, go);
  pthread_mutex_unlock(&fork_lock);
  return pid;
}

static atomic_long ticks;
static void* tick(void* unused) {
  while (ticks >= 0) {
    usleep(1000);
    if (ticks >= 0) ticks++;
  }
  return unused;
}
/* Lets a child go once everybody else has had time: the threads that wait must not be in the way. */
static void* let_go(void* fd) {
  long before = ticks;
  CHECK(EVENTUALLY(ticks > before + 20), "others stand still");
  close((int)(long)fd);
  return NULL;
}

enum { WAYS = 8 };
static void* one_way(void* argument) {
  long way = (long)argument;
  int go = -1, status = -1;
  struct rusage use;
  siginfo_t info;
  memset(&info, 0, sizeof info);
  pid_t pid = locked_child(10 + (int)way, &go), got = -1;
  int as_info = 0;
  pthread_t closer = start_thread(let_go, (void*)(long)go);
  switch (way) {
    case 0:
      got = waitpid(pid, &status, 0);
      break;
    case 1:
      memset(&use, 0xff, sizeof use);
      got = wait4(pid, &status, 0, &use);
      CHECK(use.ru_utime.tv_sec >= 0 && use.ru_utime.tv_sec < 100, "usage");
      break;
    case 2:
      as_info = 1;
      got = waitid(P_PID, (id_t)pid, &info, WEXITED) == 0 ? pid : -1;
      break;
    case 3:
      as_info = 1; /* looks first, then collects */
      CHECK(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) == 0 && info.si_pid == pid, "WNOWAIT");
      memset(&info, 0, sizeof info);
      got = waitid(P_PID, (id_t)pid, &info, WEXITED) == 0 ? pid : -1;
      break;
    case 4:
      got = (pid_t)syscall(SYS_wait4, pid, &status, 0, NULL);
      break;
    case 5:
      as_info = 1;
      got = syscall(SYS_waitid, P_PID, pid, &info, WEXITED, NULL) == 0 ? pid : -1;
      break;
    case 6: {
      int fd = (int)syscall(434 /* pidfd_open */, pid, 0);
      as_info = 1;
      NEED(fd >= 0);
      got = waitid((idtype_t)P_PIDFD, (id_t)fd, &info, WEXITED) == 0 ? pid : -1;
      close(fd);
      break;
    }
    case 7: /* nothing yet, many times */
      while ((got = waitpid(pid, &status, WNOHANG)) == 0) usleep(500);
      break;
  }
  CHECK(got == pid, "way %ld: %d, errno %d", way, (int)got, errno);
  if (as_info)
    CHECK(info.si_pid == pid && info.si_signo == SIGCHLD && info.si_code == CLD_EXITED && info.si_status == 10 + way,
          "way %ld: si_pid %d si_status %d", way, (int)info.si_pid, info.si_status);
  else
    CHECK(exited_with(status, 10 + (int)way), "way %ld: status %#x", way, status);
  errno = 0;
  CHECK(waitpid(pid, &status, 0) == -1 && errno == ECHILD, "way %ld: it can be collected twice", way);
  join_thread(closer);
  return NULL;
}

/* Five threads wait for any child; each of five children is collected once. */
static atomic_int collected;
static void* wait_any(void* argument) {
  int status = -1;
  pid_t pid = (long)argument % 2 ? wait(&status) : wait3(&status, 0, NULL);
  CHECK(pid > 0 && WIFEXITED(status), "wait: %d, errno %d", (int)pid, errno);
  if (pid > 0) collected |= 1 << WEXITSTATUS(status);
  return NULL;
}

static atomic_int handled, in_wait;
static void on_usr1(int signal_number) {
  (void)signal_number;
  handled++;
}
/* A handler ends the wait, or with SA_RESTART does not. */
static int interrupted_go;
static void* interrupted(void* argument) {
  int restart = argument != NULL, status = -1;
  pid_t pid = locked_child(1, &interrupted_go);
  in_wait = 1;
  pid_t got = waitpid(pid, &status, 0);
  if (restart) {
    CHECK(got == pid && exited_with(status, 1), "SA_RESTART: %d, errno %d", (int)got, errno);
  } else {
    CHECK(got == -1 && errno == EINTR, "no SA_RESTART: %d, errno %d", (int)got, errno);
  }
  in_wait = 0;
  if (!restart) {
    close(interrupted_go);
    CHECK(waitpid(pid, &status, 0) == pid, "after EINTR");
  }
  return NULL;
}
static void handlers(int restart) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_usr1;
  action.sa_flags = restart ? SA_RESTART : 0;
  sigaction(SIGUSR1, &action, NULL);
  handled = 0;
  in_wait = 0;
  pthread_t t = start_thread(interrupted, restart ? (void*)1 : NULL);
  CHECK(EVENTUALLY(in_wait), "no wait");
  pause_ms(20);
  pthread_kill(t, SIGUSR1);
  CHECK(EVENTUALLY(handled > 0), "no handler ran");
  for (int i = 0; i < 1000 && in_wait && !restart; i++) {
    pthread_kill(t, SIGUSR1); /* the first may have come before the wait began */
    pause_ms(5);
  }
  if (restart) close(interrupted_go);
  join_thread(t);
}

static void* stops(void* unused) {
  int go, status = -1;
  pid_t pid = locked_child(7, &go);
  kill(pid, SIGSTOP);
  CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP, "stopped: %#x", status);
  kill(pid, SIGCONT);
  CHECK(waitpid(pid, &status, WCONTINUED) == pid && WIFCONTINUED(status), "continued: %#x", status);
  close(go);
  CHECK(waitpid(pid, &status, 0) == pid && exited_with(status, 7), "ended: %#x", status);
  pid = locked_child(7, &go);
  kill(pid, SIGKILL);
  CHECK(waitpid(pid, &status, 0) == pid && killed_by(status, SIGKILL), "killed: %#x", status);
  close(go);
  return unused;
}

static void* errors(void* unused) {
  int status;
  siginfo_t info;
  CHECK(waitpid(0x7ffffff, &status, 0) == -1 && errno == ECHILD, "no such child");
  CHECK(waitpid(-0x7ffffff, &status, 0) == -1 && errno == ECHILD, "no such group");
  CHECK(waitpid(-1, &status, 0x40) == -1 && errno == EINVAL, "wrong options");
  CHECK(waitid(P_ALL, 0, &info, 0) == -1 && errno == EINVAL, "no states");
  CHECK(waitid((idtype_t)17, 0, &info, WEXITED) == -1 && errno == EINVAL, "no such type");
  return unused;
}

/* A thread that is cancelled while it waits; the child is still there. */
static atomic_int cleaned;
static void clean(void* unused) {
  (void)unused;
  cleaned++;
}
static void* to_be_cancelled(void* argument) {
  pthread_cleanup_push(clean, NULL);
  in_wait = 1;
  waitpid(*(pid_t*)argument, NULL, 0);
  pthread_cleanup_pop(0);
  return NULL;
}
static void cancelled(void) {
  int go, status = -1;
  pid_t pid = locked_child(3, &go);
  in_wait = 0;
  pthread_t t = start_thread(to_be_cancelled, &pid);
  CHECK(EVENTUALLY(in_wait), "no wait");
  pause_ms(20);
  pthread_cancel(t);
  CHECK(join_thread(t) == PTHREAD_CANCELED && cleaned == 1, "not cancelled");
  close(go);
  CHECK(waitpid(pid, &status, 0) == pid && exited_with(status, 3), "the child is gone");
}

static void* by_system(void* argument) {
  char command[80];
  long i = (long)argument;
  snprintf(command, sizeof command, "sleep 0.2; exit %ld", i);
  int status = system(command);
  CHECK(exited_with(status, (int)i), "system: %#x", status);
  return NULL;
}
static void* long_shell(void* unused) {
  in_wait = 1;
  system("exec sleep 1000");
  return unused;
}

int main(void) {
  check_begin();
  pthread_t t[16], ticker = start_thread(tick, NULL);
  STAGE("each way");
  for (long i = 0; i < WAYS; i++) t[i] = start_thread(one_way, (void*)i);
  for (int i = 0; i < WAYS; i++) join_thread(t[i]);

  STAGE("any child");
  int go[5];
  for (int i = 0; i < 5; i++) locked_child(i, &go[i]);
  for (long i = 0; i < 5; i++) t[i] = start_thread(wait_any, (void*)i);
  pause_ms(20);
  for (int i = 0; i < 5; i++) close(go[i]);
  for (int i = 0; i < 5; i++) join_thread(t[i]);
  CHECK(collected == 31, "collected: %#x", collected);

  STAGE("stopped, continued, killed");
  join_thread(start_thread(stops, NULL));
  STAGE("errors");
  join_thread(start_thread(errors, NULL));
  STAGE("a handler");
  handlers(0);
  handlers(1);
  STAGE("cancellation");
  cancelled();

  STAGE("system");
  for (long i = 0; i < 6; i++) t[i] = start_thread(by_system, (void*)i);
  long before = ticks;
  for (int i = 0; i < 6; i++) join_thread(t[i]);
  CHECK(ticks > before, "nobody else ran");
  struct sigaction action;
  sigaction(SIGINT, NULL, &action);
  CHECK(action.sa_handler == SIG_DFL, "SIGINT is not what it was");
  STAGE("system is cancelled");
  in_wait = 0;
  pthread_t shell = start_thread(long_shell, NULL);
  CHECK(EVENTUALLY(in_wait), "no shell");
  pause_ms(50);
  pthread_cancel(shell);
  CHECK(join_thread(shell) == PTHREAD_CANCELED, "not cancelled");
  CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD, "a child is left");
  sigaction(SIGINT, NULL, &action);
  CHECK(action.sa_handler == SIG_DFL, "SIGINT is not what it was, after a cancel");
  ticks = -1000000000;
  join_thread(ticker);
  return check_end();
}
