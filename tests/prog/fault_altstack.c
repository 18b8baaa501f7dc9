/* Alternate signal stacks of threads: faults and stack overflows are handled on them, they may be unmapped at the end. */
#include "check.h"

#include <setjmp.h>
#include <sys/mman.h>

static __thread sigjmp_buf back;
static __thread volatile int caught;
static __thread void* volatile address;
static __thread char* volatile stack_of_handler;
static char* forbidden;

static void handler(int signal_number, siginfo_t* info, void* unused) {
  char here;
  (void)unused;
  caught = signal_number;
  address = info->si_addr;
  stack_of_handler = &here;
  siglongjmp(back, 1);
}

static volatile int zero = 0;
static void fault(int signal_number) {
  switch (signal_number) {
    case SIGSEGV:
      forbidden[100] = 1;
      break;
    case SIGFPE:
      zero = 77 / zero;
      break;
    case SIGILL:
      __builtin_trap();
      break;
    default:
      raise(signal_number);
  }
}

static const int numbers[] = {SIGSEGV, SIGFPE, SIGILL, SIGBUS, SIGABRT, SIGTRAP};

static void* survive(void* volatile argument) {
  char* volatile own = NULL;
  const size_t size = 65536;
  if (argument) {
    own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t stack = {.ss_sp = own, .ss_size = size}, old;
    CHECK(sigaltstack(NULL, &old) == 0 && (old.ss_flags & SS_DISABLE), "a new thread has an alternate stack");
    CHECK(sigaltstack(&stack, NULL) == 0, "sigaltstack: errno %d", errno);
  }
  for (int round = 0; round < 5; round++)
    for (int i = 0; i < COUNT_OF(numbers); i++) {
      caught = 0;
      if (sigsetjmp(back, 1) == 0) fault(numbers[i]);
      CHECK(caught == numbers[i], "caught %d, want %d", caught, numbers[i]);
      if (numbers[i] == SIGSEGV) CHECK(address == forbidden + 100, "address %p", address);
      int on_own = own && stack_of_handler >= own && stack_of_handler < own + size;
      CHECK(on_own == (own != NULL), "the handler of %d ran on the wrong stack", numbers[i]);
      pause_ms(1);
    }
  if (own) { /* as some runtimes do: taken away just before the end, then unmapped */
    stack_t off = {.ss_flags = SS_DISABLE}, old;
    CHECK(sigaltstack(&off, &old) == 0 && old.ss_sp == own && old.ss_size == size, "the alternate stack");
    munmap(own, size);
  }
  return NULL;
}

/* Stack overflow, caught on an alternate stack. */
__attribute__((noinline)) static int overflow(int depth) {
  volatile char frame[4096];
  frame[0] = (char)depth;
  return depth > 0 ? overflow(depth + 1) + frame[0] : 0;
}
static void* overflows(void* unused) {
  (void)unused;
  static char space[4][65536];
  static int next;
  stack_t stack = {.ss_sp = space[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)], .ss_size = 65536};
  CHECK(sigaltstack(&stack, NULL) == 0, "sigaltstack");
  caught = 0;
  if (sigsetjmp(back, 1) == 0) overflow(1);
  CHECK(caught == SIGSEGV, "caught %d", caught);
  stack.ss_flags = SS_DISABLE;
  sigaltstack(&stack, NULL);
  return NULL;
}

int main(void) {
  check_begin();
  forbidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  NEED(forbidden != MAP_FAILED);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int i = 0; i < COUNT_OF(numbers); i++) NEED(sigaction(numbers[i], &action, NULL) == 0);
  pthread_t t[12];
  STAGE("faults in threads");
  for (int i = 0; i < 12; i++) t[i] = start_thread(survive, i % 2 ? forbidden : NULL);
  for (int i = 0; i < 12; i++) join_thread(t[i]);
  STAGE("faults in main");
  survive(NULL);
  STAGE("stack overflow");
  for (int i = 0; i < 4; i++) join_thread(start_thread(overflows, NULL));
  return check_end();
}
