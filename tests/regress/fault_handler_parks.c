/*
 * A handler of SIGSEGV that waits for a lock, as those of virtual machines do: the next fault, of whichever thread, finds its
 * handler too. What the handler's mask says holds for its thread alone; dispositions read as they were set.
 */
// cflags: -Wno-deprecated-declarations
#include "../prog/check.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { THREADS = 40, ROUNDS = 20 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t go;
static atomic_int in_handler, handled, wrong;
static char* pages;
static long page_size;

static void open_page(int signal_number, siginfo_t* info, void* context) {
  (void)context;
  in_handler++;
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  if (signal_number != SIGSEGV || !sigismember(&mask, SIGSEGV) || !sigismember(&mask, SIGUSR1)) wrong++;
  pthread_mutex_lock(&lock);
  usleep(200);
  pthread_mutex_unlock(&lock);
  if (mprotect((char*)((uintptr_t)info->si_addr & ~(uintptr_t)(page_size - 1)), (size_t)page_size, PROT_READ | PROT_WRITE)) wrong++;
  handled++;
}

static void* touch(void* argument) {
  char* own = pages + (long)argument * page_size;
  sigset_t mask;
  for (int i = 0; i < ROUNDS; i++) {
    mprotect(own, (size_t)page_size, PROT_NONE);
    *(volatile char*)own = (char)i;
    if (*(volatile char*)own != (char)i) wrong++;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    if (sigismember(&mask, SIGSEGV) || sigismember(&mask, SIGUSR1)) wrong++;
  }
  return NULL;
}

static void many(void) {
  STAGE("many");
  struct sigaction set, old;
  memset(&set, 0, sizeof set);
  set.sa_sigaction = open_page;
  set.sa_flags = SA_SIGINFO;
  sigaddset(&set.sa_mask, SIGUSR1);
  NEED(sigaction(SIGSEGV, &set, NULL) == 0);
  NEED(sigaction(SIGSEGV, NULL, &old) == 0);
  CHECK(old.sa_sigaction == open_page && (old.sa_flags & SA_SIGINFO) && sigismember(&old.sa_mask, SIGUSR1), "sigaction reads another action");
  pages = mmap(NULL, (size_t)(THREADS * page_size), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  NEED(pages != MAP_FAILED);
  pthread_t t[THREADS];
  for (long i = 0; i < THREADS; i++) t[i] = start_thread(touch, (void*)i);
  for (int i = 0; i < THREADS; i++) join_thread(t[i]);
  CHECK(handled == THREADS * ROUNDS && !wrong, "%d of %d faults handled, %d wrong", handled, THREADS * ROUNDS, wrong);
}

/* One waits in its handler, the other faults meanwhile. */
static volatile int* hole;
static __thread sigjmp_buf back;
static void wait_in_handler(int signal_number) {
  (void)signal_number;
  if (in_handler++ == 0) sem_wait(&go);
  siglongjmp(back, 1);
}
static void* fault_once(void* unused) {
  (void)unused;
  if (sigsetjmp(back, 1) == 0) *hole = 1;
  if (sigsetjmp(back, 1) == 0) *hole = 1;
  handled++;
  return NULL;
}
static void beside(void) {
  STAGE("beside");
  sem_init(&go, 0, 0);
  in_handler = handled = 0;
  hole = wild_address();
  CHECK(signal(SIGSEGV, wait_in_handler) == (sighandler_t)open_page, "signal gives another handler");
  pthread_t first = start_thread(fault_once, NULL);
  CHECK(EVENTUALLY(in_handler == 1), "the first does not come to its handler");
  join_thread(start_thread(fault_once, NULL));
  CHECK(handled == 1, "%d handled", handled);
  sem_post(&go);
  join_thread(first);
  CHECK(handled == 2 && in_handler == 4, "%d handled, %d in the handler", handled, in_handler);
  CHECK(signal(SIGSEGV, SIG_DFL) == wait_in_handler, "signal gives another handler");
}

/* What ends the process, natively too. */
static void say(int signal_number) {
  (void)signal_number;
  check_say("handler\n");
}
static void say_and_fault(int signal_number) {
  say(signal_number);
  *(volatile int*)wild_address() = 1;
}
static void say_and_go(int signal_number) {
  say(signal_number);
  _exit(7);
}
static void* body_blocked(void* unused) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGSEGV);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  *hole = 1;
  return unused;
}
static void* body_fault(void* unused) {
  *hole = 1;
  return unused;
}
static void* body_trap(void* unused) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTRAP);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  __asm__ volatile("int3");
  return unused;
}
static int ends(void* argument) {
  int which = (int)(long)argument;
  struct sigaction set;
  memset(&set, 0, sizeof set);
  start_thread((void* (*)(void*))pause, NULL); /* there are threads before there are handlers */
  set.sa_handler = which == 2 ? say_and_fault : which == 3 ? say_and_go : say;
  set.sa_flags = which == 1 ? (int)SA_RESETHAND : 0;
  sigaction(which == 4 ? SIGTRAP : SIGSEGV, &set, NULL);
  join_thread(start_thread(which == 0 ? body_blocked : which == 4 ? body_trap : body_fault, NULL));
  return 99;
}

