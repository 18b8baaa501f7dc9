/*
 * Names that only old binaries and compilers' output use, called on a thread: the __pthread aliases of locks and keys, the
 * old cleanup functions, and those that pthread_cleanup_push expands to in C.
 */
#include "check.h"

#include <dlfcn.h>
#include <sys/wait.h>

static void* old(const char* name) {
  void* p = dlvsym(RTLD_DEFAULT, name, "GLIBC_2.2.5");
  if (p == NULL) p = dlsym(RTLD_DEFAULT, name);
  CHECK(p != NULL, "no %s", name);
  if (p == NULL) _exit(1);
  return p;
}
#define OLD(type, name) ((type)old(#name))
typedef int (*OnMutex)(pthread_mutex_t*);
typedef int (*OnRwlock)(pthread_rwlock_t*);
typedef int (*OnAttr)(pthread_mutexattr_t*);

static pthread_mutex_t shared = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwshared = PTHREAD_RWLOCK_INITIALIZER;
static volatile int inside, counter, once_runs, cleanups, destroyed;

static void locks(void) {
  pthread_mutex_t m;
  pthread_mutexattr_t a;
  CHECK(OLD(OnAttr, __pthread_mutexattr_init)(&a) == 0, "__pthread_mutexattr_init");
  CHECK(OLD(int (*)(pthread_mutexattr_t*, int), __pthread_mutexattr_settype)(&a, PTHREAD_MUTEX_RECURSIVE) == 0, "settype");
  CHECK(OLD(int (*)(pthread_mutex_t*, const pthread_mutexattr_t*), __pthread_mutex_init)(&m, &a) == 0, "__pthread_mutex_init");
  CHECK(OLD(OnAttr, __pthread_mutexattr_destroy)(&a) == 0, "__pthread_mutexattr_destroy");
  CHECK(OLD(OnMutex, __pthread_mutex_lock)(&m) == 0 && OLD(OnMutex, __pthread_mutex_trylock)(&m) == 0, "lock, trylock");
  CHECK(OLD(OnMutex, __pthread_mutex_unlock)(&m) == 0 && OLD(OnMutex, __pthread_mutex_unlock)(&m) == 0, "unlock");
  CHECK(OLD(OnMutex, __pthread_mutex_unlock)(&m) == EPERM, "unlock once too often");
  CHECK(OLD(OnMutex, __pthread_mutex_destroy)(&m) == 0, "__pthread_mutex_destroy");
  pthread_rwlock_t l;
  CHECK(OLD(int (*)(pthread_rwlock_t*, const pthread_rwlockattr_t*), __pthread_rwlock_init)(&l, NULL) == 0, "rwlock_init");
  CHECK(OLD(OnRwlock, __pthread_rwlock_rdlock)(&l) == 0 && OLD(OnRwlock, __pthread_rwlock_tryrdlock)(&l) == 0, "rdlock");
  CHECK(OLD(OnRwlock, __pthread_rwlock_trywrlock)(&l) == EBUSY, "trywrlock");
  CHECK(OLD(OnRwlock, __pthread_rwlock_unlock)(&l) == 0 && OLD(OnRwlock, __pthread_rwlock_unlock)(&l) == 0, "unlock");
  CHECK(OLD(OnRwlock, __pthread_rwlock_wrlock)(&l) == 0 && OLD(OnRwlock, __pthread_rwlock_unlock)(&l) == 0, "wrlock");
  CHECK(OLD(OnRwlock, __pthread_rwlock_destroy)(&l) == 0, "__pthread_rwlock_destroy");
}

/* Threads that call the old names wait for, and are woken by, threads that call the new ones. */
static void* contend(void* by_old_names) {
  for (int i = 0; i < 300; i++) {
    if (by_old_names) {
      OLD(OnMutex, __pthread_mutex_lock)(&shared);
      OLD(OnRwlock, __pthread_rwlock_wrlock)(&rwshared);
    } else {
      pthread_mutex_lock(&shared);
      pthread_rwlock_wrlock(&rwshared);
    }
    CHECK(inside++ == 0, "two threads inside");
    if (i % 30 == 0) pause_ms(1);
    counter++;
    inside--;
    if (by_old_names) {
      OLD(OnRwlock, __pthread_rwlock_unlock)(&rwshared);
      OLD(OnMutex, __pthread_mutex_unlock)(&shared);
    } else {
      pthread_rwlock_unlock(&rwshared);
      pthread_mutex_unlock(&shared);
    }
  }
  return NULL;
}

static void on_destroy(void* value) { destroyed += value == &destroyed; }
static void keys(void) {
  pthread_key_t key;
  CHECK(OLD(int (*)(pthread_key_t*, void (*)(void*)), __pthread_key_create)(&key, on_destroy) == 0, "__pthread_key_create");
  CHECK(OLD(int (*)(pthread_key_t, const void*), __pthread_setspecific)(key, (void*)&destroyed) == 0, "__pthread_setspecific");
  CHECK(OLD(void* (*)(pthread_key_t), __pthread_getspecific)(key) == &destroyed, "__pthread_getspecific");
  CHECK(pthread_getspecific(key) == &destroyed, "pthread_getspecific");
}

