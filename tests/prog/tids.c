/* Thread ids: gettid and the system call agree, ids of living threads are unique and stay the same. */
#include "check.h"

#include <semaphore.h>
#include <sys/syscall.h>

enum { N = 300 };
static pid_t id_of[N];
static sem_t known, leave;

static void* live(void* argument) {
  long i = (long)argument;
  pid_t id = gettid();
  CHECK(id > 0, "gettid gave %d", (int)id);
  CHECK(id == (pid_t)syscall(SYS_gettid), "gettid %d, system call %ld", (int)id, syscall(SYS_gettid));
  CHECK(id != getpid(), "a thread has the id of the process");
  CHECK(getpid() == (pid_t)syscall(SYS_getpid), "getpid");
  pause_ms(1);
  CHECK(id == gettid() && id == (pid_t)syscall(SYS_gettid), "the id changed in a sleep");
  id_of[i] = id;
  sem_post(&known);
  sem_wait(&leave);
  CHECK(id == gettid(), "the id changed in sem_wait");
  return NULL;
}

static int compare(const void* a, const void* b) {
  pid_t x = *(const pid_t*)a, y = *(const pid_t*)b;
  return (x > y) - (x < y);
}

static int child(void* unused) {
  (void)unused;
  CHECK(gettid() == getpid(), "the first thread of a child: id %d, process %d", (int)gettid(), (int)getpid());
  CHECK((pid_t)syscall(SYS_gettid) == getpid(), "the same by system call");
  return check_findings != 0;
}
static void* fork_here(void* unused) { return (void*)(long)in_child(child, unused); }

int main(void) {
  check_begin();
  pthread_t t[N];
  sem_init(&known, 0, 0);
  sem_init(&leave, 0, 0);
  CHECK(gettid() == getpid() && (pid_t)syscall(SYS_gettid) == getpid(),
        "main's id is not that of the process");
  STAGE("living threads");
  for (long i = 0; i < N; i++) t[i] = start_thread(live, (void*)i);
  for (int i = 0; i < N; i++) sem_wait(&known);
  qsort(id_of, N, sizeof id_of[0], compare);
  for (int i = 1; i < N; i++)
    CHECK(id_of[i] != id_of[i - 1], "two living threads have the id %d", (int)id_of[i]);
  for (int i = 0; i < N; i++) sem_post(&leave);
  for (int i = 0; i < N; i++) join_thread(t[i]);
  CHECK(gettid() == getpid(), "main's id changed");
  STAGE("children");
  CHECK(exited_with(in_child(child, NULL), 0), "child of main");
  CHECK(exited_with((int)(long)join_thread(start_thread(fork_here, NULL)), 0), "child of a thread");
  return check_end();
}
