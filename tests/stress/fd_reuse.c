/*
 * Connections that end while threads sleep on them, and whose numbers are taken by the next connection at once: no
 * byte of one conversation ever turns up in another. Each conversation has its own secret, each byte carries it.
 */
// run: modes=default,carriers1
#include "stress.h"

#include <stdatomic.h>

enum { CLIENTS = 16 };
static struct sockaddr_in address;
static atomic_long served, cut;
static atomic_int open_now;

/*
 * Protocol: the client sends an 8-byte secret, then messages of 16 bytes {secret, number}; the server answers each
 * with {secret, number + 1}. Either side may end at any time.
 */
static void* serve(void* argument) {
  int fd = (int)(long)argument;
  uint64_t secret, message[2];
  if (read_all(fd, &secret, sizeof secret)) {
    while (read_all(fd, message, sizeof message)) {
      CHECK(message[0] == secret, "a message of %llx in the conversation %llx",
            (unsigned long long)message[0], (unsigned long long)secret);
      if (message[1] % 97 == 96) break; /* the server hangs up, often while the client sleeps in read */
      message[1]++;
      if (send(fd, message, sizeof message, MSG_NOSIGNAL) != sizeof message) break;
      served++;
    }
  }
  close(fd);
  open_now--;
  return NULL;
}

static void* accept_all(void* argument) {
  int lfd = *(int*)argument, fd;
  while ((fd = accept(lfd, NULL, NULL)) >= 0) {
    open_now++;
    pthread_detach(start_thread(serve, (void*)(long)fd));
  }
  return NULL;
}

/* A second thread of the client shuts the connection down in the middle, as a watchdog would. */
struct watched {
  int fd;
  useconds_t after;
};
static void* watchdog(void* argument) {
  struct watched* w = argument;
  usleep(w->after);
  shutdown(w->fd, SHUT_RDWR);
  return NULL;
}

static void* client(void* argument) {
  unsigned random = (unsigned)(long)argument * 31 + 5;
  for (int round = 0; round < scaled(60); round++) {
    int fd = connected_to(&address);
    uint64_t secret = (uint64_t)(long)argument << 48 ^ (uint64_t)round << 24 ^ 0xABCDEF, message[2];
    struct watched w = {fd, next_random(&random) % 1500};
    int watch = next_random(&random) % 3 == 0;
    pthread_t dog;
    if (watch) dog = start_thread(watchdog, &w);
    if (send(fd, &secret, sizeof secret, MSG_NOSIGNAL) == sizeof secret)
      for (uint64_t i = next_random(&random) % 90, end = i + 30; i < end; i++) {
        message[0] = secret;
        message[1] = i;
        if (send(fd, message, sizeof message, MSG_NOSIGNAL) != sizeof message ||
            !read_all(fd, message, sizeof message)) {
          cut++;
          break;
        }
        CHECK(message[0] == secret && message[1] == i + 1, "an answer of %llx in the conversation %llx",
              (unsigned long long)message[0], (unsigned long long)secret);
      }
    if (watch) join_thread(dog); /* before close: the number must still be ours when it is shut down */
    CHECK(close(fd) == 0, "close");
  }
  return NULL;
}

/* The same number within one process at the highest rate: a reader sleeps, the writer's end closes, both numbers return. */
static void* churn(void* argument) {
  for (int i = 0; i < scaled(400); i++) {
    int s[2];
    uint64_t secret = (uint64_t)(long)argument << 32 | (uint64_t)i, got = 0;
    stream_pair(s);
    NEED(write(s[0], &secret, sizeof secret) == sizeof secret);
    CHECK(read(s[1], &got, sizeof got) == sizeof got && got == secret, "got %llx, want %llx",
          (unsigned long long)got, (unsigned long long)secret);
    close(s[0]);
    CHECK(read(s[1], &got, sizeof got) == 0, "end of file");
    close(s[1]);
  }
  return NULL;
}

int main(void) {
  stress_begin();
  STAGE("conversations");
  pthread_t c[CLIENTS], k[6];
  int lfd = listener(&address, 256);
  pthread_t acceptor = start_thread(accept_all, &lfd);
  for (long i = 0; i < CLIENTS; i++) c[i] = start_thread(client, (void*)(i + 1));
  for (long i = 0; i < 6; i++) k[i] = start_thread(churn, (void*)i);
  for (int i = 0; i < CLIENTS; i++) join_thread(c[i]);
  for (int i = 0; i < 6; i++) join_thread(k[i]);
  STAGE("the end");
  shutdown(lfd, SHUT_RDWR);
  join_thread(acceptor);
  CHECK(EVENTUALLY(open_now == 0), "%d conversations do not end", (int)open_now);
  CHECK(served > 1000, "%ld messages served", (long)served);
  close(lfd);
  return check_end();
}
