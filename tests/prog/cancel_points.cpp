/*
 * Every cancellation point that can block, in four ways, each on a thread of its own:
 *   blocked   the thread waits in it and is cancelled: destructors and cleanup handlers run, it ends with PTHREAD_CANCELED
 *   disabled  the same with cancellation disabled: nothing happens until the wait is over; its result is a normal one
 *   pending   cancelled before the call, which need not wait: it is a cancellation point all the same, and takes no data
 *   others    functions that are no cancellation points do not act
 * What the pending ones do is printed, to be compared with a native run.
 */
// run: timeout=60
#include "cancel_points.h"

enum { N = COUNT_OF(points) };

static void cleanup(void* p) { ((Try*)p)->cleaned++; }
struct Object {
  Try* t;
  ~Object() { t->destroyed++; }
};

static void* run(void* p) {
  Try* t = (Try*)p;
  Object object{t};
  int old;
  pthread_cleanup_push(cleanup, t);
  pending_usr1(t);
  if (t->way != kBlocked) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
  t->inside = 1;
  if (t->way == kPending) {
    while (t->flag < 2) pause_ms(1);  // until it is cancelled
    t->flag = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
  }
  t->result = t->point->call(t);
  t->returned = 1;
  if (t->way == kDisabled) pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
  pthread_testcancel();
  t->returned = 2;
  pthread_cleanup_pop(0);
  return NULL;
}

static void finish(Try* t) {
  void* r = join_thread(t->thread);
  const char* name = t->point->name;
  CHECK(r == PTHREAD_CANCELED, "%s: the thread ended with %p", name, r);
  CHECK(t->cleaned == 1, "%s: cleanup ran %d times", name, t->cleaned);
  CHECK(t->destroyed == 1, "%s: destructor ran %d times", name, t->destroyed);
  if (t->way == kBlocked) CHECK(t->returned == 0, "%s returned %ld", name, t->result);
  if (t->way == kDisabled)
    CHECK(t->returned == 1 && t->result == t->point->want, "%s: returned %d, result %ld", name, t->returned, t->result);
  if (t->way == kPending) {
    char c;
    printf("%s: %s\n", name, t->returned ? "goes on" : "cancelled");
    if (t->point->release == put && t->point->want == 1 && t->point->setup == a_pipe && !t->returned)
      CHECK(read(t->fd[0], &c, 1) == 1, "%s: the byte is lost", name);
  }
  if (t->joined) {
    sem_post(&t->release);
    CHECK(pthread_join(t->joined, NULL) == 0, "%s: the joined thread can be joined again", name);
  }
  if (t->child != 0) {
    kill(t->child, SIGKILL);
    waitpid(t->child, NULL, 0);
  }
  if (t->path[0]) unlink(t->path);
  if (t->point->setup == a_msg_queue || t->point->setup == a_full_msg_queue) msgctl(t->queue, IPC_RMID, NULL);
  for (int fd : {t->fd[0], t->fd[1], t->other})
    if (fd >= 0) close(fd);
}

static void all(Way way, const char* stage) {
  STAGE(stage);
  Try* tries = new Try[N]{};
  for (int i = 0; i < N; i++) {
    Try* t = &tries[i];
    t->point = &points[i];
    t->way = way;
    t->point->setup(t);
    if (way == kPending) {
      t->thread = 0;
      t->point->release(t);
    }
  }
  for (int i = 0; i < N; i++) tries[i].thread = start_thread(run, &tries[i]);
  for (int i = 0; i < N; i++) CHECK(EVENTUALLY(tries[i].inside), "%s did not start", points[i].name);
  pause_ms(30);  // most are waiting by now; the others will meet it at the entry
  for (int i = 0; i < N; i++) CHECK(pthread_cancel(tries[i].thread) == 0, "pthread_cancel");
  if (way == kPending)
    for (int i = 0; i < N; i++) tries[i].flag = 2;
  if (way == kDisabled) {
    pause_ms(30);
    for (int i = 0; i < N; i++) {
      if (points[i].setup != nothing) CHECK(!tries[i].returned, "%s ended early, %ld", points[i].name, tries[i].result);
      points[i].release(&tries[i]);
    }
  }
  for (int i = 0; i < N; i++) finish(&tries[i]);
  delete[] tries;
}

// ---- no cancellation points ----
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t sem;
static volatile int steps;
static void* no_points(void*) {
  int old;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
  pthread_cancel(pthread_self());
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
  steps = 1;
  pthread_mutex_lock(&mutex);  // main has it for a while
  pthread_mutex_unlock(&mutex);
  pthread_rwlock_wrlock(&rwlock);
  pthread_rwlock_unlock(&rwlock);
  pthread_barrier_wait(&barrier);
  sem_trywait(&sem);
  sem_post(&sem);
  sched_yield();
  pthread_mutex_trylock(&mutex);
  steps = 2;
  pthread_testcancel();
  steps = 3;
  return NULL;
}

int main() {
  check_begin();
  alarm(55);
  setvbuf(stdout, NULL, _IOLBF, 0);
  signal(SIGUSR1, on_usr1);
  all(kBlocked, "blocked");
  all(kDisabled, "disabled");
  all(kPending, "pending");
  STAGE("no cancellation points");
  pthread_barrier_init(&barrier, NULL, 2);
  sem_init(&sem, 0, 0);
  pthread_mutex_lock(&mutex);
  pthread_rwlock_rdlock(&rwlock);
  pthread_t t = start_thread(no_points, NULL);
  EVENTUALLY(steps == 1);
  pause_ms(20);
  pthread_mutex_unlock(&mutex);
  pause_ms(10);
  pthread_rwlock_unlock(&rwlock);
  pthread_barrier_wait(&barrier);
  CHECK(join_thread(t) == PTHREAD_CANCELED && steps == 2, "steps %d", steps);
  return check_end();
}
