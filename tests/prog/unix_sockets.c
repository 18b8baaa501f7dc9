/* Unix sockets: streams by path and abstract name, sequenced packets, passed descriptors and credentials. */
#include "net.h"

#include <stddef.h>

static struct sockaddr_un path_address, abstract_address;
static socklen_t abstract_length;

static int listen_at(const struct sockaddr_un* a, socklen_t length, int type) {
  int fd = socket(AF_UNIX, type, 0);
  NEED(fd >= 0 && bind(fd, (const struct sockaddr*)a, length) == 0 && listen(fd, 8) == 0);
  return fd;
}

struct meeting {
  const struct sockaddr_un* address;
  socklen_t length;
  int type;
};

static void* visitor(void* argument) {
  struct meeting* m = argument;
  char buffer[64];
  for (int i = 0; i < 20; i++) {
    int fd = socket(AF_UNIX, m->type, 0);
    int r = connect(fd, (const struct sockaddr*)m->address, m->length);
    CHECK(r == 0, "connect: errno %d", errno);
    ssize_t n = read(fd, buffer, sizeof buffer); /* the greeting comes late */
    CHECK(n == 5 && !memcmp(buffer, "hello", 5), "greeting: %zd", n);
    CHECK(write(fd, "thanks", 6) == 6, "write");
    CHECK(read(fd, buffer, sizeof buffer) == 0, "end of file");
    close(fd);
  }
  return NULL;
}

static void meet(const char* name, const struct sockaddr_un* address, socklen_t length, int type) {
  STAGE(name);
  struct meeting m = {address, length, type};
  pthread_t t[6];
  char buffer[64];
  int lfd = listen_at(address, length, type);
  for (int i = 0; i < 6; i++) t[i] = start_thread(visitor, &m);
  for (int i = 0; i < 120; i++) { /* more visitors than the backlog holds: connect waits too */
    int fd = accept(lfd, NULL, NULL);
    NEED(fd >= 0);
    if (i % 10 == 0) pause_ms(1);
    CHECK(write(fd, "hello", 5) == 5, "write");
    ssize_t n = read(fd, buffer, sizeof buffer);
    CHECK(n == 6 && !memcmp(buffer, "thanks", 6), "answer: %zd", n);
    close(fd);
  }
  for (int i = 0; i < 6; i++) join_thread(t[i]);
  close(lfd);
}

/* Packets keep their boundaries; a packet larger than the buffer is cut. */
static void* packets(void* argument) {
  int fd = *(int*)argument;
  char buffer[4000];
  for (int size = 1; size <= 3000; size += 250) {
    ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    CHECK(n == size, "packet of %zd, want %d", n, size);
  }
  CHECK(recv(fd, buffer, 3, 0) == 3, "a cut packet");
  CHECK(recv(fd, buffer, sizeof buffer, 0) == 2, "the packet after it");
  CHECK(read(fd, buffer, sizeof buffer) == 0, "end of file");
  return NULL;
}
static void sequenced(void) {
  STAGE("sequenced packets");
  int pair[2];
  char buffer[4000] = {0};
  NEED(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
  pthread_t t = start_thread(packets, &pair[0]);
  for (int size = 1; size <= 3000; size += 250) {
    CHECK(send(pair[1], buffer, (size_t)size, 0) == size, "send of %d", size);
    pause_ms(1);
  }
  CHECK(write(pair[1], buffer, 100) == 100 && write(pair[1], buffer, 2) == 2, "write");
  close(pair[1]);
  join_thread(t);
  close(pair[0]);
}

/* A pipe's reading end and the sender's credentials travel with one byte. */
static void* take_descriptor(void* argument) {
  int fd = *(int*)argument, passed = -1;
  char byte = 0, text[16], control[256];
  struct iovec part = {&byte, 1};
  struct msghdr header = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct ucred who = {0, 0, 0};
  ssize_t n = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
  CHECK(n == 1 && byte == 'p', "recvmsg: %zd, errno %d", n, errno);
  for (struct cmsghdr* c = CMSG_FIRSTHDR(&header); n == 1 && c; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_type == SCM_RIGHTS)
      memcpy(&passed, CMSG_DATA(c), sizeof passed);
    else if (c->cmsg_type == SCM_CREDENTIALS)
      memcpy(&who, CMSG_DATA(c), sizeof who);
  }
  CHECK(who.pid == getpid() && who.uid == getuid(), "credentials: process %d, user %d", (int)who.pid,
        (int)who.uid);
  CHECK(passed >= 0 && (fcntl(passed, F_GETFD) & FD_CLOEXEC), "the passed descriptor");
  n = read(passed, text, sizeof text);
  CHECK(n == 6 && !memcmp(text, "inside", 6), "read of the passed pipe: %zd", n);
  close(passed);
  return NULL;
}
static void passing(void) {
  STAGE("passed descriptors");
  for (int i = 0; i < 10; i++) {
    int pair[2], p[2], on = 1;
    stream_pair(pair);
    NEED(pipe(p) == 0 && setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
    pthread_t t = start_thread(take_descriptor, &pair[0]);
    pause_ms(5);
    union {
      char space[CMSG_SPACE(sizeof(int))];
      struct cmsghdr align;
    } control;
    struct iovec part = {(void*)"p", 1};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &p[0], sizeof p[0]);
    CHECK(sendmsg(pair[1], &header, 0) == 1, "sendmsg: errno %d", errno);
    close(p[0]);
    pause_ms(2);
    CHECK(write(p[1], "inside", 6) == 6, "write");
    join_thread(t);
    close(p[1]);
    close(pair[0]);
    close(pair[1]);
  }
}

static void* errors(void* unused) {
  (void)unused;
  struct sockaddr_un missing = {.sun_family = AF_UNIX};
  snprintf(missing.sun_path, sizeof missing.sun_path, "%.60s.missing", path_address.sun_path);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  CHECK(connect(fd, (struct sockaddr*)&missing, sizeof missing) == -1 && errno == ENOENT,
        "no such path: errno %d", errno);
  CHECK(connect(fd, (struct sockaddr*)&path_address, sizeof path_address) == -1 && errno == ECONNREFUSED,
        "nobody listens: %d", errno);
  CHECK(write(fd, "x", 1) == -1 && errno == ENOTCONN, "write without connection: errno %d", errno);
  CHECK(recv(fd, missing.sun_path, 1, 0) == -1 && errno == EINVAL, "recv without connection: errno %d",
        errno);
  close(fd);
  return NULL;
}

int main(void) {
  check_begin();
  signal(SIGPIPE, SIG_IGN);
  const char* dir = getenv("TMPDIR");
  path_address.sun_family = abstract_address.sun_family = AF_UNIX;
  snprintf(path_address.sun_path, sizeof path_address.sun_path, "%.60s/check-unix-%d", dir ? dir : "/tmp",
           (int)getpid());
  int n = snprintf(abstract_address.sun_path + 1, 60, "check-unix-%d", (int)getpid());
  abstract_length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
  meet("stream by path", &path_address, sizeof path_address, SOCK_STREAM);
  STAGE("errors");
  errors(NULL);
  join_thread(start_thread(errors, NULL));
  unlink(path_address.sun_path);
  meet("stream by abstract name", &abstract_address, abstract_length, SOCK_STREAM);
  meet("sequenced packets by path", &path_address, sizeof path_address, SOCK_SEQPACKET);
  unlink(path_address.sun_path);
  sequenced();
  passing();
  return check_end();
}
