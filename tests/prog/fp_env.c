/* The floating-point environment: inherited from the creator, then a thread's own across everything that blocks. */
// cflags: -lm -frounding-math
#include "check.h"

#include <fenv.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <xmmintrin.h>

enum { N = 16 };
static const int modes[4] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned short x87_control(void) {
  unsigned short word;
  __asm__ volatile("fnstcw %0" : "=m"(word));
  return word;
}

static void* nothing(void* argument) { return argument; }

static void* compute(void* argument) {
  int mode = modes[(long)argument % 4];
  CHECK(fegetround() == FE_UPWARD, "the creator's rounding mode is not inherited: %d", fegetround());
  fesetround(mode);
  unsigned short control = x87_control();
  unsigned sse = _mm_getcsr() & 0xFFC0; /* without the sticky flags */
  volatile double one = 1, three = 3;
  double third = one / three;
  for (int round = 0; round < 20; round++) {
    switch (round % 5) {
      case 0:
        pause_ms(1);
        break;
      case 1:
        sched_yield();
        break;
      case 2:
        poll(NULL, 0, 1);
        break;
      case 3:
        pthread_mutex_lock(&lock);
        usleep(200);
        pthread_mutex_unlock(&lock);
        break;
      case 4:
        join_thread(start_thread(nothing, NULL));
        break;
    }
    CHECK(fegetround() == mode, "rounding mode %d became %d", mode, fegetround());
    CHECK(x87_control() == control, "x87 control word %x became %x", control, x87_control());
    CHECK((_mm_getcsr() & 0xFFC0) == sse, "MXCSR %x became %x", sse, _mm_getcsr() & 0xFFC0);
    CHECK(one / three == third, "the quotient changed");
  }
  return NULL;
}

int main(void) {
  check_begin();
  STAGE("rounding modes");
  pthread_t t[N];
  fesetround(FE_UPWARD);
  for (long i = 0; i < N; i++) t[i] = start_thread(compute, (void*)i);
  for (int i = 0; i < N; i++) join_thread(t[i]);
  CHECK(fegetround() == FE_UPWARD, "main's rounding mode became %d", fegetround());
  return check_end();
}
