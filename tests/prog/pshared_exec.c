/*
 * Process-shared locks of every kind between this process and one that runs the same program without any preloaded library:
 * mutexes (normal, recursive, error-checking, robust, priority-inheriting), condition variables, read-write locks, barriers,
 * semaphores, named ones too. And what becomes of robust mutexes whose owners die, threads and processes.
 */
// run: timeout=60
#include "check.h"

#include <fcntl.h>
#include <limits.h>
#include <semaphore.h>
#include <sys/mman.h>

enum { KINDS = 5, THREADS = 3, ROUNDS = 100, PINGS = 30 };
static const char* const kind_names[KINDS] = {"normal", "recursive", "errorcheck", "robust", "inherit"};

struct shared {
  pthread_mutex_t mutex[KINDS], cond_mutex, dying;
  pthread_cond_t cond;
  pthread_rwlock_t rwlock;
  pthread_barrier_t barrier;
  sem_t sem[2];
  int inside[KINDS], writing, reading, turn, serial, died;
  long counter[KINDS], written;
  char name[32];
};
static struct shared* s;
static int side; /* 0: the one that was started; 1: the one without preload */
static char path[64];

static void make_objects(void) {
  pthread_mutexattr_t a;
  pthread_condattr_t c;
  pthread_rwlockattr_t rw;
  pthread_barrierattr_t b;
  for (int i = 0; i <= KINDS; i++) {
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    if (i == 1) pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    if (i == 2) pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK);
    if (i == 3 || i == KINDS) pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    if (i == 4) pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_INHERIT);
    NEED(pthread_mutex_init(i < KINDS ? &s->mutex[i] : &s->dying, &a) == 0);
  }
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&s->cond_mutex, &a);
  pthread_condattr_init(&c);
  pthread_condattr_setpshared(&c, PTHREAD_PROCESS_SHARED);
  pthread_cond_init(&s->cond, &c);
  pthread_rwlockattr_init(&rw);
  pthread_rwlockattr_setpshared(&rw, PTHREAD_PROCESS_SHARED);
  pthread_rwlock_init(&s->rwlock, &rw);
  pthread_barrierattr_init(&b);
  pthread_barrierattr_setpshared(&b, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&s->barrier, &b, 2);
  sem_init(&s->sem[0], 1, 0);
  sem_init(&s->sem[1], 1, 0);
}

/* Whoever is inside stays there for a moment now and then, so that others wait for it. */
static void* contend(void* unused) {
  for (int r = 0; r < ROUNDS; r++) {
    for (int k = 0; k < KINDS; k++) {
      int e = pthread_mutex_lock(&s->mutex[k]);
      CHECK(e == 0, "lock of %s: %d", kind_names[k], e);
      if (k == 1) CHECK(pthread_mutex_lock(&s->mutex[k]) == 0, "once more");
      if (k == 2) CHECK(pthread_mutex_lock(&s->mutex[k]) == EDEADLK, "an error-checking mutex twice");
      CHECK(__atomic_fetch_add(&s->inside[k], 1, __ATOMIC_SEQ_CST) == 0, "two inside %s", kind_names[k]);
      if (r % 25 == k) pause_ms(1);
      s->counter[k]++;
      __atomic_fetch_sub(&s->inside[k], 1, __ATOMIC_SEQ_CST);
      if (k == 1) pthread_mutex_unlock(&s->mutex[k]);
      e = pthread_mutex_unlock(&s->mutex[k]);
      CHECK(e == 0, "unlock of %s: %d", kind_names[k], e);
    }
    if (r % 4 == 0) {
      CHECK(pthread_rwlock_wrlock(&s->rwlock) == 0, "wrlock");
      CHECK(__atomic_fetch_add(&s->writing, 1, __ATOMIC_SEQ_CST) == 0 && !s->reading, "a writer beside others");
      if (r % 20 == 0) pause_ms(1);
      s->written++;
      __atomic_fetch_sub(&s->writing, 1, __ATOMIC_SEQ_CST);
    } else {
      CHECK(pthread_rwlock_rdlock(&s->rwlock) == 0, "rdlock");
      __atomic_fetch_add(&s->reading, 1, __ATOMIC_SEQ_CST);
      CHECK(!s->writing, "a reader beside a writer");
      __atomic_fetch_sub(&s->reading, 1, __ATOMIC_SEQ_CST);
    }
    pthread_rwlock_unlock(&s->rwlock);
  }
  return unused;
}

static void* ping(void* named) {
  sem_t* mine = side ? &s->sem[1] : &s->sem[0];
  sem_t* theirs = side ? &s->sem[0] : &s->sem[1];
  (void)named;
  for (int i = 0; i < PINGS; i++) {
    pthread_mutex_lock(&s->cond_mutex);
    while (s->turn % 2 != side) pthread_cond_wait(&s->cond, &s->cond_mutex);
    s->turn++;
    pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->cond_mutex);
    sem_post(theirs);
    while (sem_wait(mine) != 0) {
    }
    int b = pthread_barrier_wait(&s->barrier);
    if (b == PTHREAD_BARRIER_SERIAL_THREAD) __atomic_fetch_add(&s->serial, 1, __ATOMIC_SEQ_CST);
  }
  sem_t* a = sem_open(s->name, 0);
  CHECK(a != SEM_FAILED, "sem_open: %s", strerror(errno));
  if (a == SEM_FAILED) return NULL;
  for (int i = 0; i < PINGS; i++) {
    if (side) {
      sem_post(a);
    } else {
      while (sem_wait(a) != 0) {
      }
    }
  }
  CHECK(sem_close(a) == 0, "sem_close");
  return NULL;
}

