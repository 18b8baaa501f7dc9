/* sleep, usleep, nanosleep, clock_nanosleep: never too short, the right errors, no time lost among many. */
#include "check.h"

#include <sys/time.h>

enum way { SLEEP, USLEEP, NANOSLEEP, MONO_REL, MONO_ABS, REAL_REL, REAL_ABS, BOOT_REL, WAYS };
static const char* const way_name[WAYS] = {
    "sleep",   "usleep", "nanosleep", "monotonic", "monotonic absolute", "realtime", "realtime absolute",
    "boottime"};

static int sleep_by(enum way way, long ms) {
  struct timespec span = ms_span(ms), until;
  switch (way) {
    case SLEEP:
      return (int)sleep((unsigned)((ms + 999) / 1000));
    case USLEEP:
      return usleep((useconds_t)ms * 1000);
    case NANOSLEEP:
      return nanosleep(&span, NULL);
    case MONO_REL:
      return clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL);
    case MONO_ABS:
      until = ms_from_now(CLOCK_MONOTONIC, ms);
      return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    case REAL_REL:
      return clock_nanosleep(CLOCK_REALTIME, 0, &span, NULL);
    case REAL_ABS:
      until = ms_from_now(CLOCK_REALTIME, ms);
      return clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, NULL);
    case BOOT_REL:
      return clock_nanosleep(CLOCK_BOOTTIME, 0, &span, NULL);
    default:
      return -1;
  }
}

static void* sleeper(void* argument) {
  enum way way = (enum way)(long)argument;
  long ms = way == SLEEP ? 1000 : 60;
  errno = 77;
  double begin = now();
  int r = sleep_by(way, ms);
  double took = now() - begin;
  CHECK(r == 0, "%s returned %d", way_name[way], r);
  CHECK(errno == 77, "%s changed errno to %d without failing", way_name[way], errno);
  /* realtime may be stepped by a few ms while we sleep */
  CHECK(took >= (double)ms / 1000 - 0.005, "%s of %ld ms took %.6f s", way_name[way], ms, took);
  CHECK(took < 10, "%s of %ld ms took %.3f s", way_name[way], ms, took);
  return NULL;
}

static void* errors(void* argument) {
  (void)argument;
  struct timespec bad = {0, 1000000000L}, negative = {-1, 0}, negative_ns = {0, -1}, past, zero = {0, 0};
  const struct timespec* invalid[] = {&bad, &negative, &negative_ns};
  for (int i = 0; i < COUNT_OF(invalid); i++) {
    errno = 0;
    CHECK(nanosleep(invalid[i], NULL) == -1 && errno == EINVAL, "nanosleep %d: errno %d", i, errno);
    errno = 0;
    int r = clock_nanosleep(CLOCK_MONOTONIC, 0, invalid[i], NULL);
    CHECK(r == EINVAL && errno == 0, "clock_nanosleep %d: %d, errno %d", i, r, errno);
  }
  CHECK(clock_nanosleep(12345, 0, &zero, NULL) == EINVAL, "clock_nanosleep on no clock");
  CHECK(clock_nanosleep(CLOCK_THREAD_CPUTIME_ID, 0, &zero, NULL) == EINVAL,
        "clock_nanosleep on the CPU clock");
  past = ms_from_now(CLOCK_MONOTONIC, -5000);
  double begin = now();
  CHECK(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &past, NULL) == 0, "absolute time that is over");
  past.tv_sec = past.tv_nsec = 0;
  CHECK(clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &past, NULL) == 0, "absolute time zero");
  CHECK(nanosleep(&zero, NULL) == 0, "nanosleep of nothing");
  CHECK(usleep(0) == 0 && sleep(0) == 0, "usleep and sleep of nothing");
  CHECK(now() - begin < 5, "sleeps of nothing took %.3f s", now() - begin);
  errno = 0;
  CHECK(nanosleep(wild_address(), NULL) == -1 && errno == EFAULT, "nanosleep of a bad address: %d", errno);
  return NULL;
}

/* The remaining time is written only when a sleep is cut short. */
static void* remainder_untouched(void* argument) {
  (void)argument;
  struct timespec span = ms_span(5), left = {123, 456};
  CHECK(nanosleep(&span, &left) == 0 && left.tv_sec == 123 && left.tv_nsec == 456, "remainder was written");
  return NULL;
}

int main(void) {
  check_begin();
  pthread_t t[WAYS];
  STAGE("each way, in threads at once");
  for (long way = 0; way < WAYS; way++) t[way] = start_thread(sleeper, (void*)way);
  for (int way = 0; way < WAYS; way++) join_thread(t[way]);
  STAGE("each way, in main");
  for (long way = USLEEP; way < WAYS; way++) sleeper((void*)way);
  STAGE("errors");
  join_thread(start_thread(errors, NULL));
  errors(NULL);
  join_thread(start_thread(remainder_untouched, NULL));
  STAGE("1,000 sleepers at once");
  static pthread_t many[1000];
  for (int i = 0; i < COUNT_OF(many); i++)
    many[i] = start_thread(sleeper, (void*)(long)(USLEEP + i % (WAYS - 1)));
  for (int i = 0; i < COUNT_OF(many); i++) join_thread(many[i]);
  return check_end();
}
