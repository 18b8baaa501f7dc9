/* Does as many 1 ms sleeps by a system call instruction as the first argument says (20), beside ordinary waits. */
#include "pin.h"

enum { THREADS = 10 };
static int sleeps = 20;

static void* sleeper(void* argument) {
  int p[2];
  char c;
  NEED(pipe(p) == 0);
  for (int i = 0; i < sleeps / THREADS; i++) inline_sleep(1);
  for (int i = 0; i < 50; i++) { /* what parks is not counted */
    usleep(1000);
    CHECK(write(p[1], "x", 1) == 1 && read(p[0], &c, 1) == 1, "pipe");
  }
  close(p[0]);
  close(p[1]);
  return argument;
}

int main(int argc, char** argv) {
  check_begin();
  pthread_t t[THREADS];
  if (argc > 1) sleeps = atoi(argv[1]);
  STAGE("inline sleeps");
  for (int i = 0; i < THREADS; i++) t[i] = start_thread(sleeper, NULL);
  for (int i = 0; i < THREADS; i++) join_thread(t[i]);
  return check_end();
}
