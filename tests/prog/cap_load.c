/*
 * How many threads work at once: with the first argument
 *   slow     12 threads each wait 300 ms for a slow dependency (another process)
 *   pool S   50 workers idle for S seconds, then get 50 jobs of 100 ms
 *   mixed    20 threads that compute, sleep and take turns with a mutex
 *   create   10 threads of 200 ms are created as fast as possible, what is refused is counted; then again
 * prints the most that were at work together; without argument only does the work of all four, in short.
 */
#include "check.h"

#include <stdatomic.h>

static atomic_int at_work, most, finished;
static int show;

static void begin_work(void) {
  int n = ++at_work, m = most;
  while (n > m && !atomic_compare_exchange_weak(&most, &m, n)) {
  }
}
static void end_work(void) {
  at_work--;
  finished++;
}
static void report(const char* what, int want) {
  CHECK(finished == want, "%s: %d of %d done", what, (int)finished, want);
  if (show) printf("%s: most %d\n", what, (int)most);
  at_work = most = finished = 0;
}

/* The dependency answers each question, one byte, after a while. It is another process: the cap is not for it. */
static int questions[2], answers[2];
static void* ask_slowly(void* unused) {
  char c;
  begin_work();
  CHECK(write(questions[1], "?", 1) == 1, "question");
  CHECK(read(answers[0], &c, 1) == 1, "answer");
  end_work();
  return unused;
}
static void slow(void) {
  pthread_t t[12];
  NEED(pipe(questions) == 0 && pipe(answers) == 0);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    char text[64];
    ssize_t n;
    close(questions[1]);
    while ((n = read(questions[0], text, sizeof text)) > 0) {
      usleep(show ? 300000 : 20000);
      if (write(answers[1], text, (size_t)n) != n) _exit(1);
    }
    _exit(0);
  }
  for (int i = 0; i < 12; i++) t[i] = start_thread(ask_slowly, NULL);
  for (int i = 0; i < 12; i++) join_thread(t[i]);
  close(questions[1]);
  waitpid(pid, NULL, 0);
  report("slow dependency", 12);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static int jobs, waiting;
static void* pool_worker(void* unused) {
  pthread_mutex_lock(&lock);
  waiting++;
  while (jobs == 0) pthread_cond_wait(&cond, &lock);
  jobs--;
  pthread_mutex_unlock(&lock);
  begin_work();
  usleep(show ? 100000 : 10000);
  end_work();
  return unused;
}
static int all_wait(void) {
  pthread_mutex_lock(&lock);
  int n = waiting;
  pthread_mutex_unlock(&lock);
  return n == 50;
}
static void pool(double seconds) {
  pthread_t t[50];
  waiting = 0;
  double begin = now();
  for (int i = 0; i < 50; i++) t[i] = start_thread(pool_worker, NULL);
  /* with a cap the next ones come in when the first have waited for a second */
  CHECK(({
          int all;
          while (!(all = all_wait()) && now() - begin < 30) pause_ms(5);
          all;
        }),
        "the workers wait");
  while (now() - begin < seconds) pause_ms(10);
  pthread_mutex_lock(&lock);
  jobs = 50;
  pthread_cond_broadcast(&cond);
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < 50; i++) join_thread(t[i]);
  report("pool", 50);
}

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static void* mix(void* argument) {
  unsigned n = (unsigned)(long)argument;
  begin_work();
  for (int i = 0; i < 10; i++) {
    switch ((n + (unsigned)i) % 3) {
      case 0:
        usleep(2000);
        break;
      case 1: {
        double end = now() + 0.002;
        while (now() < end) {
        }
        break;
      }
      case 2:
        pthread_mutex_lock(&turn);
        usleep(200);
        pthread_mutex_unlock(&turn);
        break;
    }
  }
  end_work();
  return NULL;
}
static void mixed(void) {
  pthread_t t[20];
  for (long i = 0; i < 20; i++) t[i] = start_thread(mix, (void*)i);
  for (int i = 0; i < 20; i++) join_thread(t[i]);
  report("mixed", 20);
}

static void* rest(void* unused) {
  begin_work();
  usleep(200000);
  end_work();
  return unused;
}
static void create(void) {
  for (int round = 0; round < 2; round++) {
    pthread_t t[10];
    int made = 0, refused = 0;
    double begin = now();
    for (int i = 0; i < 10; i++) {
      int r = pthread_create(&t[made], NULL, rest, NULL);
      CHECK(r == 0 || r == EAGAIN, "pthread_create: %d", r);
      made += r == 0;
      refused += r == EAGAIN;
    }
    double took = now() - begin;
    for (int i = 0; i < made; i++) join_thread(t[i]);
    if (show) printf("create: made %d refused %d in %.3f s\n", made, refused, took);
    report("create", made);
  }
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  int all = argc < 2;
  check_begin();
  alarm(60);
  show = !all;
  if (all || !strcmp(what, "slow")) slow();
  if (all || !strcmp(what, "pool")) pool(argc > 2 ? atof(argv[2]) : 0.1);
  if (all || !strcmp(what, "mixed")) mixed();
  if (all || !strcmp(what, "create")) create();
  return check_end();
}
