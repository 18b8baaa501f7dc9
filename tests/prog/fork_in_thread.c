/*
 * What a child of fork in a thread has left of the others: their stacks are reused by threads of its own, large ones too, while it
 * switches often; its own stack, keys and ids stay those of the thread that forked.
 */
#include "check.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static int park[2];
static __thread long mine;
static pthread_key_t key;
static atomic_long ended;
static void at_end(void* value) { ended += (long)value; }

static void* wait_in_read(void* unused) {
  char c;
  (void)unused;
  return (void*)read(park[0], &c, 1);
}
static void* nothing(void* argument) {
  volatile char room[3 << 20];
  for (size_t i = 0; i < sizeof room; i += 4096) room[i] = 1;
  sched_yield();
  return argument;
}

static int child_body(long id, pthread_t self, char* local) {
  pthread_attr_t attr;
  pthread_t t[6];
  if (mine != id || (long)pthread_getspecific(key) != id || *local != (char)id) return 51;
  if (!pthread_equal(self, pthread_self())) return 52;
  if (gettid() != getpid() || syscall(SYS_gettid) != getpid()) return 53;
  pthread_attr_init(&attr);
  for (int round = 0; round < 3; round++) {
    pthread_attr_setstacksize(&attr, (size_t)(30 - 8 * round) << 20);
    for (long i = 0; i < COUNT_OF(t); i++)
      if (pthread_create(&t[i], &attr, nothing, (void*)i)) return 54;
    for (int i = 0; i < 100; i++) {
      usleep(20);
      sched_yield();
    }
    for (long i = 0; i < COUNT_OF(t); i++) {
      void* result;
      if (pthread_join(t[i], &result) != 0 || (long)result != i) return 55;
    }
  }
  if (mine != id || *local != (char)id) return 56;
  return 9;
}
static void* forker(void* argument) {
  long id = (long)argument;
  char local = (char)id;
  mine = id;
  pthread_setspecific(key, (void*)id);
  for (int i = 0; i < 3; i++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(20);
      if (i < 2) _exit(child_body(id, pthread_self(), &local));
      /* the thread returns: its destructors run, and as the last one it ends the process with code 0 */
      return NULL;
    }
    int status = -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    CHECK(exited_with(status, i < 2 ? 9 : 0), "child %d of thread %ld ends with %x", i, id, (unsigned)status);
  }
  return NULL;
}

int main(void) {
  check_begin();
  pthread_t t[8], w[20];
  NEED(pipe(park) == 0);
  pthread_key_create(&key, at_end);
  for (int i = 0; i < COUNT_OF(w); i++) w[i] = start_thread(wait_in_read, NULL);
  STAGE("forks in threads");
  for (long i = 0; i < COUNT_OF(t); i++) t[i] = start_thread(forker, (void*)(i + 1));
  for (int i = 0; i < COUNT_OF(t); i++) join_thread(t[i]);
  CHECK(ended == 36, "destructors: %ld", (long)ended);
  close(park[1]);
  for (int i = 0; i < COUNT_OF(w); i++) join_thread(w[i]);
  return check_end();
}
