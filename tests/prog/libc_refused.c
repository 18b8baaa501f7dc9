/*
 * Where the text of libc must not be changed, a program runs all the same. Usage: libc_refused WHAT [PROGRAM ARGUMENT...]:
 * mdwe      as systemd's MemoryDenyWriteExecute does it since Linux 6.3, for PROGRAM
 * seccomp   as it did before
 * stranger  a thread made by clone(), which knows nothing of pthreads, runs before the first pthread_create
 */
// run: args="mdwe ${BUILD}/tests/prog/libc_inside 0" name=mdwe
// run: args="seccomp ${BUILD}/tests/prog/libc_inside 0" name=seccomp
// run: args="stranger" name=stranger
// run: env=VTHR_LIBC_ENTRY=off args="stranger" name=off
#include "net.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

static void refuse_mprotect(void) {
  struct sock_filter refuse[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {COUNT_OF(refuse), refuse};
  NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* The stranger waits in the kernel for a byte, then ends. */
static int wake[2];
static atomic_int stranger_runs, stranger_ends;
static int stranger(void* unused) {
  char c;
  long result;
  (void)unused;
  stranger_runs = 1;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"((long)SYS_read), "D"((long)wake[0]), "S"(&c), "d"(1L)
                   : "rcx", "r11", "memory");
  stranger_ends = (int)result + 1;
  for (;;) __asm__ volatile("syscall" : "=a"(result) : "a"((long)SYS_exit), "D"(0L) : "rcx", "r11", "memory");
  return 0;
}

static int pair[2];
static void* read_line(void* unused) {
  char text[20] = "";
  FILE* f = fdopen(pair[0], "r");
  CHECK(f && fgets(text, sizeof text, f) && !strcmp(text, "hello\n"), "fgets: %s", text);
  return unused;
}

int main(int argc, char** argv) {
  NEED(argc > 1);
  if (!strcmp(argv[1], "stranger")) {
    check_begin();
    static _Alignas(64) char stack[65536];
    NEED(pipe(wake) == 0);
    NEED(clone(stranger, stack + sizeof stack, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM,
               NULL) > 0);
    while (!stranger_runs) sched_yield();
    stream_pair(pair);
    pthread_t t = start_thread(read_line, NULL);
    pause_ms(30);
    CHECK(write(pair[1], "hello\n", 6) == 6, "write");
    join_thread(t);
    CHECK(exited_with(system("exit 7"), 7), "system");
    CHECK(write(wake[1], "x", 1) == 1 && EVENTUALLY(stranger_ends == 2), "the stranger is lost: %d", (int)stranger_ends);
    return check_end();
  }
  NEED(argc > 2);
  if (!strcmp(argv[1], "seccomp"))
    refuse_mprotect();
  else if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0)
    refuse_mprotect(); /* an older kernel */
  execv(argv[2], argv + 2);
  NEED(!"exec");
}
