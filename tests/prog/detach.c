/* Detached threads: by attribute, by pthread_detach before and after their end; joins of them are refused. */
#include "check.h"

#include <stdatomic.h>

static atomic_int ran, hold;

static void* count(void* unused) {
  (void)unused;
  ran++;
  return NULL;
}
static void* wait_then_count(void* unused) {
  (void)unused;
  while (hold) pause_ms(1);
  ran++;
  return NULL;
}
static void* detach_myself(void* unused) {
  (void)unused;
  CHECK(pthread_detach(pthread_self()) == 0, "a thread detaches itself");
  pause_ms(1);
  ran++;
  return NULL;
}

static pthread_t detached(void* (*body)(void*)) {
  pthread_attr_t attr;
  pthread_t t;
  int state = -1;
  pthread_attr_init(&attr);
  CHECK(pthread_attr_getdetachstate(&attr, &state) == 0 && state == PTHREAD_CREATE_JOINABLE, "default %d",
        state);
  NEED(pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0);
  NEED(pthread_create(&t, &attr, body, NULL) == 0);
  pthread_attr_destroy(&attr);
  return t;
}

static void all_ran(int n) {
  CHECK(EVENTUALLY(ran == n), "%d of %d detached threads ran", (int)ran, n);
  ran = 0;
}

static void* make_detached(void* unused) {
  for (int i = 0; i < 100; i++) pthread_detach(start_thread(count, unused));
  return NULL;
}

int main(void) {
  check_begin();
  STAGE("detached by attribute");
  for (int i = 0; i < 500; i++) detached(count);
  all_ran(500);
  STAGE("detached by themselves");
  for (int i = 0; i < 200; i++) start_thread(detach_myself, NULL);
  all_ran(200);
  STAGE("detached before and after their end");
  pthread_t t[100];
  hold = 1;
  for (int i = 0; i < 50; i++) t[i] = start_thread(wait_then_count, NULL);
  for (int i = 0; i < 50; i++) CHECK(pthread_detach(t[i]) == 0, "detach of a running thread");
  hold = 0;
  all_ran(50);
  for (int i = 0; i < 100; i++) t[i] = start_thread(count, NULL);
  all_ran(100);
  pause_ms(30);
  for (int i = 0; i < 100; i++) CHECK(pthread_detach(t[i]) == 0, "detach of a thread that ended");
  STAGE("a detached thread is not joined");
  hold = 1;
  pthread_t other = detached(wait_then_count);
  CHECK(pthread_join(other, NULL) == EINVAL, "join of a detached thread");
  CHECK(pthread_detach(other) == EINVAL, "detach of a detached thread");
  pthread_attr_t attr;
  int state = -1;
  CHECK(pthread_getattr_np(other, &attr) == 0, "getattr_np");
  CHECK(pthread_attr_getdetachstate(&attr, &state) == 0 && state == PTHREAD_CREATE_DETACHED, "state %d",
        state);
  pthread_attr_destroy(&attr);
  hold = 0;
  all_ran(1);
  CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setdetachstate(&attr, 77) == EINVAL,
        "a state that is none");
  pthread_attr_destroy(&attr);
  STAGE("detached by threads");
  for (int i = 0; i < 10; i++) t[i] = start_thread(make_detached, NULL);
  for (int i = 0; i < 10; i++) join_thread(t[i]);
  all_ran(1000);
  STAGE("main ends while detached threads sleep");
  hold = 1;
  for (int i = 0; i < 50; i++) detached(wait_then_count);
  return check_end();
}
