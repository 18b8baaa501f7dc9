/*
 * A number is given to another file while a thread is in the middle of a large write: the rest never turns up there.
 */
#include "../prog/net.h"

#include <poll.h>

enum { SIZE = 4 << 20 };
struct job {
  int fd, way;
  ssize_t result;
};

static void* produce(void* argument) {
  struct job* job = argument;
  char* data = malloc(SIZE);
  memset(data, 'o', SIZE);
  struct iovec parts[2] = {{data, SIZE / 2}, {data + SIZE / 2, SIZE / 2}};
  struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2};
  struct mmsghdr mm = {.msg_hdr = m};
  job->result = job->way == 0   ? write(job->fd, data, SIZE)
                : job->way == 1 ? writev(job->fd, parts, 2)
                : job->way == 2 ? send(job->fd, data, SIZE, 0)
                : job->way == 3 ? sendmsg(job->fd, &m, 0)
                                : sendmmsg(job->fd, &mm, 1, 0);
  if (job->way == 4 && job->result == 1) job->result = mm.msg_len;
  free(data);
  return NULL;
}

static void make(int kind, int pair[2]) {
  if (kind == 0)
    NEED(pipe(pair) == 0);
  else if (kind == 1)
    stream_pair(pair);
  else
    tcp_pair(pair);
}

static void* replace(void* argument) {
  int kind = (int)(long)argument;
  for (int way = 0; way < (kind == 0 ? 2 : 5); way++) {
    int old[2], new[2];
    char* buffer = malloc(100000);
    make(kind, old);
    make(kind, new);
    int last = dup(old[0]);
    struct job job = {old[1], way, -1};
    pthread_t t = start_thread(produce, &job);
    struct pollfd some = {old[0], POLLIN, 0};
    NEED(poll(&some, 1, 15000) == 1); /* it has begun */
    pause_ms(10);
    CHECK(dup2(new[1], old[1]) == old[1], "dup2");
    long got = 0;
    ssize_t n;
    while ((n = read(last, buffer, 100000)) > 0) got += n; /* ends when the write lets the old file go */
    join_thread(t);
    CHECK(got == job.result, "kind %d, way %d: %zd written, %ld read", kind, way, job.result, got);
    fcntl(new[0], F_SETFL, O_NONBLOCK);
    errno = 0;
    n = read(new[0], buffer, 100000);
    CHECK(n == -1 && errno == EAGAIN, "kind %d, way %d: %zd bytes went astray", kind, way, n);
    for (int i = 0; i < 2; i++) {
      close(old[i]);
      close(new[i]);
    }
    close(last);
    free(buffer);
  }
  return NULL;
}

int main(void) {
  check_begin();
  signal(SIGPIPE, SIG_IGN);
  for (long kind = 0; kind < 3; kind++) {
    join_thread(start_thread(replace, (void*)kind));
    replace((void*)kind);
  }
  return check_end();
}