/* Handlers that were set by other calls than sigaction, and what they read back. */
struct kernel_action {
  void* handler;
  unsigned long flags;
  void* restorer;
  unsigned long mask;
};
static void* by_other_calls(void* unused) {
  struct kernel_action a;
  struct sigaction old;
  memset(&a, 0, sizeof a);
  in_handler = 1; /* so that the handler only jumps */
  CHECK(sysv_signal(SIGSEGV, wait_in_handler) == SIG_DFL, "sysv_signal");
  NEED(sigaction(SIGSEGV, NULL, &old) == 0);
  CHECK(old.sa_handler == wait_in_handler && (old.sa_flags & (int)SA_RESETHAND) && !(old.sa_flags & SA_SIGINFO), "sysv_signal's action");
  if (sigsetjmp(back, 1) == 0) *hole = 1;
  NEED(sigaction(SIGSEGV, NULL, &old) == 0);
  CHECK(old.sa_handler == SIG_DFL, "SA_RESETHAND leaves a handler");
  CHECK(sigset(SIGSEGV, wait_in_handler) == SIG_DFL, "sigset");
  if (sigsetjmp(back, 1) == 0) *hole = 1;
  CHECK(sigset(SIGUSR2, SIG_HOLD) == SIG_DFL && sigset(SIGUSR2, say) == SIG_HOLD && sigset(SIGUSR2, SIG_DFL) == say, "sigset of SIGUSR2");
  NEED(syscall(SYS_rt_sigaction, SIGSEGV, NULL, &a, 8) == 0);
  CHECK(a.handler == (void*)wait_in_handler, "rt_sigaction reads another handler");
  NEED(syscall(SYS_rt_sigaction, SIGBUS, &a, NULL, 8) == 0);
  CHECK(signal(SIGBUS, SIG_DFL) == wait_in_handler, "signal after rt_sigaction");
  if (sigsetjmp(back, 1) == 0) pthread_kill(pthread_self(), SIGSEGV);
  if (sigsetjmp(back, 1) == 0) raise(SIGSEGV);
  CHECK(in_handler == 5, "%d times in the handler", in_handler);
  return unused;
}

int main(void) {
  check_begin();
  page_size = sysconf(_SC_PAGESIZE);
  many();
  beside();
  STAGE("other calls");
  join_thread(start_thread(by_other_calls, NULL));
  signal(SIGSEGV, SIG_DFL);
  static const char* what[] = {"blocked", "reset", "fault in the handler", "exit in the handler", "blocked trap"};
  for (long i = 0; i < COUNT_OF(what); i++) {
    printf("%s: ", what[i]);
    int status = in_child(ends, (void*)i);
    printf("%s %d\n", WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }
  return check_end();
}
