/*
 * A process that is stopped and continued again and again, as by job control and debuggers, while its threads wait in all kinds of calls:
 * none sees an error that it would not see natively, nothing is lost, and its parent sees it stop and go on.
 */
#include "net.h"

#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/epoll.h>

enum { ROUNDS = 25 };
static atomic_int stop, wrong;
static atomic_long moved[6];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int turn;
static sem_t ping, pong;
static int sockets[2], pipes[2];

/* signal(7): after SIGCONT some calls end with EINTR although no handler ran. */
#define RETRIED(call)                            \
  __extension__({                                \
    long retried_result;                         \
    do retried_result = (call);                  \
    while (retried_result < 0 && errno == EINTR); \
    retried_result;                              \
  })

static void* by_cond(void* argument) {
  int me = (int)(long)argument;
  while (!stop) {
    pthread_mutex_lock(&lock);
    while (turn != me && !stop) pthread_cond_wait(&changed, &lock);
    turn = !me;
    moved[0]++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (me) usleep(200);
  }
  return NULL;
}
static void* sem_pinger(void* unused) {
  while (!stop) {
    sem_post(&ping);
    RETRIED(sem_wait(&pong));
    moved[1]++;
    usleep(200);
  }
  sem_post(&ping);
  return unused;
}
static void* sem_ponger(void* unused) {
  while (!stop) {
    RETRIED(sem_wait(&ping));
    sem_post(&pong);
  }
  return unused;
}
static void* sender(void* unused) {
  unsigned next = 0;
  while (!stop) {
    for (int i = 0; i < 50; i++, next++)
      if (RETRIED(send(sockets[0], &next, sizeof next, 0)) != sizeof next) wrong++;
    usleep(200);
  }
  shutdown(sockets[0], SHUT_WR);
  return unused;
}
static void* receiver(void* unused) {
  unsigned got, want = 0;
  long n;
  while ((n = RETRIED(recv(sockets[1], &got, sizeof got, MSG_WAITALL))) == sizeof got) {
    if (got != want++) wrong++;
    moved[2]++;
  }
  if (n != 0) wrong++;
  return unused;
}
static void* by_epoll(void* unused) {
  int e = epoll_create1(0);
  char c;
  struct epoll_event event = {.events = EPOLLIN};
  epoll_ctl(e, EPOLL_CTL_ADD, pipes[0], &event);
  for (;;) {
    if (RETRIED(epoll_wait(e, &event, 1, -1)) != 1) wrong++;
    long n = RETRIED(read(pipes[0], &c, 1));
    if (n == 0) break;
    if (n != 1) wrong++;
    moved[3]++;
  }
  close(e);
  return unused;
}
static void* writer(void* unused) {
  while (!stop) {
    if (RETRIED(write(pipes[1], "x", 1)) != 1) wrong++;
    usleep(300);
  }
  close(pipes[1]);
  return unused;
}
static void* sleeper(void* unused) {
  while (!stop) {
    double begin = now();
    pause_ms(3);
    if (now() - begin < 0.00299) wrong++;
    moved[4]++;
  }
  return unused;
}
static void* poller(void* unused) {
  while (!stop) {
    if (poll(NULL, 0, 2) > 0) wrong++;
    moved[5]++;
  }
  return unused;
}

static int worker_process(int report, int end) {
  static void* (*const bodies[])(void*) = {sem_pinger, sem_ponger, sender, receiver, by_epoll, writer, sleeper, poller};
  pthread_t t[COUNT_OF(bodies) + 2];
  char c;
  alarm(60);
  sem_init(&ping, 0, 0);
  sem_init(&pong, 0, 0);
  stream_pair(sockets);
  NEED(pipe(pipes) == 0);
  for (int i = 0; i < COUNT_OF(bodies); i++) t[i] = start_thread(bodies[i], NULL);
  for (long i = 0; i < 2; i++) t[COUNT_OF(bodies) + i] = start_thread(by_cond, (void*)i);
  CHECK(write(report, "r", 1) == 1, "report");
  for (;;) { /* 'c': all moved since the last time? */
    if (RETRIED(read(end, &c, 1)) != 1 || c == 'e') break;
    long before[6];
    for (int i = 0; i < 6; i++) before[i] = moved[i];
    for (int i = 0; i < 6; i++) CHECK(EVENTUALLY(moved[i] > before[i]), "kind %d does not go on", i);
    CHECK(write(report, "m", 1) == 1, "report");
  }
  stop = 1;
  pthread_mutex_lock(&lock);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  sem_post(&ping);
  sem_post(&pong);
  for (int i = 0; i < COUNT_OF(t); i++) join_thread(t[i]);
  CHECK(wrong == 0, "%d results were wrong", (int)wrong);
  return check_findings ? 1 : 31;
}

int main(void) {
  check_begin();
  alarm(60);
  int report[2], end[2], status;
  char c;
  NEED(pipe(report) == 0 && pipe(end) == 0);
  pid_t child = fork();
  if (child == 0) {
    close(end[1]);
    _exit(worker_process(report[1], end[0]));
  }
  close(report[1]);
  NEED(read(report[0], &c, 1) == 1 && c == 'r');
  for (int i = 0; i < ROUNDS; i++) {
    STAGE("stop");
    NEED(kill(child, SIGSTOP) == 0);
    NEED(waitpid(child, &status, WUNTRACED) == child);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP, "status %x", (unsigned)status);
    pause_ms(i % 4);
    STAGE("continue");
    NEED(kill(child, SIGCONT) == 0);
    NEED(waitpid(child, &status, WCONTINUED) == child);
    CHECK(WIFCONTINUED(status), "status %x", (unsigned)status);
    STAGE("go on");
    NEED(write(end[1], "c", 1) == 1);
    NEED(read(report[0], &c, 1) == 1 && c == 'm');
  }
  STAGE("end");
  NEED(write(end[1], "e", 1) == 1);
  NEED(waitpid(child, &status, 0) == child);
  CHECK(exited_with(status, 31), "the child ends with %x", (unsigned)status);
  return check_end();
}
