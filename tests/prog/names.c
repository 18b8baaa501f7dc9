/* Thread names: own and others', through pthread_setname_np and prctl, kept across sleeps. */
#include "check.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <sys/prctl.h>

enum { N = 20 };
static sem_t ready, leave;

static void expect(pthread_t t, const char* want) {
  char name[32] = "";
  int r = pthread_getname_np(t, name, sizeof name);
  CHECK(r == 0 && !strcmp(name, want), "pthread_getname_np: %d, '%s', want '%s'", r, name, want);
}

static void expect_mine(const char* want) {
  char name[32] = "";
  expect(pthread_self(), want);
  CHECK(prctl(PR_GET_NAME, name) == 0 && !strcmp(name, want), "PR_GET_NAME: '%s', want '%s'", name, want);
}

static void* named(void* argument) {
  long id = (long)argument;
  char name[16];
  expect_mine("parent-name"); /* a new thread has its creator's name */
  snprintf(name, sizeof name, "worker %ld", id);
  if (id % 2)
    CHECK(pthread_setname_np(pthread_self(), name) == 0, "setname_np");
  else
    CHECK(prctl(PR_SET_NAME, name) == 0, "PR_SET_NAME");
  expect_mine(name);
  for (int i = 0; i < 5; i++) {
    pause_ms(1);
    expect_mine(name);
  }
  sem_post(&ready);
  sem_wait(&leave);
  snprintf(name, sizeof name, "renamed %ld", id);
  expect_mine(name);
  return NULL;
}

static void* limits(void* unused) {
  (void)unused;
  char name[32];
  CHECK(pthread_setname_np(pthread_self(), "fifteen letters") == 0, "15 letters");
  expect_mine("fifteen letters");
  CHECK(pthread_setname_np(pthread_self(), "sixteen letters!") == ERANGE, "16 letters");
  expect_mine("fifteen letters");
  CHECK(pthread_getname_np(pthread_self(), name, 15) == ERANGE, "room for 15");
  CHECK(pthread_getname_np(pthread_self(), name, 16) == 0, "room for 16");
  CHECK(prctl(PR_SET_NAME, "this is cut after fifteen") == 0, "a long name");
  expect_mine("this is cut aft");
  CHECK(pthread_setname_np(pthread_self(), "") == 0, "no name");
  expect_mine("");
  return NULL;
}

int main(void) {
  check_begin();
  pthread_t t[N];
  char name[16];
  sem_init(&ready, 0, 0);
  sem_init(&leave, 0, 0);
  CHECK(pthread_setname_np(pthread_self(), "parent-name") == 0, "name of main");
  expect_mine("parent-name");
  STAGE("names of threads");
  for (long i = 0; i < N; i++) t[i] = start_thread(named, (void*)i);
  for (int i = 0; i < N; i++) sem_wait(&ready);
  for (int i = 0; i < N; i++) {
    snprintf(name, sizeof name, "worker %d", i);
    expect(t[i], name);
    snprintf(name, sizeof name, "renamed %d", i);
    CHECK(pthread_setname_np(t[i], name) == 0, "setname_np of another thread");
    expect(t[i], name);
  }
  for (int i = 0; i < N; i++) sem_post(&leave);
  for (int i = 0; i < N; i++) join_thread(t[i]);
  STAGE("limits");
  join_thread(start_thread(limits, NULL));
  expect_mine("parent-name");
  limits(NULL);
  return check_end();
}
