/*
 * Joining and detaching: what each call says of a thread that runs, has ended, is detached, or is the caller; detaches that
 * meet the end; and a thread that the cap has not let in yet. Results are printed. (Of several joins of one thread, and of two
 * threads that join each other, glibc 2.36 lets all wait; the manual says EINVAL and EDEADLK.)
 */
// run: name=no-cap
// run: name=cap env=VTHR_MAX_CONCURRENCY=1 args=queue
// run: name=block env=VTHR_MAX_CONCURRENCY=2 env=VTHR_ADMISSION=queue args=queue
#include "check.h"

#include <sched.h>
#include <semaphore.h>

static sem_t go;
static volatile int done, passed; /* passed: threads that have got a go */

static void* until_go(void* value) {
  while (sem_wait(&go) != 0) {
  }
  __atomic_fetch_add(&passed, 1, __ATOMIC_SEQ_CST);
  return value;
}
/* For a thread that cannot be joined: the go is for it, not for the next one. */
static void let_go(void) {
  int before = passed;
  sem_post(&go);
  CHECK(EVENTUALLY(passed == before + 1), "a thread that has been let go");
}
static void* at_once(void* value) { return value; }

static void results(const char* who, pthread_t t) {
  struct timespec past = {1, 0}, soon = ms_from_now(CLOCK_REALTIME, 20), soon_too = ms_from_now(CLOCK_MONOTONIC, 20);
  printf("%s: tryjoin %d", who, pthread_tryjoin_np(t, NULL));
  printf(" timedjoin in the past %d", pthread_timedjoin_np(t, NULL, &past));
  printf(" timedjoin %d", pthread_timedjoin_np(t, NULL, &soon));
  printf(" clockjoin %d", pthread_clockjoin_np(t, NULL, CLOCK_MONOTONIC, &soon_too));
  printf(" a clock that does not do %d\n", pthread_clockjoin_np(t, NULL, CLOCK_BOOTTIME, &soon_too));
}

static void* all(void* unused) {
  pthread_t t, j;
  void* end = NULL;
  printf("myself: join %d tryjoin %d\n", pthread_join(pthread_self(), NULL), pthread_tryjoin_np(pthread_self(), NULL));
  t = start_thread(until_go, (void*)1);
  results("running", t);
  sem_post(&go);
  CHECK(join_thread(t) == (void*)1, "join");

  t = start_thread(at_once, (void*)2);
  struct timespec past = {1, 0};
  int r;
  while ((r = pthread_timedjoin_np(t, &end, &past)) == ETIMEDOUT) sched_yield();
  printf("ended: timedjoin in the past %d %p\n", r, end);

  t = start_thread(until_go, NULL);
  printf("detach %d", pthread_detach(t));
  printf(", again %d, join %d\n", pthread_detach(t), pthread_join(t, NULL));
  results("detached", t);
  let_go();
  t = start_thread(at_once, NULL);
  pause_ms(20);
  printf("detach of an ended thread %d\n", pthread_detach(t));
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
  NEED(pthread_create(&t, &a, until_go, NULL) == 0);
  printf("made detached: detach %d, join %d\n", pthread_detach(t), pthread_join(t, NULL));
  let_go();

  t = start_thread(until_go, NULL);
  printf("cancel %d", pthread_cancel(t));
  CHECK(join_thread(t) == PTHREAD_CANCELED, "the result of a cancelled one");
  printf("\n");
  return unused;
}

/* Ends and detaches meet. */
static void* races(void* unused) {
  for (int i = 0; i < 500; i++) {
    pthread_t t = start_thread(at_once, NULL);
    if (i % 3 == 0) sched_yield();
    CHECK(pthread_detach(t) == 0, "detach");
  }
  return unused;
}

static int gate[2];
static void* holder(void* value) {
  char c;
  CHECK(read(gate[0], &c, 1) == 1, "the gate");
  return value;
}
static void* cancellable(void* unused) {
  done++;
  pthread_testcancel();
  done = 1000;
  return unused;
}
static void* finishes(void* value) {
  done++;
  return value;
}
static void* makes_and_joins(void* how) {
  pthread_t t = start_thread(how ? cancellable : finishes, (void*)6);
  if (how) CHECK(pthread_cancel(t) == 0, "cancel before it starts");
  return join_thread(t);
}

/* The first thread keeps its place; the others wait for one, unless there is no cap. */
static void in_the_queue(void) {
  NEED(pipe(gate) == 0);
  pthread_t h = start_thread(holder, (void*)5), h2 = start_thread(holder, (void*)5);
  pthread_t q[4];
  struct timespec until = ms_from_now(CLOCK_REALTIME, 50);
  q[0] = start_thread(until_go, (void*)1);
  printf("queued: tryjoin %d timedjoin %d\n", pthread_tryjoin_np(q[0], NULL), pthread_timedjoin_np(q[0], NULL, &until));
  q[1] = start_thread(cancellable, NULL);
  q[2] = start_thread(until_go, (void*)3);
  q[3] = start_thread(until_go, (void*)4);
  printf("cancel %d detach %d", pthread_cancel(q[2]), pthread_detach(q[3]));
  printf(" join of a detached one %d\n", pthread_join(q[3], NULL));
  for (int i = 0; i < 4; i++) sem_post(&go);
  NEED(write(gate[1], "xx", 2) == 2);
  CHECK(join_thread(h) == (void*)5 && join_thread(h2) == (void*)5, "holders");
  CHECK(join_thread(q[0]) == (void*)1, "queued");
  CHECK(join_thread(q[1]) == NULL, "not cancelled");
  CHECK(join_thread(q[2]) == PTHREAD_CANCELED, "cancelled while it was queued");
  done = 0;
  CHECK(join_thread(start_thread(makes_and_joins, NULL)) == (void*)6 && done == 1, "a thread that joins one in the queue");
  done = 0;
  void* end = join_thread(start_thread(makes_and_joins, (void*)1)); /* unless it was faster */
  CHECK(end == PTHREAD_CANCELED ? done <= 1 : done == 1000, "and that cancels it first: %p %d", end, done);
}

/* The initial thread leaves by pthread_exit: it can be joined, and the process goes on. */
static pthread_t initial;
static void* joins_initial(void* unused) {
  void* end = unused;
  int r = pthread_join(initial, &end);
  _exit(r == 0 && end == (void*)12 ? 5 : 6);
}
static void initial_leaves(void) {
  pid_t pid = fork();
  NEED(pid >= 0);
  if (pid == 0) {
    initial = pthread_self();
    start_thread(joins_initial, NULL);
    pthread_exit((void*)12);
  }
  int status = 0;
  NEED(waitpid(pid, &status, 0) == pid);
  printf("the initial thread leaves: %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

int main(int argc, char** argv) {
  check_begin();
  (void)argv;
  setvbuf(stdout, NULL, _IOLBF, 0);
  sem_init(&go, 0, 0);
  STAGE("the initial thread leaves");
  initial_leaves();
  STAGE("queue");
  if (argc > 1) {
    in_the_queue();
    return check_end();
  }
  STAGE("on the initial thread");
  all(NULL);
  STAGE("on a thread");
  join_thread(start_thread(all, NULL));
  STAGE("races");
  races(NULL);
  join_thread(start_thread(races, NULL));
  STAGE("queue");
  in_the_queue();
  return check_end();
}
