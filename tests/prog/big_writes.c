/* Blocking writes of 4 MB are written whole by one call, whatever the call and the kind of descriptor. */
#include "net.h"

enum { SIZE = 4 << 20 };
enum way { WRITE, WRITEV, SEND, SENDTO, SENDMSG, WAYS };
static const char* const way_name[WAYS] = {"write", "writev", "send", "sendto", "sendmsg"};
struct job {
  int in, out;
  enum way way;
};

static void* produce(void* argument) {
  struct job* job = argument;
  char* data = malloc(SIZE);
  fill_stream(data, job->way, SIZE);
  struct iovec parts[4] = {
      {data, 1}, {data + 1, SIZE / 3}, {data + 1 + SIZE / 3, 0}, {data + 1 + SIZE / 3, SIZE - 1 - SIZE / 3}};
  struct msghdr header = {.msg_iov = parts, .msg_iovlen = 4};
  ssize_t n = -1;
  switch (job->way) {
    case WRITE:
      n = write(job->out, data, SIZE);
      break;
    case WRITEV:
      n = writev(job->out, parts, 4);
      break;
    case SEND:
      n = send(job->out, data, SIZE, 0);
      break;
    case SENDTO:
      n = sendto(job->out, data, SIZE, 0, NULL, 0);
      break;
    default:
      n = sendmsg(job->out, &header, 0);
      break;
  }
  CHECK(n == SIZE, "%s returned %zd of %d, errno %d", way_name[job->way], n, SIZE, errno);
  CHECK(parts[3].iov_len == SIZE - 1 - SIZE / 3 && parts[0].iov_base == data, "the vector was changed");
  free(data);
  close(job->out);
  return NULL;
}

static void* consume(void* argument) {
  struct job* job = argument;
  char* buffer = malloc(100000);
  long got = 0;
  ssize_t n;
  while ((n = read(job->in, buffer, 1 + (size_t)(got * 7 % 100000))) > 0) {
    if (!is_stream(buffer, job->way + got, (size_t)n)) {
      CHECK(0, "%s: wrong bytes at %ld", way_name[job->way], got);
      break;
    }
    got += n;
  }
  CHECK(got == SIZE, "%s: %ld of %d bytes came", way_name[job->way], got, SIZE);
  free(buffer);
  close(job->in);
  return NULL;
}

static void make(struct job* job, int kind, enum way way) {
  int pair[2];
  if (kind == 0)
    NEED(pipe(pair) == 0);
  else if (kind == 1)
    stream_pair(pair);
  else
    tcp_pair(pair);
  *job = (struct job){pair[0], pair[1], way};
}

int main(void) {
  check_begin();
  static const char* const kinds[] = {"pipe", "unix stream", "TCP"};
  for (int kind = 0; kind < 3; kind++) {
    STAGE(kinds[kind]);
    struct job jobs[WAYS];
    pthread_t p[WAYS], c[WAYS];
    int n = kind == 0 ? SEND : WAYS; /* a pipe takes write and writev only */
    for (int i = 0; i < n; i++) {
      make(&jobs[i], kind, (enum way)i);
      p[i] = start_thread(produce, &jobs[i]);
      c[i] = start_thread(consume, &jobs[i]);
    }
    for (int i = 0; i < n; i++) {
      join_thread(p[i]);
      join_thread(c[i]);
    }
    /* main writes, a thread reads; then the other way round */
    struct job job;
    make(&job, kind, WRITE);
    pthread_t t = start_thread(consume, &job);
    produce(&job);
    join_thread(t);
    make(&job, kind, WRITEV);
    t = start_thread(produce, &job);
    consume(&job);
    join_thread(t);
  }
  return check_end();
}
