/* SIGSEGV, SIGFPE, SIGILL, SIGBUS, SIGABRT and SIGTRAP in threads: handlers that siglongjmp, and death without handlers. */
#include "check.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <sys/resource.h>

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

static void* survive(void* unused) {
  (void)unused;
  char here;
  for (int round = 0; round < 5; round++)
    for (int i = 0; i < COUNT_OF(numbers); i++) {
      caught = 0;
      if (sigsetjmp(back, 1) == 0) fault(numbers[i]);
      CHECK(caught == numbers[i], "caught %d, want %d", caught, numbers[i]);
      if (numbers[i] == SIGSEGV) CHECK(address == forbidden + 100, "address %p", address);
      long distance = &here - stack_of_handler;
      CHECK(distance > -200000 && distance < 200000, "the handler of %d ran on another stack", numbers[i]);
      pause_ms(1);
    }
  return NULL;
}

static void* die(void* argument) {
  int number = (int)(long)argument;
  if (number == SIGABRT) abort();
  fault(number);
  return NULL;
}
static int dying(void* argument) {
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  for (int i = 0; i < COUNT_OF(numbers); i++) signal(numbers[i], SIG_DFL);
  join_thread(start_thread(die, argument));
  return 0;
}

int main(void) {
  check_begin();
  forbidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  NEED(forbidden != MAP_FAILED);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  for (int i = 0; i < COUNT_OF(numbers); i++) NEED(sigaction(numbers[i], &action, NULL) == 0);
  pthread_t t[12];
  STAGE("faults in threads");
  for (int i = 0; i < 12; i++) t[i] = start_thread(survive, NULL);
  for (int i = 0; i < 12; i++) join_thread(t[i]);
  STAGE("faults in main");
  survive(NULL);
  STAGE("death");
  for (int i = 0; i < COUNT_OF(numbers); i++) {
    int status = in_child(dying, (void*)(long)numbers[i]);
    CHECK(killed_by(status, numbers[i]), "signal %d: status %#x", numbers[i], status);
  }
  return check_end();
}