static void once_here(void) { once_runs++; }
static void clean(void* add) { cleanups += (int)(long)add; }

struct buffer {
  void (*routine)(void*);
  void* arg;
  int cancel_type;
  struct buffer* previous;
};

/* _pthread_cleanup_push and its kind: handlers are run by pop and by the end of the thread. */
static void* old_cleanup(void* how) {
  struct buffer b[2];
  OLD(void (*)(struct buffer*, void (*)(void*), void*), _pthread_cleanup_push)(&b[0], clean, (void*)1);
  OLD(void (*)(struct buffer*, int), _pthread_cleanup_pop)(&b[0], 1);
  OLD(void (*)(struct buffer*, void (*)(void*), void*), _pthread_cleanup_push_defer)(&b[0], clean, (void*)10);
  OLD(void (*)(struct buffer*, int), _pthread_cleanup_pop_restore)(&b[0], 1);
  OLD(void (*)(struct buffer*, void (*)(void*), void*), _pthread_cleanup_push)(&b[0], clean, (void*)100);
  if (how) {
    pthread_cancel(pthread_self());
    pause_ms(1000);
  }
  OLD(void (*)(struct buffer*, void (*)(void*), void*), _pthread_cleanup_push_defer)(&b[1], clean, (void*)1000);
  pthread_exit(how);
}

/* In C these macros are __pthread_register_cancel, __pthread_unregister_cancel, __pthread_unwind_next, and
 * __pthread_register_cancel_defer with __pthread_unregister_cancel_restore. */
static void* macros(void* how) {
  int type;
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  pthread_cleanup_push(clean, (void*)1);
  pthread_cleanup_push_defer_np(clean, (void*)10);
  pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
  CHECK(type == PTHREAD_CANCEL_DEFERRED, "type in a deferred section: %d", type);
  pthread_cleanup_push(clean, (void*)100);
  if (how == &cleanups) pthread_exit((void*)5);
  if (how) {
    pthread_cancel(pthread_self());
    pthread_testcancel();
  }
  pthread_cleanup_pop(1);
  pthread_cleanup_pop_restore_np(1);
  pthread_cleanup_pop(1);
  pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
  CHECK(type == PTHREAD_CANCEL_ASYNCHRONOUS, "type after a deferred section: %d", type);
  return NULL;
}

/* What g++ -fno-exceptions makes of pthread_cleanup_push. */
struct frame {
  void (*routine)(void*);
  void* arg;
  int do_it, type;
};
static void frames(void) {
  struct frame f = {clean, (void*)7, 1, 0};
  OLD(void (*)(struct frame*), __pthread_cleanup_routine)(&f);
  f.do_it = 0;
  OLD(void (*)(struct frame*), __pthread_cleanup_routine)(&f);
  CHECK(cleanups == 7, "__pthread_cleanup_routine: %d", cleanups);
}

static void without_handlers(void) {
  pid_t pid = _Fork();
  CHECK(pid >= 0, "_Fork");
  if (pid == 0) {
    static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&m);
    pthread_mutex_unlock(&m);
    _exit(getpid() != gettid() ? 3 : 9);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 9, "the child of _Fork: %#x", (unsigned)status);
}

static void* all(void* unused) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  STAGE("locks");
  locks();
  keys();
  STAGE("once");
  for (int i = 0; i < 2; i++) CHECK(OLD(int (*)(pthread_once_t*, void (*)(void)), __pthread_once)(&once, once_here) == 0, "once");
  CHECK(once_runs == 1, "once ran %d times", once_runs);
  frames();
  OLD(void (*)(void), pthread_kill_other_threads_np)();
  CHECK(OLD(int (*)(void), pthread_yield)() == 0, "pthread_yield");
  STAGE("_Fork");
  without_handlers();
  return unused;
}

int main(void) {
  check_begin();
  join_thread(start_thread(all, NULL));
  CHECK(destroyed == 1, "destructor of the key: %d", destroyed);
  STAGE("contention");
  pthread_t t[4];
  for (long i = 0; i < 4; i++) t[i] = start_thread(contend, (void*)(i % 2));
  contend((void*)1);
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  CHECK(counter == 1500, "counter %d", counter);
  STAGE("old cleanup");
  cleanups = 0;
  CHECK(join_thread(start_thread(old_cleanup, NULL)) == NULL && cleanups == 1111, "cleanups %d", cleanups);
  cleanups = 0;
  CHECK(join_thread(start_thread(old_cleanup, (void*)1)) == PTHREAD_CANCELED && cleanups == 111, "cleanups %d", cleanups);
  STAGE("macros");
  for (int i = 0; i < 3; i++) {
    cleanups = 0;
    void* r = join_thread(start_thread(macros, i == 0 ? NULL : i == 1 ? (void*)1 : (void*)&cleanups));
    CHECK(r == (i == 0 ? NULL : i == 1 ? PTHREAD_CANCELED : (void*)5) && cleanups == 111, "way %d: %p, cleanups %d", i, r, cleanups);
  }
  return check_end();
}
