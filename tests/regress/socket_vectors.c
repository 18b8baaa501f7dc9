/*
 * What the kernel looks at, and when: vectors without bytes are nothing to wait for, bad addresses are EFAULT whatever
 * the call, MSG_OOB never waits, MSG_WAITALL ends at a message with descriptors and at the end of the stream.
 */
#include "../prog/net.h"

#include <poll.h>
#include <sys/mman.h>

static char* bad;

static void* empty(void* unused) {
  (void)unused;
  int s[2], d[2];
  char b[8];
  struct iovec none[2] = {{NULL, 0}, {b, 0}};
  stream_pair(s);
  NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, d) == 0);
  CHECK(readv(s[0], none, 2) == 0 && readv(s[0], none, 1) == 0, "readv of nothing: errno %d", errno);
  CHECK(writev(s[0], none, 2) == 0, "writev of nothing: errno %d", errno);
  CHECK(writev(d[0], none, 2) == 0 && writev(d[0], none, 1) == 0, "no datagram: errno %d", errno);
  errno = 0;
  CHECK(recv(d[1], b, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN, "a datagram came");
  CHECK(send(d[0], "xy", 2, 0) == 2, "send");
  CHECK(readv(d[1], none, 2) == 0, "readv of nothing on a datagram: errno %d", errno);
  CHECK(recv(d[1], b, 8, MSG_DONTWAIT) == 2, "the datagram is still there: errno %d", errno);
  CHECK(write(d[0], "", 0) == 0 && recv(d[1], b, 8, MSG_DONTWAIT) == 0, "an empty datagram: errno %d", errno);
  errno = 0;
  CHECK(recv(s[0], b, 1, MSG_OOB) == -1 && (errno == EINVAL || errno == EOPNOTSUPP), "MSG_OOB: errno %d", errno);
  for (int i = 0; i < 2; i++) {
    close(s[i]);
    close(d[i]);
  }
  int t[2];
  tcp_pair(t);
  errno = 0;
  CHECK(recv(t[0], b, 1, MSG_OOB) == -1 && errno == EINVAL, "MSG_OOB without: errno %d", errno);
  close(t[0]);
  close(t[1]);
  return NULL;
}

#define FAULTS(call)                                                              \
  do {                                                                            \
    errno = 0;                                                                    \
    long r_ = (long)(call);                                                       \
    CHECK(r_ == -1 && errno == EFAULT, "%s: %ld, errno %d", #call, r_, errno); \
  } while (0)

static void* send_late(void* argument) {
  pause_ms(60);
  CHECK(send(*(int*)argument, "late", 4, 0) == 4, "send");
  return NULL;
}

static void* addresses(void* unused) {
  (void)unused;
  int s[2], d[2];
  char b[8];
  struct sockaddr_un from;
  struct iovec* bad_vector = (struct iovec*)bad;
  stream_pair(s);
  NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, d) == 0);
  FAULTS(readv(s[0], bad_vector, 1));
  FAULTS(readv(s[0], bad_vector, 2));
  FAULTS(writev(s[0], bad_vector, 1));
  FAULTS(writev(s[0], bad_vector, 2));
  FAULTS(recvmsg(s[0], (struct msghdr*)bad, MSG_WAITALL));
  FAULTS(recvmsg(s[0], (struct msghdr*)bad, MSG_PEEK));
  FAULTS(recvmmsg(s[0], (struct mmsghdr*)bad, 2, 0, NULL));
  FAULTS(sendmmsg(s[0], (struct mmsghdr*)bad, 2, 0));
  for (int late = 0; late < 2; late++) { /* the length is looked at when something has come */
    socklen_t* where[2] = {NULL, (socklen_t*)bad};
    for (int i = 0; i < 2; i++) {
      pthread_t t = start_thread(send_late, &d[1]);
      if (!late) join_thread(t);
      FAULTS(recvfrom(d[0], b, sizeof b, 0, (struct sockaddr*)&from, where[i]));
      if (late) join_thread(t);
    }
  }
  for (int i = 0; i < 2; i++) {
    close(s[i]);
    close(d[i]);
  }
  return NULL;
}

static void send_with_descriptor(int fd, const char* text, size_t length) {
  int zero = open("/dev/zero", O_RDONLY);
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control;
  struct iovec part = {(void*)text, length};
  struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  memset(&control, 0, sizeof control);
  struct cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &zero, sizeof zero);
  CHECK(sendmsg(fd, &m, 0) == (ssize_t)length, "sendmsg with a descriptor: errno %d", errno);
  close(zero);
}

static void* in_parts(void* argument) {
  int fd = *(int*)argument;
  CHECK(send(fd, "abc", 3, 0) == 3, "send");
  pause_ms(30);
  send_with_descriptor(fd, "def", 3);
  pause_ms(30);
  CHECK(send(fd, "ghi", 3, 0) == 3, "send");
  return NULL;
}

