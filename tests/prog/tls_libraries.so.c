/* A library of which tls_libraries.c loads copies: thread-local variables, destructors at thread end, a key, fork handlers. */
#include <pthread.h>
#include <string.h>

extern int __cxa_thread_atexit_impl(void (*)(void*), void*, void*);
extern void* __dso_handle __attribute__((visibility("hidden")));

static __thread long number = 1234;
#ifdef LARGE /* tls_libraries_large.so.c */
static __thread char room[6000];
static __thread long fast = 5678;
#else /* all of it in the static area, of which there is little */
static __thread char room[8];
static __thread long fast __attribute__((tls_model("initial-exec"))) = 5678;
#endif
static __thread struct {
  void (*call)(long);
  long argument;
} at_end;
static pthread_key_t key;
static int has_key;

/* 0: as a thread that never used the library finds it. */
int library_fresh(void) {
  for (unsigned i = 0; i < sizeof room; i += 97)
    if (room[i]) return 0;
  return number == 1234 && fast == 5678 && !at_end.call;
}
void library_write(long v) {
  number = fast = v;
  memset(room, (int)(v % 100) + 1, sizeof room);
}
int library_holds(long v) {
  for (unsigned i = 0; i < sizeof room; i += 97)
    if (room[i] != (char)(v % 100 + 1)) return 0;
  return number == v && fast == v;
}

static void destroy(void* unused) {
  (void)unused;
  if (at_end.call) at_end.call(at_end.argument);
}
void library_at_thread_end(void (*call)(long), long argument) {
  at_end.call = call;
  at_end.argument = argument;
  __cxa_thread_atexit_impl(destroy, &at_end, &__dso_handle);
}

static void (*key_call)(long);
static void key_destroy(void* value) { key_call((long)value); }
void library_key(void (*call)(long)) {
  key_call = call;
  has_key = pthread_key_create(&key, key_destroy) == 0;
}
void library_key_value(long value) { pthread_setspecific(key, (void*)value); }

static void (*fork_call)(long);
static void before(void) { fork_call(0); }
static void parent(void) { fork_call(1); }
static void child(void) { fork_call(2); }
int library_at_fork(void (*call)(long)) {
  fork_call = call;
  return pthread_atfork(before, parent, child);
}

__attribute__((destructor)) static void unload(void) {
  if (has_key) pthread_key_delete(key);
}
