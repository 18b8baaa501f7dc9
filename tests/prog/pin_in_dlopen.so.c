/* A library whose constructor sleeps for 300 ms by a system call instruction, while the loader's lock is held. */
#include <sys/syscall.h>
#include <time.h>

__attribute__((constructor)) void slow_constructor(void) {
  struct timespec span = {0, 300000000};
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"((long)SYS_nanosleep), "D"(&span), "S"(0L)
                   : "rcx", "r11", "memory");
}
