/*
 * check.h: what the programs in tests/prog and tests/stress share.
 *
 * A program prints "OK" and returns 0, or one FAIL line for each finding and returns 1. It says nothing else,
 * so that its output can be compared byte for byte between a native and a preloaded run. Times are only
 * bounded from below, or by a limit so generous that only a hang reaches it.
 */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT_OF(a) ((int)(sizeof(a) / sizeof((a)[0])))

static int check_findings;
static const char* volatile check_stage = "start";

/* Prints one finding; after 20 only counts them. */
__attribute__((format(printf, 2, 3))) static inline void check_fail(int line, const char* format, ...) {
  if (__atomic_fetch_add(&check_findings, 1, __ATOMIC_RELAXED) >= 20) return;
  char text[400];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  printf("FAIL line %d (%s): %s\n", line, check_stage, text);
  fflush(stdout);
}

/* A finding if `condition` is false; the rest is a printf format and its arguments, evaluated only then. */
#define CHECK(condition, ...)                            \
  do {                                                   \
    if (!(condition)) check_fail(__LINE__, __VA_ARGS__); \
  } while (0)

/* A step without which the rest of the program makes no sense. */
#define NEED(condition)                                                          \
  do {                                                                           \
    if (!(condition)) {                                                          \
      check_fail(__LINE__, "cannot go on: %s: %s", #condition, strerror(errno)); \
      _exit(1);                                                                  \
    }                                                                            \
  } while (0)

/* Names the part of the program that runs now, for findings and for the hang guard. */
#define STAGE(name) (check_stage = (name))

static inline void check_say(const char* text) {
  if (write(1, text, strlen(text)) < 0) _exit(1);
}

static void check_hang(int signal_number) {
  (void)signal_number;
  check_say("FAIL: hang in ");
  check_say(check_stage);
  check_say("\n");
  _exit(1);
}

/* First call of main: from here on a hang ends the program and says in which stage. */
static inline void check_begin(void) {
  signal(SIGALRM, check_hang);
  alarm(25);
}

/* Last call of main: return check_end(). */
static inline int check_end(void) {
  if (check_findings == 0) puts("OK");
  fflush(stdout);
  return check_findings != 0;
}

static inline double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline struct timespec ms_span(long ms) {
  struct timespec t;
  t.tv_sec = ms / 1000;
  t.tv_nsec = ms % 1000 * 1000000L;
  return t;
}

/* The time `ms` from now (negative: ago) on `clock`. */
static inline struct timespec ms_from_now(clockid_t clock, long ms) {
  struct timespec t;
  clock_gettime(clock, &t);
  t.tv_sec += ms / 1000;
  t.tv_nsec += ms % 1000 * 1000000L;
  if (t.tv_nsec >= 1000000000L) {
    t.tv_sec++;
    t.tv_nsec -= 1000000000L;
  } else if (t.tv_nsec < 0) {
    t.tv_sec--;
    t.tv_nsec += 1000000000L;
  }
  return t;
}

/* Sleeps the whole time, also when signals arrive. */
static inline void pause_ms(long ms) {
  struct timespec left = ms_span(ms);
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

/* Waits up to 15 s until `condition` holds; its value says whether it does. */
#define EVENTUALLY(condition)                                                        \
  __extension__({                                                                    \
    double eventually_end = now() + 15;                                              \
    int eventually_met;                                                              \
    while (!(eventually_met = !!(condition)) && now() < eventually_end) pause_ms(1); \
    eventually_met;                                                                  \
  })

/* An address that no process has mapped, of which the compiler knows nothing. */
static inline void* wild_address(void) {
  static void* volatile address = (void*)16;
  return address;
}

static inline pthread_t start_thread(void* (*body)(void*), void* argument) {
  pthread_t t;
  int error = pthread_create(&t, NULL, body, argument);
  if (error != 0) {
    check_fail(__LINE__, "pthread_create: %s", strerror(error));
    _exit(1);
  }
  return t;
}

static inline void* join_thread(pthread_t t) {
  void* result = NULL;
  int error = pthread_join(t, &result);
  CHECK(error == 0, "pthread_join: %s", strerror(error));
  return result;
}

/*
 * Runs `body` in a forked child that ends with the value it returns (by _exit), and returns the child's wait
 * status. A hanging child is killed by SIGALRM. Findings of the child count for the parent through the exit
 * code: end the body with `return check_findings != 0` or with a code of its own.
 */
static inline int in_child(int (*body)(void*), void* argument) {
  int status = -1;
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    signal(SIGALRM, SIG_DFL);
    alarm(20);
    _exit(body(argument));
  }
  if (child < 0)
    check_fail(__LINE__, "fork: %s", strerror(errno));
  else
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  return status;
}

static inline int exited_with(int status, int code) {
  return WIFEXITED(status) && WEXITSTATUS(status) == code;
}
static inline int killed_by(int status, int signal_number) {
  return WIFSIGNALED(status) && WTERMSIG(status) == signal_number;
}

#endif
