/*
 * Threads with the smallest stack that there may be, from the attribute or of the program's own: they wait, are signalled, print,
 * take contended locks; a little more stack than is needed is enough, as natively.
 */
#include "check.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>

enum { THREADS = 12 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_long signals_taken;
static int pair[2];

static void on_signal(int unused) {
  (void)unused;
  signals_taken++;
}

static void* work(void* argument) {
  char text[64];
  for (int i = 0; i < 20; i++) {
    pthread_mutex_lock(&lock);
    usleep(50);
    pthread_mutex_unlock(&lock);
    int n = snprintf(text, sizeof text, "%d of %ld", i, (long)argument);
    CHECK(n > 4, "snprintf");
    if (i % 5 == 0) CHECK(write(pair[0], "x", 1) == 1 && read(pair[1], text, 1) == 1, "a byte through a socket");
    if (i % 4 == 1) sched_yield();
    if (i == 10) raise(SIGUSR1);
  }
  return argument;
}

static void run(pthread_attr_t* attr, char* memory, size_t size) {
  pthread_t t[THREADS];
  for (long i = 0; i < THREADS; i++) {
    if (memory) NEED(pthread_attr_setstack(attr, memory + i * (long)size, size) == 0);
    int error = pthread_create(&t[i], attr, work, (void*)i);
    CHECK(error == 0, "pthread_create: %s", strerror(error));
    if (error) _exit(1);
  }
  for (int k = 0; k < 20; k++) {
    for (int i = 0; i < THREADS; i++) pthread_kill(t[i], SIGUSR1);
    pause_ms(1);
  }
  for (long i = 0; i < THREADS; i++) CHECK((long)join_thread(t[i]) == i, "the result of thread %ld", i);
}

/* Each has its own guard, whatever the size: the thread that falls off is the one that is hit. */
static __thread sigjmp_buf back;
static char alternate[64 << 10];
static void on_fault(int unused, siginfo_t* info, void* context) {
  (void)unused, (void)info, (void)context;
  siglongjmp(back, 1);
}
__attribute__((noinline)) static long fall(volatile long depth) {
  volatile char room[256];
  room[0] = (char)depth;
  return depth < 0 ? 0 : fall(depth + 1) + room[0];
}
static atomic_int caught;
static void* faller(void* argument) {
  stack_t s = {.ss_sp = alternate + (long)argument * (16 << 10), .ss_size = 16 << 10};
  NEED(sigaltstack(&s, NULL) == 0);
  for (int i = 0; i < 3; i++) {
    if (sigsetjmp(back, 1) == 0) fall(0);
    else caught++;
    usleep(100);
  }
  s.ss_flags = SS_DISABLE;
  sigaltstack(&s, NULL);
  return NULL;
}

int main(void) {
  check_begin();
  struct sigaction set;
  memset(&set, 0, sizeof set);
  set.sa_handler = on_signal;
  set.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &set, NULL);
  NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN);
  CHECK(least >= 16384, "_SC_THREAD_STACK_MIN is %zu", least);
  /* a signal's frame takes what the processor's registers need; natively the same */
  size_t signal_room = (size_t)sysconf(_SC_MINSIGSTKSZ) * 2;
  STAGE("by attribute");
  static const size_t more[] = {0, 4096, 16384};
  for (int i = 0; i < COUNT_OF(more); i++) {
    for (int guard = 0; guard < 2; guard++) {
      NEED(pthread_attr_setstacksize(&attr, least + signal_room + more[i]) == 0);
      NEED(pthread_attr_setguardsize(&attr, guard ? 4096 : 0) == 0);
      run(&attr, NULL, 0);
    }
  }
  STAGE("of the program's own");
  size_t size = (least + signal_room + 4095) & ~(size_t)4095;
  char* memory = mmap(NULL, size * THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  NEED(memory != MAP_FAILED);
  run(&attr, memory, size);
  STAGE("falling off");
  set.sa_flags = SA_SIGINFO | SA_ONSTACK;
  set.sa_sigaction = on_fault;
  sigaction(SIGSEGV, &set, NULL);
  sigaction(SIGBUS, &set, NULL);
  pthread_attr_destroy(&attr);
  pthread_attr_init(&attr);
  for (int round = 0; round < 3; round++) {
    pthread_t t[4];
    for (long i = 0; i < 4; i++) {
      NEED(pthread_attr_setstacksize(&attr, (size_t)(64 << 10) << (i + round) % 4) == 0);
      NEED(pthread_create(&t[i], &attr, faller, (void*)i) == 0);
    }
    for (int i = 0; i < 4; i++) join_thread(t[i]);
  }
  CHECK(caught == 36, "%d overflows caught", (int)caught);
  pthread_attr_destroy(&attr);
  CHECK(signals_taken > 0, "no signal");
  return check_end();
}