static void work(void) {
  pthread_t t[THREADS + 1];
  for (int i = 0; i < THREADS; i++) t[i] = start_thread(contend, NULL);
  t[THREADS] = start_thread(ping, NULL);
  for (int i = 0; i <= THREADS; i++) join_thread(t[i]);
}

static void* die_with_it(void* unused) {
  (void)unused;
  int e = pthread_mutex_lock(&s->dying);
  _exit(e == 0 ? 0 : 9);
}

/* This program as `role` in another process, with or without what is preloaded here. */
static pid_t start(const char* role, int preloaded) {
  pid_t pid = fork();
  NEED(pid >= 0);
  if (pid == 0) {
    if (!preloaded) unsetenv("LD_PRELOAD");
    execl("/proc/self/exe", "pshared_exec", role, path, (char*)NULL);
    _exit(99);
  }
  return pid;
}
static void wait_for(pid_t pid) {
  int status = 0;
  NEED(waitpid(pid, &status, 0) == pid);
  CHECK(status == 0, "the other process: %#x", (unsigned)status);
}

static pthread_mutex_t robust;
static void* end_with_it(void* unused) {
  CHECK(pthread_mutex_lock(&robust) == 0, "lock");
  return unused;
}

/* A thread that ends with a robust mutex leaves it to the next one, which may make it consistent. */
static void* heirs(void* unused) {
  extern int pthread_mutex_consistent_np(pthread_mutex_t*);
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
  for (int i = 0; i < 3; i++) {
    pthread_mutex_init(&robust, &a);
    CHECK(pthread_mutex_consistent(&robust) == EINVAL, "a mutex that nobody died with is made consistent");
    join_thread(start_thread(end_with_it, NULL));
    int e = i == 1 ? pthread_mutex_trylock(&robust) : pthread_mutex_lock(&robust);
    CHECK(e == EOWNERDEAD, "lock after the owner's end: %d", e);
    if (i == 0) CHECK(pthread_mutex_consistent(&robust) == 0, "pthread_mutex_consistent");
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    if (i == 1) CHECK(pthread_mutex_consistent_np(&robust) == 0, "pthread_mutex_consistent_np");
    CHECK(pthread_mutex_unlock(&robust) == 0, "unlock");
    e = pthread_mutex_lock(&robust);
    CHECK(e == (i == 2 ? ENOTRECOVERABLE : 0), "lock after that: %d", e);
    if (e == 0) pthread_mutex_unlock(&robust);
    pthread_mutex_destroy(&robust);
  }
  for (int preloaded = 0; preloaded < 2; preloaded++) {
    wait_for(start("die", preloaded));
    int e = pthread_mutex_lock(&s->dying);
    CHECK(e == EOWNERDEAD, "lock after a process %s: %d", preloaded ? "of our kind" : "without preload", e);
    if (e == EOWNERDEAD) pthread_mutex_consistent(&s->dying);
    CHECK(pthread_mutex_unlock(&s->dying) == 0, "unlock");
  }
  return unused;
}

static struct shared* map(int flags) {
  int fd = open(path, O_RDWR | flags, 0600);
  NEED(fd >= 0 && ftruncate(fd, sizeof *s) == 0);
  struct shared* p = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  NEED(p != MAP_FAILED);
  close(fd);
  return p;
}

int main(int argc, char** argv) {
  check_begin();
  alarm(55);
  if (argc > 2) {
    snprintf(path, sizeof path, "%s", argv[2]);
    s = map(0);
    side = 1;
    if (!strcmp(argv[1], "die")) join_thread(start_thread(die_with_it, NULL));
    work();
    return check_findings != 0;
  }
  snprintf(path, sizeof path, "/tmp/pshared-%d", getpid());
  s = map(O_CREAT | O_EXCL);
  make_objects();
  snprintf(s->name, sizeof s->name, "/vthr-test-%d", getpid());
  sem_t* named = sem_open(s->name, O_CREAT | O_EXCL, 0600, 0);
  NEED(named != SEM_FAILED);
  CHECK(sem_open(s->name, O_CREAT | O_EXCL, 0600, 0) == SEM_FAILED && errno == EEXIST, "it exists already");
  CHECK(sem_open("/vthr-no-such-semaphore", 0) == SEM_FAILED && errno == ENOENT, "there is none");
  STAGE("two processes");
  pid_t other = start("work", 0);
  work();
  wait_for(other);
  for (int k = 0; k < KINDS; k++)
    CHECK(s->counter[k] == 2 * THREADS * ROUNDS, "%s: counter %ld", kind_names[k], s->counter[k]);
  CHECK(s->written == 2 * THREADS * ROUNDS / 4, "written %ld", s->written);
  CHECK(s->turn == 2 * PINGS && s->serial == PINGS, "turns %d, barriers %d", s->turn, s->serial);
  int value = -1;
  CHECK(sem_getvalue(named, &value) == 0 && value == 0, "value %d", value);
  CHECK(sem_close(named) == 0 && sem_unlink(s->name) == 0, "sem_close, sem_unlink");
  CHECK(sem_unlink(s->name) == -1 && errno == ENOENT, "sem_unlink again");
  STAGE("owners die");
  join_thread(start_thread(heirs, NULL));
  heirs(NULL);
  unlink(path);
  return check_end();
}
