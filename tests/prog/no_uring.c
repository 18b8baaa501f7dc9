/* Where the kernel refuses io_uring, as in many containers, the program runs all the same, on epoll. */
// run: name=EPERM args=EPERM log="engine=epoll uring-refused=EPERM"
// run: name=ENOSYS args=ENOSYS log="engine=epoll uring-refused=ENOSYS"
// run: name=ENOMEM args=ENOMEM log="engine=epoll uring-refused=ENOMEM"
// run: name=insists args=EPERM env=VTHR_IO=uring expect-mode=native why="io_uring refused: EPERM"
#include "net.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void* echo(void* argument) {
  int fd = *(int*)argument;
  char b[64];
  ssize_t n;
  while ((n = recv(fd, b, sizeof b, 0)) > 0) CHECK(send(fd, b, (size_t)n, 0) == n, "send");
  return NULL;
}

int main(int argc, char** argv) {
  if (argc == 2) {
    unsigned error = !strcmp(argv[1], "EPERM") ? EPERM : !strcmp(argv[1], "ENOSYS") ? ENOSYS : ENOMEM;
    struct sock_filter refuse[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {COUNT_OF(refuse), refuse};
    NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    execl("/proc/self/exe", argv[0], argv[1], "again", (char*)NULL);
    NEED(!"exec");
  }
  check_begin();
  pthread_t t[20];
  int pairs[20][2];
  char b[8];
  for (int i = 0; i < 20; i++) {
    stream_pair(pairs[i]);
    t[i] = start_thread(echo, &pairs[i][0]);
  }
  for (int round = 0; round < 20; round++)
    for (int i = 0; i < 20; i++)
      CHECK(write(pairs[i][1], "12345", 5) == 5 && read_all(pairs[i][1], b, 5) && !memcmp(b, "12345", 5),
            "echo %d", i);
  for (int i = 0; i < 20; i++) {
    shutdown(pairs[i][1], SHUT_WR);
    join_thread(t[i]);
  }
  return check_end();
}
