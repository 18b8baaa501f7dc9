/* Threads that sleep on a socket are freed by shutdown, by the peer's end and by a reset, with the native results. */
#include "net.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>

struct job {
  int fd, way;
  ssize_t result;
  int error;
  atomic_int started;
};

static void* sleep_on(void* argument) {
  struct job* job = argument;
  char buffer[16];
  static const char block[1 << 20];
  struct pollfd p = {job->fd, POLLIN, 0};
  job->started = 1;
  switch (job->way) {
    case 0:
      job->result = read(job->fd, buffer, sizeof buffer);
      break;
    case 1:
      job->result = recv(job->fd, buffer, sizeof buffer, MSG_WAITALL);
      break;
    case 2:
      job->result = poll(&p, 1, 20000);
      CHECK(p.revents & POLLIN, "poll says %x", p.revents);
      break;
    case 3:
      while ((job->result = send(job->fd, block, sizeof block, MSG_NOSIGNAL)) == sizeof block) {
      }
      break;
  }
  job->error = errno;
  return NULL;
}

static pthread_t start_job(struct job* job, int fd, int way) {
  job->fd = fd;
  job->way = way;
  job->started = 0;
  pthread_t t = start_thread(sleep_on, job);
  CHECK(EVENTUALLY(job->started), "the thread starts");
  return t;
}

static void make_pair(int tcp, int pair[2]) {
  if (tcp)
    tcp_pair(pair);
  else
    stream_pair(pair);
}

/* Several threads sleep on one end; this end or the other is shut down or closed. */
static void freed(const char* name, int tcp, void (*action)(int pair[2]), int writer_error) {
  STAGE(name);
  struct job jobs[4];
  pthread_t t[4];
  int pair[2];
  make_pair(tcp, pair);
  for (int way = 0; way < 3; way++) t[way] = start_job(&jobs[way], pair[0], way);
  pause_ms(50);
  action(pair);
  for (int way = 0; way < 3; way++) {
    join_thread(t[way]);
    ssize_t want = way == 2 ? 1 : 0;
    CHECK(jobs[way].result == want, "sleeper %d: %zd, errno %d", way, jobs[way].result, jobs[way].error);
  }
  close(pair[0]);
  if (pair[1] >= 0) close(pair[1]);
  make_pair(tcp, pair);
  t[3] = start_job(&jobs[3], pair[0], 3);
  pause_ms(80);
  action(pair);
  join_thread(t[3]);
  if (writer_error == 0) /* parts of its data may have gone out first: only the kind of end counts */
    CHECK(jobs[3].result < (1 << 20), "writer: %zd", jobs[3].result);
  else
    CHECK((jobs[3].result == -1 && jobs[3].error == writer_error) || jobs[3].result > 0,
          "writer: %zd, errno %d", jobs[3].result, jobs[3].error);
  close(pair[0]);
  if (pair[1] >= 0) close(pair[1]);
}

static void shut_own(int pair[2]) { CHECK(shutdown(pair[0], SHUT_RDWR) == 0, "shutdown"); }
static void shut_peer(int pair[2]) { CHECK(shutdown(pair[1], SHUT_RDWR) == 0, "shutdown"); }
static void close_peer(int pair[2]) {
  close(pair[1]);
  pair[1] = -1;
}

/* A reset connection: ECONNRESET for the sleeper, then end of file. */
static void reset(void) {
  STAGE("reset");
  int pair[2];
  struct job job;
  struct linger hard = {1, 0};
  char c;
  tcp_pair(pair);
  pthread_t t = start_job(&job, pair[0], 0);
  pause_ms(50);
  NEED(setsockopt(pair[1], SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0);
  close(pair[1]);
  join_thread(t);
  CHECK(job.result == -1 && job.error == ECONNRESET, "read: %zd, errno %d", job.result, job.error);
  CHECK(read(pair[0], &c, 1) == 0, "the error comes once");
  CHECK(send(pair[0], "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE, "send: errno %d", errno);
  close(pair[0]);
}

/* Half-closed: the other direction goes on. */
static void* half(void* argument) {
  int fd = *(int*)argument, sum = 0;
  unsigned char c;
  while (read(fd, &c, 1) == 1) sum += c;
  pause_ms(20);
  CHECK(write(fd, &sum, sizeof sum) == sizeof sum, "write on a half-closed connection: errno %d", errno);
  return NULL;
}
static void half_closed(int tcp) {
  STAGE("half-closed");
  int pair[2], sum = 0;
  make_pair(tcp, pair);
  pthread_t t = start_thread(half, &pair[0]);
  for (unsigned char c = 1; c <= 100; c++) NEED(write(pair[1], &c, 1) == 1);
  CHECK(shutdown(pair[1], SHUT_WR) == 0, "shutdown");
  CHECK(read_all(pair[1], &sum, sizeof sum) && sum == 5050, "sum %d", sum);
  join_thread(t);
  CHECK(send(pair[1], "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE, "send after shutdown: errno %d", errno);
  CHECK(shutdown(pair[1], 9) == -1 && errno == EINVAL, "shutdown with a bad direction: errno %d", errno);
  CHECK(shutdown(-1, SHUT_RD) == -1 && errno == EBADF, "shutdown of no descriptor: errno %d", errno);
  close(pair[0]);
  close(pair[1]);
}

/* A closed number is used again at once for another file: readers of the new file get only its data. */
static void* reuse(void* argument) {
  long id = (long)argument;
  for (int i = 0; i < 200; i++) {
    int pair[2];
    long got = -1, sent = id * 1000 + i;
    stream_pair(pair);
    NEED(write(pair[1], &sent, sizeof sent) == sizeof sent);
    CHECK(read(pair[0], &got, sizeof got) == sizeof got && got == sent, "got %ld, want %ld", got, sent);
    CHECK(close(pair[0]) == 0 && close(pair[1]) == 0, "close");
  }
  return NULL;
}

int main(void) {
  check_begin();
  freed("own shutdown, unix", 0, shut_own, EPIPE);
  freed("own shutdown, TCP", 1, shut_own, EPIPE);
  freed("peer's shutdown, unix", 0, shut_peer, EPIPE);
  freed("peer's close, unix", 0, close_peer, EPIPE);
  freed("peer's close, TCP", 1, close_peer, 0);
  reset();
  half_closed(0);
  half_closed(1);
  STAGE("numbers used again");
  pthread_t t[8];
  for (long i = 0; i < 8; i++) t[i] = start_thread(reuse, (void*)i);
  for (int i = 0; i < 8; i++) join_thread(t[i]);
  CHECK(close(-1) == -1 && errno == EBADF, "close of no descriptor: errno %d", errno);
  return check_end();
}
