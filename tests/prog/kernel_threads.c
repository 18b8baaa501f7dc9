/*
 * 200 threads sleep at once. With the argument "count" prints how many threads the kernel knows of meanwhile; with
 * "idle" 1,000 sleep in all kinds of waits until the standard input ends.
 */
#include "check.h"

#include <dirent.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static sem_t sem;
static int gate[2], open_gate;
static atomic_int asleep;

static void* sleeper(void* argument) {
  char c;
  struct pollfd f = {gate[0], POLLIN, 0};
  asleep++;
  switch ((long)argument % 5) {
    case 0:
      CHECK(read(gate[0], &c, 1) == 0, "read");
      break;
    case 1:
      CHECK(poll(&f, 1, -1) == 1, "poll");
      break;
    case 2:
      pthread_mutex_lock(&lock);
      while (!open_gate) pthread_cond_wait(&cond, &lock);
      pthread_mutex_unlock(&lock);
      break;
    case 3:
      CHECK(sem_wait(&sem) == 0, "sem_wait");
      break;
    case 4:
      f.events = POLLIN;
      CHECK(poll(&f, 1, 60000) == 1, "poll with a limit");
      break;
  }
  return NULL;
}

static int tasks(void) {
  int n = 0;
  DIR* d = opendir("/proc/self/task");
  for (struct dirent* e; d && (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
  if (d) closedir(d);
  return n;
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  int n = !strcmp(what, "idle") ? 1000 : 200;
  static pthread_t t[1000];
  char c;
  check_begin();
  NEED(pipe(gate) == 0 && sem_init(&sem, 0, 0) == 0);
  for (long i = 0; i < n; i++) t[i] = start_thread(sleeper, (void*)i);
  CHECK(EVENTUALLY(asleep == n), "%d of %d sleep", (int)asleep, n);
  pause_ms(100);
  if (!strcmp(what, "count")) printf("%d\n", tasks());
  if (!strcmp(what, "idle")) {
    printf("ready\n");
    fflush(stdout);
    alarm(60);
    CHECK(read(0, &c, 1) == 0, "standard input");
  }
  close(gate[1]);
  pthread_mutex_lock(&lock);
  open_gate = 1;
  pthread_cond_broadcast(&cond);
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < n; i++) sem_post(&sem);
  for (int i = 0; i < n; i++) join_thread(t[i]);
  return check_end();
}