static void* in_full(void* unused) {
  (void)unused;
  int s[2];
  char b[16] = {0};
  stream_pair(s);
  pthread_t t = start_thread(in_parts, &s[1]);
  union {
    char bytes[CMSG_SPACE(4 * sizeof(int))];
    struct cmsghdr align;
  } control;
  struct iovec parts[2] = {{b, 4}, {b + 4, 5}};
  struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t n = recvmsg(s[0], &m, MSG_WAITALL);
  struct cmsghdr* c = m.msg_controllen ? CMSG_FIRSTHDR(&m) : NULL;
  int got = -1;
  CHECK(c && c->cmsg_type == SCM_RIGHTS, "no descriptor came with %zd bytes", n);
  if (c && c->cmsg_type == SCM_RIGHTS) memcpy(&got, CMSG_DATA(c), sizeof got);
  CHECK(n == 3 || n == 6, "MSG_WAITALL with a descriptor on its way: %zd", n); /* at the latest after its message */
  char zero = 1;
  CHECK(read(got, &zero, 1) == 1 && zero == 0, "the descriptor");
  close(got);
  ssize_t rest = recv(s[0], b + n, (size_t)(9 - n), MSG_WAITALL);
  CHECK(n + rest == 9 && !memcmp(b, "abcdefghi", 9), "%zd and %zd bytes, %.9s", n, rest, b);
  join_thread(t);
  close(s[0]);
  close(s[1]);
  return NULL;
}

/* recvmmsg waits for all, for one, and not at all; sendmmsg sends all. */
static void* many(void* unused) {
  (void)unused;
  int d[2];
  char text[8][16];
  struct iovec part[8];
  struct mmsghdr m[8];
  NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, d) == 0);
  memset(m, 0, sizeof m);
  for (int i = 0; i < 8; i++) {
    part[i] = (struct iovec){text[i], sizeof text[i]};
    m[i].msg_hdr.msg_iov = &part[i];
    m[i].msg_hdr.msg_iovlen = 1;
  }
  errno = 0;
  CHECK(recvmmsg(d[0], m, 8, MSG_DONTWAIT, NULL) == -1 && errno == EAGAIN, "nothing there: errno %d", errno);
  pthread_t t = start_thread(send_late, &d[1]);
  CHECK(recvmmsg(d[0], m, 8, MSG_WAITFORONE, NULL) == 1 && m[0].msg_len == 4, "MSG_WAITFORONE: errno %d", errno);
  join_thread(t);
  pthread_t late[3];
  for (int i = 0; i < 3; i++) late[i] = start_thread(send_late, &d[1]);
  CHECK(recvmmsg(d[0], m, 3, 0, NULL) == 3 && m[2].msg_len == 4, "three: errno %d", errno);
  for (int i = 0; i < 3; i++) join_thread(late[i]);
  struct timespec limit = ms_span(20);
  t = start_thread(send_late, &d[1]);
  CHECK(recvmmsg(d[0], m, 3, 0, &limit) == 1, "a limit that is over when the first comes: errno %d", errno);
  CHECK(limit.tv_sec == 0 && limit.tv_nsec == 0, "%ld ns are left", limit.tv_nsec);
  join_thread(t);
  struct timespec wrong = {0, 1000000000L};
  errno = 0;
  CHECK(recvmmsg(d[0], m, 3, 0, &wrong) == -1 && errno == EINVAL, "a wrong limit: errno %d", errno);
  for (int i = 0; i < 8; i++) part[i].iov_len = (size_t)i;
  CHECK(sendmmsg(d[1], m, 8, 0) == 8 && m[5].msg_len == 5, "sendmmsg: errno %d", errno);
  for (int i = 0; i < 8; i++) part[i].iov_len = 16;
  CHECK(recvmmsg(d[0], m, 8, 0, NULL) == 8 && m[7].msg_len == 7, "eight: errno %d", errno);
  set_timeout(d[0], SO_RCVTIMEO, 80);
  errno = 0;
  double begin = now();
  CHECK(recvmmsg(d[0], m, 3, 0, NULL) == -1 && errno == EAGAIN && now() - begin > 0.05, "SO_RCVTIMEO: errno %d", errno);
  close(d[1]);
  close(d[0]);
  return NULL;
}

int main(void) {
  check_begin();
  signal(SIGPIPE, SIG_IGN);
  bad = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  NEED(bad != MAP_FAILED);
  static void* (*const parts[])(void*) = {empty, addresses, in_full, many};
  static const char* const names[] = {"empty", "addresses", "in full", "many"};
  for (int i = 0; i < COUNT_OF(parts); i++) {
    STAGE(names[i]);
    join_thread(start_thread(parts[i], NULL));
    parts[i](NULL);
  }
  return check_end();
}
