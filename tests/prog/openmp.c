/* OpenMP: teams larger than the machine, whose library waits by system calls of its own; nested, in several threads at once. */
// cflags: -fopenmp
// run: timeout=60
#include "check.h"

#include <omp.h>

static long sum_of(int threads, long n) {
  long sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(dynamic, 16)
  for (long i = 0; i < n; i++) sum += i * i % 7;
  return sum;
}
static long plain_sum(long n) {
  long sum = 0;
  for (long i = 0; i < n; i++) sum += i * i % 7;
  return sum;
}

static void barriers(int threads, int rounds) {
  int counts[64] = {0}, bad = 0;
#pragma omp parallel num_threads(threads)
  {
    int me = omp_get_thread_num(), team = omp_get_num_threads();
    for (int r = 1; r <= rounds; r++) {
      counts[me] = r;
#pragma omp barrier
      for (int i = 0; i < team; i++)
        if (counts[i] < r) {
#pragma omp atomic
          bad++;
        }
#pragma omp barrier
    }
  }
  CHECK(bad == 0, "%d saw a barrier that did not hold", bad);
}

static void locks(int threads) {
  long inside = 0;
#pragma omp parallel num_threads(threads)
  for (int i = 0; i < 200; i++) {
#pragma omp critical
    {
      long v = inside;
      if (i % 50 == 0) usleep(100);
      inside = v + 1;
    }
  }
  CHECK(inside == 200L * threads, "%ld inside, want %ld", inside, 200L * threads);
}

static long tasks(int depth) {
  if (depth < 2) return depth;
  long a, b;
#pragma omp task shared(a) firstprivate(depth)
  a = tasks(depth - 1);
#pragma omp task shared(b) firstprivate(depth)
  b = tasks(depth - 2);
#pragma omp taskwait
  return a + b;
}

static void* everything(void* argument) {
  long n = 4000, want = plain_sum(n);
  for (int threads = 1; threads <= 12; threads += 5) CHECK(sum_of(threads, n) == want, "another sum with %d threads", threads);
  barriers(6, 10);
  locks(5);
  long result = 0;
#pragma omp parallel num_threads(4)
#pragma omp single
  result = tasks(12);
  CHECK(result == 144, "tasks: %ld", result);
  return argument;
}

int main(void) {
  check_begin();
  alarm(50);
  pthread_t t[4];
  everything(NULL);
  for (int i = 0; i < COUNT_OF(t); i++) t[i] = start_thread(everything, NULL);
  for (int i = 0; i < COUNT_OF(t); i++) join_thread(t[i]);
  return check_end();
}
