/* A library that dlopen_tls.c loads late: thread-local variables of both models, a constructor that takes its time. */
#include <stdlib.h>
#include <time.h>

static __thread long dynamic_value = 77;
static __thread char dynamic_zero[500];
static __thread long fixed_value __attribute__((tls_model("initial-exec"))) = 88;
static __thread long fixed_zero __attribute__((tls_model("initial-exec")));
static int constructed;

__attribute__((constructor)) static void construct(void) {
  struct timespec t = {0, 5000000};
  nanosleep(&t, NULL);
  constructed = 1;
}

/* 0 if all is as it must be in a thread that uses the library for the first time. */
int library_look(void) {
  for (unsigned i = 0; i < sizeof dynamic_zero; i++)
    if (dynamic_zero[i] != 0) return 1;
  return !constructed || dynamic_value != 77 || fixed_value != 88 || fixed_zero != 0;
}

void library_dirty(long v) {
  dynamic_value = v;
  fixed_value = fixed_zero = v + 1;
  for (unsigned i = 0; i < sizeof dynamic_zero; i++) dynamic_zero[i] = (char)(v | 1);
}

/* 0 if what library_dirty wrote in this thread is still there. */
int library_is_dirty(long v) {
  return dynamic_value != v || fixed_value != v + 1 || fixed_zero != v + 1 ||
         dynamic_zero[7] != (char)(v | 1);
}
