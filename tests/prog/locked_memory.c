/* mlockall before and while there are threads, now and for the future: threads come and go, fall into their guards, and end. */
#include "check.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

static atomic_long sum;
static void* work(void* argument) {
  volatile char page[20000];
  for (int i = 0; i < (int)sizeof page; i += 1000) page[i] = (char)i;
  usleep(300);
  sum += (long)argument + page[3000] - page[3000];
  return argument;
}
static void some(const char* what) {
  pthread_t t[20];
  pthread_attr_t attr;
  STAGE(what);
  pthread_attr_init(&attr);
  for (int round = 0; round < 3; round++) {
    sum = 0;
    pthread_attr_setstacksize(&attr, (size_t)(128 + 64 * round) << 10);
    for (long i = 0; i < COUNT_OF(t); i++) {
      int error = pthread_create(&t[i], &attr, work, (void*)i);
      CHECK(error == 0, "%s: pthread_create: %s", what, strerror(error));
      if (error) _exit(1);
    }
    for (int i = 0; i < COUNT_OF(t); i++) join_thread(t[i]);
    CHECK(sum == 190, "%s: sum %ld", what, (long)sum);
  }
  pthread_attr_destroy(&attr);
}
static void* fall_off(void* unused) {
  pthread_attr_t attr;
  void* base;
  size_t size;
  pthread_getattr_np(pthread_self(), &attr);
  pthread_attr_getstack(&attr, &base, &size);
  *((volatile char*)base - 64) = 1;
  return unused;
}
/* A limit on locked memory lets the program do without. */
static int lock_all(int flags) {
  int r = mlockall(flags);
  CHECK(r == 0 || errno == EPERM || errno == ENOMEM, "mlockall(%d): %s", flags, strerror(errno));
  return r;
}
static int ends(void* argument) {
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  lock_all((int)(long)argument);
  join_thread(start_thread(work, NULL));
  pthread_attr_t small;
  pthread_t t;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 256 << 10);
  NEED(pthread_create(&t, &small, fall_off, NULL) == 0);
  pthread_join(t, NULL);
  return 0;
}
static int before(void* argument) {
  alarm(20);
  lock_all((int)(long)argument);
  some("locked before the first thread");
  munlockall();
  some("unlocked");
  return check_findings != 0;
}

int main(void) {
  check_begin();
  static const int flags[] = {MCL_CURRENT, MCL_FUTURE, MCL_CURRENT | MCL_FUTURE, MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT};
  for (int i = 0; i < COUNT_OF(flags); i++) {
    CHECK(exited_with(in_child(before, (void*)(long)flags[i]), 0), "locked before, flags %d", flags[i]);
    CHECK(killed_by(in_child(ends, (void*)(long)flags[i]), SIGSEGV), "the guard, flags %d", flags[i]);
  }
  some("at first");
  for (int i = 0; i < COUNT_OF(flags); i++) {
    lock_all(flags[i]);
    some("locked");
    munlockall();
    some("unlocked");
  }
  return check_end();
}
