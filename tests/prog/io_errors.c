/* Wrong descriptors, wrong addresses, nothing to transfer: every I/O call answers as the kernel does. */
#include "net.h"

#include <limits.h>
#include <sys/mman.h>

#define FAILS(call, error)                                                                                \
  do {                                                                                                    \
    errno = 0;                                                                                            \
    long result_ = (long)(call);                                                                          \
    CHECK(result_ == -1 && errno == (error), "%s: %ld, errno %d, want %d", #call, result_, errno, error); \
  } while (0)
#define GIVES(call, value)                                                       \
  do {                                                                           \
    long result_ = (long)(call);                                                 \
    CHECK(result_ == (long)(value), "%s: %ld, errno %d", #call, result_, errno); \
  } while (0)

static char* bad; /* a page that may not be touched */

static void* no_descriptor(void* unused) {
  (void)unused;
  char b[8];
  struct iovec part = {b, sizeof b};
  struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
  static const int none[] = {-1, 999, INT_MAX};
  for (int i = 0; i < COUNT_OF(none); i++) {
    int fd = none[i];
    FAILS(read(fd, b, 1), EBADF);
    FAILS(write(fd, b, 1), EBADF);
    FAILS(readv(fd, &part, 1), EBADF);
    FAILS(writev(fd, &part, 1), EBADF);
    FAILS(recv(fd, b, 1, 0), EBADF);
    FAILS(send(fd, b, 1, 0), EBADF);
    FAILS(recvfrom(fd, b, 1, 0, NULL, NULL), EBADF);
    FAILS(sendto(fd, b, 1, 0, NULL, 0), EBADF);
    FAILS(recvmsg(fd, &header, 0), EBADF);
    FAILS(sendmsg(fd, &header, 0), EBADF);
    FAILS(close(fd), EBADF);
    FAILS(pread(fd, b, 1, 0), EBADF);
  }
  return NULL;
}

static void* wrong_kind(void* unused) {
  (void)unused;
  int p[2];
  char b[8] = "x";
  struct iovec part = {b, 1};
  struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
  NEED(pipe(p) == 0);
  FAILS(recv(p[0], b, 1, 0), ENOTSOCK);
  FAILS(recvfrom(p[0], b, 1, 0, NULL, NULL), ENOTSOCK);
  FAILS(recvmsg(p[0], &header, 0), ENOTSOCK);
  FAILS(send(p[1], b, 1, 0), ENOTSOCK);
  FAILS(sendto(p[1], b, 1, 0, NULL, 0), ENOTSOCK);
  FAILS(sendmsg(p[1], &header, 0), ENOTSOCK);
  FAILS(shutdown(p[0], SHUT_RD), ENOTSOCK);
  FAILS(read(p[1], b, 1), EBADF);  /* the writing end */
  FAILS(write(p[0], b, 1), EBADF); /* the reading end */
  FAILS(lseek(p[0], 0, SEEK_SET), ESPIPE);
  FAILS(pread(p[0], b, 1, 0), ESPIPE);
  int dir = open("/", O_RDONLY | O_DIRECTORY);
  FAILS(read(dir, b, 1), EISDIR);
  close(dir);
  close(p[0]);
  close(p[1]);
  int s = socket(AF_INET, SOCK_STREAM, 0);
  FAILS(recv(s, b, 1, 0), ENOTCONN);
  FAILS(read(s, b, 1), ENOTCONN);
  FAILS(send(s, b, 1, MSG_NOSIGNAL), EPIPE);
  close(s);
  return NULL;
}

static void* wrong_address(void* unused) {
  (void)unused;
  int p[2], s[2], d[2];
  char b[8] = "1234567";
  volatile int negative = -1, too_many = IOV_MAX + 1; /* not to be seen by the compiler */
  struct iovec bad_part = {bad, 4}, two[2] = {{b, 2}, {bad, 4}};
  struct msghdr header = {.msg_iov = &bad_part, .msg_iovlen = 1},
                bad_vector = {.msg_iov = (struct iovec*)bad, .msg_iovlen = 1};
  NEED(pipe(p) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, d) == 0);
  stream_pair(s);
  NEED(write(p[1], "abcdef", 6) == 6 && write(s[1], "abcdef", 6) == 6);
  FAILS(read(p[0], bad, 4), EFAULT);
  FAILS(write(p[1], bad, 4), EFAULT);
  FAILS(readv(p[0], &bad_part, 1), EFAULT);
  FAILS(writev(p[1], &bad_part, 1), EFAULT);
  FAILS(readv(p[0], (struct iovec*)bad, 1), EFAULT);
  FAILS(readv(p[0], two, negative), EINVAL);
  FAILS(writev(p[1], two, too_many), EINVAL);
  FAILS(recv(s[0], bad, 4, 0), EFAULT);
  FAILS(send(s[0], bad, 4, 0), EFAULT);
  FAILS(recvmsg(s[0], &header, 0), EFAULT);
  FAILS(sendmsg(s[0], &header, 0), EFAULT);
  FAILS(recvmsg(s[0], &bad_vector, 0), EFAULT);
  FAILS(recvmsg(s[0], (struct msghdr*)bad, 0), EFAULT);
  FAILS(sendmsg(s[0], (struct msghdr*)bad, 0), EFAULT);
  /* what was in the pipe and the socket is still there */
  GIVES(read(p[0], b, sizeof b), 6);
  GIVES(recv(s[0], b, sizeof b, 0), 6);
  CHECK(!memcmp(b, "abcdef", 6), "the data");
  FAILS(send(d[0], bad, 4, 0), EFAULT);
  FAILS(recv(d[0], b, 1, MSG_DONTWAIT), EAGAIN);
  for (int i = 0; i < 2; i++) {
    close(p[i]);
    close(s[i]);
    close(d[i]);
  }
  return NULL;
}

static void* nothing(void* unused) {
  (void)unused;
  int p[2], s[2];
  char b[8] = "x";
  struct iovec empty[2] = {{NULL, 0}, {b, 0}};
  struct msghdr header = {.msg_iov = empty, .msg_iovlen = 2};
  NEED(pipe(p) == 0);
  stream_pair(s);
  GIVES(read(p[0], b, 0), 0); /* none of these waits */
  GIVES(read(p[0], NULL, 0), 0);
  GIVES(write(p[1], b, 0), 0);
  GIVES(write(p[1], NULL, 0), 0);
  GIVES(readv(p[0], empty, 2), 0);
  GIVES(readv(p[0], empty, 0), 0);
  GIVES(writev(p[1], empty, 2), 0);
  GIVES(send(s[0], b, 0, 0), 0);
  GIVES(sendmsg(s[0], &header, 0), 0);
  GIVES(write(s[0], b, 0), 0);
  GIVES(read(s[0], b, 0), 0);
  FAILS(recv(s[0], b, 1, MSG_DONTWAIT), EAGAIN);
  for (int i = 0; i < 2; i++) {
    close(p[i]);
    close(s[i]);
  }
  return NULL;
}

int main(void) {
  check_begin();
  signal(SIGPIPE, SIG_IGN);
  bad = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  NEED(bad != MAP_FAILED);
  static void* (*const parts[])(void*) = {no_descriptor, wrong_kind, wrong_address, nothing};
  static const char* const names[] = {"no descriptor", "wrong kind of descriptor", "wrong address",
                                      "nothing to transfer"};
  for (int i = 0; i < COUNT_OF(parts); i++) {
    STAGE(names[i]);
    join_thread(start_thread(parts[i], NULL));
    parts[i](NULL);
  }
  return check_end();
}
