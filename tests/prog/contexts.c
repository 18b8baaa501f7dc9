/* A program's own stack switching within threads: makecontext and swapcontext, longjmp; calls that block on such stacks. */
#include "check.h"

#include <setjmp.h>
#include <ucontext.h>

enum { COROUTINES = 4, STEPS = 10, STACK = 64 * 1024 };
struct scheduler {
  ucontext_t main, each[COROUTINES];
  char* stacks;
  int running, finished, order[COROUTINES * STEPS], n;
  int pipe_fds[2];
};
static __thread struct scheduler* mine;
static __thread int switches;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long counter;

static void yield(void) {
  struct scheduler* s = mine;
  switches++;
  swapcontext(&s->each[s->running], &s->main);
}

static void coroutine(int id) {
  for (int step = 0; step < STEPS; step++) {
    struct scheduler* s = mine;
    char c = (char)id, back;
    s->order[s->n++] = id;
    switch (step % 4) { /* block on the coroutine's stack */
      case 0:
        pause_ms(1);
        break;
      case 1:
        pthread_mutex_lock(&lock);
        usleep(100);
        counter++;
        pthread_mutex_unlock(&lock);
        break;
      case 2:
        CHECK(write(s->pipe_fds[1], &c, 1) == 1 && read(s->pipe_fds[0], &back, 1) == 1 && back == c, "pipe");
        break;
      case 3:
        errno = 1000 + id;
        break;
    }
    CHECK(mine == s, "another thread's coroutines");
    yield();
    if (step % 4 == 3) CHECK(mine == s && s->running == id, "coroutine %d resumed as %d", id, s->running);
  }
  mine->finished++;
}

static void* run(void* unused) {
  (void)unused;
  struct scheduler s;
  memset(&s, 0, sizeof s);
  NEED(pipe(s.pipe_fds) == 0);
  s.stacks = malloc(COROUTINES * STACK);
  mine = &s;
  for (int i = 0; i < COROUTINES; i++) {
    getcontext(&s.each[i]);
    s.each[i].uc_stack.ss_sp = s.stacks + i * STACK;
    s.each[i].uc_stack.ss_size = STACK;
    s.each[i].uc_link = &s.main;
    makecontext(&s.each[i], (void (*)(void))coroutine, 1, i);
  }
  for (int round = 0; s.finished < COROUTINES && round < 2 * STEPS; round++)
    for (int i = 0; i < COROUTINES; i++)
      if (round <= STEPS) {
        s.running = i;
        swapcontext(&s.main, &s.each[i]);
      }
  CHECK(s.finished == COROUTINES, "%d coroutines finished", s.finished);
  for (int i = 0; i < s.n; i++) CHECK(s.order[i] == i % COROUTINES, "step %d by coroutine %d", i, s.order[i]);
  CHECK(switches == COROUTINES * STEPS, "%d switches", switches);
  free(s.stacks);
  close(s.pipe_fds[0]);
  close(s.pipe_fds[1]);
  return NULL;
}

static __thread jmp_buf target;
static volatile int deepest = 10;
__attribute__((noinline)) static int jump_from(int depth) {
  volatile char frame[500];
  frame[0] = (char)depth;
  if (depth == deepest) {
    pause_ms(1);
    longjmp(target, 7);
  }
  return depth < 100 ? jump_from(depth + 1) + frame[0] : 0;
}
static void* jumps(void* unused) {
  for (volatile int i = 0; i < 10; i++) {
    int r = setjmp(target);
    if (r == 0) jump_from(0);
    CHECK(r == 7, "setjmp returned %d", r);
    pause_ms(1);
  }
  return unused;
}

int main(void) {
  check_begin();
  pthread_t t[12];
  STAGE("coroutines in threads");
  for (int i = 0; i < 12; i++) t[i] = start_thread(run, NULL);
  run(NULL);
  for (int i = 0; i < 12; i++) join_thread(t[i]);
  CHECK(counter == 13 * COROUTINES * 3, "counted %ld", counter);
  STAGE("longjmp");
  for (int i = 0; i < 12; i++) t[i] = start_thread(jumps, NULL);
  for (int i = 0; i < 12; i++) join_thread(t[i]);
  return check_end();
}
