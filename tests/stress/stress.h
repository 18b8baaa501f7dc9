/* stress.h: what the programs in tests/stress share. STRESS=N in the environment makes them N times as long. */
#ifndef STRESS_H
#define STRESS_H

#include "../prog/net.h"

static inline int stress_scale(void) {
  const char* text = getenv("STRESS");
  int scale = text ? atoi(text) : 1;
  return scale > 0 ? scale : 1;
}

/* A number of iterations that is `n` by default. */
static inline int scaled(int n) { return n * stress_scale(); }

/* In place of check_begin: the hang guard grows with the length. */
static inline void stress_begin(void) {
  check_begin();
  signal(SIGPIPE, SIG_IGN);
  alarm((unsigned)(60 + 25 * stress_scale()));
}

/* Numbers that look random, from a state of the caller's own. */
static inline unsigned next_random(unsigned* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

/* Sleeps between 0 and `most` microseconds. */
static inline void nap(unsigned* state, unsigned most) { usleep(next_random(state) % (most + 1)); }

#endif
