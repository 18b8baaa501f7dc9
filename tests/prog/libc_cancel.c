/*
 * Cancellation of calls that libc makes by itself: the initial thread, which is cancelled while it waits, and other threads
 * within stdio. A stream opened with "c" is no cancellation point.
 */
#include "net.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/select.h>

static int quiet[2]; /* a socket pair on which nothing comes */
static int full[2];  /* a pipe into which nothing goes */
static atomic_int about_to_wait, cleaned;

static void clean(void* unused) {
  (void)unused;
  cleaned++;
}

/* Waits for ever in one of many ways. */
static const char* wait_for_ever(int way) {
  char text[100];
  struct iovec part = {text, sizeof text};
  struct msghdr message;
  struct pollfd ready = {quiet[0], POLLIN, 0};
  struct epoll_event event;
  fd_set set;
  memset(&message, 0, sizeof message);
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  memset(text, 'x', sizeof text);
  about_to_wait = 1;
  switch (way) {
    case 0:
      return fgets(text, sizeof text, fdopen(quiet[0], "r")) ? "fgets" : "fgets, NULL";
    case 1:
      read(quiet[0], text, 1);
      return "read";
    case 2:
      readv(quiet[0], &part, 1);
      return "readv";
    case 3:
      recv(quiet[0], text, 1, 0);
      return "recv";
    case 4:
      recvmsg(quiet[0], &message, 0);
      return "recvmsg";
    case 5:
      poll(&ready, 1, -1);
      return "poll";
    case 6:
      FD_ZERO(&set);
      FD_SET(quiet[0], &set);
      select(quiet[0] + 1, &set, NULL, NULL, NULL);
      return "select";
    case 7: {
      int ep = epoll_create1(0);
      epoll_wait(ep, &event, 1, -1);
      return "epoll_wait";
    }
    case 8:
      sleep(1000);
      return "sleep";
    case 9:
      for (;;) {
        if (write(full[1], text, 1) < 0) return "write";
      }
    case 10:
      for (;;) {
        FILE* f = fdopen(full[1], "w");
        setvbuf(f, NULL, _IONBF, 0);
        for (;;) {
          if (fputs("abc", f) < 0) return "fputs";
        }
      }
    case 11: {
      struct sockaddr_in address;
      int fd = listener(&address, 1);
      accept(fd, NULL, NULL);
      return "accept";
    }
    case 12: {
      pid_t child = fork();
      if (child == 0) {
        alarm(20);
        for (;;) pause();
      }
      waitpid(child, NULL, 0);
      return "waitpid";
    }
    case 13:
      system("exec sleep 1000");
      return "system";
    case 14:
      pclose(popen("exec sleep 0.3", "r")); /* is none itself */
      pthread_testcancel();
      return "pclose";
    default: /* already cancelled, and there is something to read */
      write(quiet[1], "x", 1);
      pthread_cancel(pthread_self());
      read(quiet[0], text, 1);
      return "read, already cancelled";
  }
}
enum { WAYS = 16 };

static pthread_t initial;
static int last_one;
static void* cancel_initial(void* unused) {
  void* result = NULL;
  CHECK(EVENTUALLY(about_to_wait), "the initial thread does not wait");
  pause_ms(20);
  pthread_cancel(initial);
  CHECK(pthread_join(initial, &result) == 0 && result == PTHREAD_CANCELED, "joined: %p", result);
  CHECK(cleaned == 1, "cleaned up %d times", (int)cleaned);
  if (last_one) exit(check_end());
  _exit(check_findings != 0);
  return unused;
}
static int be_cancelled(void* way) {
  about_to_wait = cleaned = 0;
  initial = pthread_self();
  start_thread(cancel_initial, NULL);
  pthread_cleanup_push(clean, NULL);
  check_fail(__LINE__, "way %d came back: %s", (int)(long)way, wait_for_ever((int)(long)way));
  pthread_cleanup_pop(0);
  return 1;
}

/* A thread that waits in fgets: when it is cancelled the stream's lock is free again. */
static FILE* stream;
static void* read_stream(void* unused) {
  char text[10];
  pthread_cleanup_push(clean, NULL);
  about_to_wait = 1;
  fgets(text, sizeof text, stream);
  pthread_cleanup_pop(0);
  return unused;
}
static void* use_lock(void* unused) {
  if (ftrylockfile(stream) == 0) {
    funlockfile(stream);
    return NULL;
  }
  (void)unused;
  return (void*)1;
}
static void within_stdio(void) {
  about_to_wait = cleaned = 0;
  stream = fdopen(dup(quiet[0]), "r");
  NEED(stream);
  pthread_t t = start_thread(read_stream, NULL);
  CHECK(EVENTUALLY(about_to_wait), "no wait");
  pause_ms(20);
  CHECK(join_thread(start_thread(use_lock, NULL)) != NULL, "it does not hold the lock while it waits");
  pthread_cancel(t);
  CHECK(join_thread(t) == PTHREAD_CANCELED && cleaned == 1, "not cancelled");
  CHECK(join_thread(start_thread(use_lock, NULL)) == NULL, "the lock was not given back");
  fclose(stream);
}

/* The same with "c": cancelled only at the end. */
static void without_cancellation(void) {
  char path[64];
  int p[2];
  NEED(pipe(p) == 0);
  snprintf(path, sizeof path, "/proc/self/fd/%d", p[0]);
  stream = fopen(path, "rc");
  NEED(stream);
  about_to_wait = cleaned = 0;
  pthread_t t = start_thread(read_stream, NULL);
  CHECK(EVENTUALLY(about_to_wait), "no wait");
  pause_ms(20);
  pthread_cancel(t);
  pause_ms(100);
  CHECK(cleaned == 0, "cancelled in a stream that is no cancellation point");
  CHECK(write(p[1], "x\n", 2) == 2, "write");
  CHECK(join_thread(t) == NULL, "cancelled after all");
  fclose(stream);
  close(p[0]);
  close(p[1]);
}

int main(void) {
  check_begin();
  NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, quiet) == 0 && pipe(full) == 0);
  STAGE("within stdio");
  within_stdio();
  STAGE("a stream without cancellation");
  without_cancellation();
  STAGE("the initial thread of a child");
  for (long way = 0; way < WAYS; way++) {
    int status = in_child(be_cancelled, (void*)way);
    CHECK(exited_with(status, 0), "way %ld: %#x", way, status);
  }
  STAGE("the initial thread");
  last_one = 1;
  return be_cancelled(NULL);
}
