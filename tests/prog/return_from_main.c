/* main returns while 200 threads sleep: the exit code is that of main, output is flushed, nothing waits. */
// run: exit=3
#include "check.h"

static int park[2];
static void* block(void* argument) {
  char c;
  if ((long)argument % 2)
    pause_ms(100000);
  else if (read(park[0], &c, 1) == 1)
    check_say("FAIL: the sleeper got a byte\n");
  return NULL;
}
static void at_exit(void) { puts("last words"); }

int main(void) {
  check_begin();
  atexit(at_exit);
  NEED(pipe(park) == 0);
  for (long i = 0; i < 200; i++) pthread_detach(start_thread(block, (void*)i));
  pause_ms(50);
  printf("OK, ");
  return 3;
}
