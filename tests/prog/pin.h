/* pin.h: a sleep in the kernel that no wrapper of a C library function sees, and threads that must go on meanwhile. */
#ifndef PIN_H
#define PIN_H

#include "check.h"

#include <stdatomic.h>
#include <sys/syscall.h>

/* nanosleep by a system call instruction of the program's own. */
__attribute__((noinline, unused)) static void inline_sleep(long ms) {
  struct timespec span = ms_span(ms);
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"((long)SYS_nanosleep), "D"(&span), "S"(0L)
                   : "rcx", "r11", "memory");
  CHECK(result == 0, "nanosleep by instruction: %ld", result);
}

enum { TICKERS = 20 };
static atomic_int tickers_stop;
static atomic_long ticker_count[TICKERS];
static pthread_t ticker_id[TICKERS];
static long ticks_before[TICKERS];

static void* tick(void* argument) {
  while (!tickers_stop) {
    usleep(1000);
    ticker_count[(long)argument]++;
  }
  return NULL;
}

static inline void start_tickers(void) {
  for (long i = 0; i < TICKERS; i++) ticker_id[i] = start_thread(tick, (void*)i);
  for (int i = 0; i < TICKERS; i++) CHECK(EVENTUALLY(ticker_count[i] > 0), "ticker %d does not start", i);
}

/* To be called right before and right after a pin: every ticker must have made progress in between. */
static inline void before_pin(void) {
  for (int i = 0; i < TICKERS; i++) ticks_before[i] = ticker_count[i];
}
static inline void after_pin(void) {
  for (int i = 0; i < TICKERS; i++)
    CHECK(ticker_count[i] >= ticks_before[i] + 2, "ticker %d made %ld ticks during the pin", i,
          ticker_count[i] - ticks_before[i]);
}

/*
 * With the argument "linger": says when the pin ended (on the monotonic clock) and stays for a while, so that somebody
 * can see what is reported before the program ends.
 */
static inline void linger(int argc, char** argv) {
  if (argc > 1 && !strcmp(argv[1], "linger")) {
    printf("pin ended at %.6f\n", now());
    fflush(stdout);
    pause_ms(2500);
  }
}

static inline void stop_tickers(void) {
  tickers_stop = 1;
  for (int i = 0; i < TICKERS; i++) join_thread(ticker_id[i]);
}

#endif
