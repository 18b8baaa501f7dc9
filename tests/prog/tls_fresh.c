/*
 * A new thread finds its thread-local state as the language promises, also when the memory was used by a thread
 * before: initialised and zero variables, specific values, errno, the locale, the resolver, the FP environment.
 */
// cflags: -lm
#include "check.h"

#include <ctype.h>
#include <dlfcn.h>
#include <fenv.h>
#include <locale.h>
#include <netdb.h>
#include <resolv.h>
#include <sched.h>

enum { WAVES = 20, N = 24 };
static __thread long with_value = 4711;
static __thread long zero;
static __thread char big_zero[3000];
static __thread struct {
  int a;
  const char* text;
  double d;
} record = {7, "fresh", 0.5};
static _Thread_local int aligned __attribute__((aligned(64))) = 3;
static __thread char* points_to_own = NULL;
static pthread_key_t key;

__attribute__((noinline)) static void examine(void) {
  CHECK(errno == 0, "errno of a new thread is %d", errno);
  CHECK(with_value == 4711, "initialised variable is %ld", with_value);
  CHECK(zero == 0, "zero variable is %ld", zero);
  for (size_t i = 0; i < sizeof big_zero; i++)
    if (big_zero[i] != 0) {
      CHECK(0, "byte %zu of a zero array is %d", i, big_zero[i]);
      break;
    }
  CHECK(record.a == 7 && record.d == 0.5 && !strcmp(record.text, "fresh"), "initialised record");
  CHECK(aligned == 3 && (uintptr_t)&aligned % 64 == 0, "aligned variable: %d at %p", aligned,
        (void*)&aligned);
  CHECK(points_to_own == NULL, "pointer variable");
  CHECK(pthread_getspecific(key) == NULL, "specific value");
  CHECK(uselocale(NULL) == LC_GLOBAL_LOCALE, "uselocale of a new thread is not the global locale");
  CHECK(isalpha('x') && !isalpha('1') && toupper('q') == 'Q', "ctype tables");
  CHECK(dlerror() == NULL, "dlerror of a new thread says something");
  CHECK(fegetround() == FE_TONEAREST, "rounding mode %d", fegetround());
  CHECK(fetestexcept(FE_DIVBYZERO) == 0, "the flag of a division by zero is set");
  CHECK(h_errno == 0, "h_errno %d", h_errno);
  sigset_t mask;
  CHECK(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0 && !sigismember(&mask, SIGUSR2), "SIGUSR2 is blocked");
  int state = -1, type = -1;
  CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state) == 0 && state == PTHREAD_CANCEL_ENABLE,
        "cancel state %d", state);
  CHECK(pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type) == 0 && type == PTHREAD_CANCEL_DEFERRED,
        "cancel type %d", type);
}

__attribute__((noinline)) static void dirty(long id) {
  with_value = zero = id;
  memset(big_zero, (int)id | 1, sizeof big_zero);
  record.a = (int)id;
  record.text = "dirty";
  record.d = -1;
  aligned = (int)id;
  points_to_own = big_zero;
  pthread_setspecific(key, (void*)(id + 1));
  locale_t own = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  NEED(own != (locale_t)0);
  uselocale(own);
  freelocale(own); /* nobody may use it after this thread, which calls no locale function any more */
  CHECK(dlopen("/nonexistent/library.so", RTLD_NOW) == NULL, "dlopen of nothing");
  fesetround(FE_DOWNWARD);
  feraiseexcept(FE_DIVBYZERO);
  h_errno = TRY_AGAIN;
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &mask, NULL);
  errno = 42;
}

static void* visit(void* argument) {
  examine();
  dirty((long)argument);
  if ((long)argument % 3 == 0) sched_yield();
  return &big_zero; /* only the address is looked at */
}

static void forget(void* value) { (void)value; }

int main(void) {
  check_begin();
  NEED(pthread_key_create(&key, forget) == 0);
  STAGE("one after the other");
  for (long i = 0; i < 100; i++) join_thread(start_thread(visit, (void*)i));
  STAGE("in waves");
  for (int w = 0; w < WAVES; w++) {
    pthread_t t[N];
    for (long i = 0; i < N; i++) t[i] = start_thread(visit, (void*)i);
    for (int i = 0; i < N; i++) join_thread(t[i]);
  }
  STAGE("main");
  CHECK(with_value == 4711 && zero == 0 && big_zero[0] == 0 && aligned == 3, "main's variables changed");
  CHECK(uselocale(NULL) == LC_GLOBAL_LOCALE && fegetround() == FE_TONEAREST,
        "main's locale or rounding changed");
  return check_end();
}
