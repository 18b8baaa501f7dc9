/*
 * fork from main and from threads while other threads sleep, hold descriptors and talk: the child has one thread, all
 * it needs works there, threads can be created in it, forks of forks work, and the parent goes on undisturbed.
 */
#include "net.h"

#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum { SLEEPERS = 30 };
static int park[SLEEPERS][2];
static atomic_int stop;
static __thread long mine = 5;
static pthread_key_t key;
static pthread_mutex_t idle = PTHREAD_MUTEX_INITIALIZER;

static void* sleeper(void* argument) {
  char c;
  int* p = argument;
  CHECK(read(p[0], &c, 1) == 1 && c == 'p', "the parent's byte came as '%c'", c);
  return NULL;
}
static void* talker(void* argument) {
  int* pair = argument;
  char c = 'a', back;
  while (!stop) {
    CHECK(write(pair[0], &c, 1) == 1 && read(pair[1], &back, 1) == 1 && back == c, "talk");
    c = c == 'z' ? 'a' : (char)(c + 1);
  }
  return NULL;
}

static void* square(void* argument) {
  usleep(500);
  CHECK(mine == 5, "thread-local value of a child's thread is %ld", mine);
  return (void*)((long)argument * (long)argument);
}

/* What every child does, whoever forked it. */
static int use_child(void) {
  int p[2];
  char c;
  sem_t sem;
  pthread_t t[10];
  long sum = 0;
  struct pollfd f;
  CHECK(getpid() == gettid() && syscall(SYS_gettid) == getpid(), "ids of a child: %d, %d", (int)getpid(),
        (int)gettid());
  NEED(pipe(p) == 0);
  for (long i = 0; i < 10; i++) t[i] = start_thread(square, (void*)i);
  for (int i = 0; i < 10; i++) sum += (long)join_thread(t[i]);
  CHECK(sum == 285, "sum %ld", sum);
  f = (struct pollfd){p[0], POLLIN, 0};
  CHECK(poll(&f, 1, 20) == 0, "poll in a child");
  CHECK(write(p[1], "x", 1) == 1 && poll(&f, 1, 1000) == 1 && read(p[0], &c, 1) == 1, "pipe in a child");
  sem_init(&sem, 0, 1);
  CHECK(sem_wait(&sem) == 0 && sem_trywait(&sem) == -1 && errno == EAGAIN, "semaphore in a child");
  CHECK(pthread_mutex_lock(&idle) == 0 && pthread_mutex_unlock(&idle) == 0, "mutex in a child");
  errno = 0;
  CHECK(read(-1, &c, 1) == -1 && errno == EBADF, "errno in a child: %d", errno);
  char* text = malloc(100000);
  memset(text, 1, 100000);
  free(text);
  close(p[0]);
  close(p[1]);
  return check_findings != 0;
}

static int grandchild(void* argument) {
  (void)argument;
  return use_child();
}
static void* fork_again(void* argument) { return (void*)(long)in_child(grandchild, argument); }

static int child(void* argument) {
  pthread_t self = *(pthread_t*)argument;
  CHECK(pthread_equal(self, pthread_self()), "pthread_self changed in the child");
  CHECK(mine == 6 && pthread_getspecific(key) == &mine, "thread-local values in the child");
  int failed = use_child();
  CHECK(exited_with(in_child(grandchild, NULL), 0), "a child's child");
  CHECK(exited_with((int)(long)join_thread(start_thread(fork_again, NULL)), 0),
        "a child of a child's thread");
  failed |= use_child();
  CHECK(mine == 6 && pthread_getspecific(key) == &mine, "thread-local values in the child, later");
  return failed || check_findings != 0;
}

static void* forker(void* argument) {
  long rounds = (long)argument;
  for (long i = 0; i < rounds; i++) {
    pthread_t self = pthread_self();
    mine = 6;
    pthread_setspecific(key, &mine);
    int status = in_child(child, &self);
    CHECK(exited_with(status, 0), "status %#x of child %ld", status, i);
    CHECK(mine == 6 && pthread_equal(self, pthread_self()), "the parent's thread after fork");
  }
  return NULL;
}

/* waitpid from several threads, each for its own child and its own way to end. */
static void* wait_for_child(void* argument) {
  int code = (int)(long)argument, status = 0;
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    usleep(20000);
    if (code == 9) raise(SIGKILL);
    _exit(code);
  }
  CHECK(waitpid(pid, &status, 0) == pid, "waitpid: errno %d", errno);
  if (code == 9)
    CHECK(killed_by(status, SIGKILL), "status %#x", status);
  else
    CHECK(exited_with(status, code), "status %#x, want code %d", status, code);
  CHECK(waitpid(pid, &status, WNOHANG) == -1 && errno == ECHILD, "waited for twice: errno %d", errno);
  return NULL;
}

int main(void) {
  check_begin();
  pthread_t s[SLEEPERS], talk[3], f[6];
  int pairs[3][2];
  pthread_key_create(&key, NULL);
  STAGE("fork before any thread");
  forker((void*)1);
  for (int i = 0; i < SLEEPERS; i++) {
    NEED(pipe(park[i]) == 0);
    s[i] = start_thread(sleeper, park[i]);
  }
  for (int i = 0; i < 3; i++) {
    stream_pair(pairs[i]);
    talk[i] = start_thread(talker, pairs[i]);
  }
  pause_ms(20);
  STAGE("fork in main");
  forker((void*)2);
  STAGE("fork in a thread");
  join_thread(start_thread(forker, (void*)3));
  STAGE("fork in several threads at once");
  for (int i = 0; i < 4; i++) f[i] = start_thread(forker, (void*)1);
  for (int i = 0; i < 4; i++) join_thread(f[i]);
  STAGE("waitpid in threads");
  for (long i = 0; i < 6; i++) f[i] = start_thread(wait_for_child, (void*)(5 + i));
  for (int i = 0; i < 6; i++) join_thread(f[i]);
  STAGE("the parent's threads");
  stop = 1;
  for (int i = 0; i < 3; i++) join_thread(talk[i]);
  for (int i = 0; i < SLEEPERS; i++) CHECK(write(park[i][1], "p", 1) == 1, "write");
  for (int i = 0; i < SLEEPERS; i++) join_thread(s[i]);
  return check_end();
}
