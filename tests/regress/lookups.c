/* Functions of threads and locks that a program looks up by itself, in each way there is, work with those that it calls by
 * name: they are the same. What is not there is not found, with the loader's words. */
// cflags: -rdynamic
#include "../prog/check.h"

#include <dlfcn.h>

typedef int (*Lock)(pthread_mutex_t*);
typedef int (*Create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
typedef int (*Join)(pthread_t, void**);
typedef int (*GetName)(pthread_t, char*, size_t);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static volatile int inside, counter, turn;

/* The program's own function of a name that libc has too. */
int sem_getvalue(void* unused, int* value) {
  (void)unused;
  *value = 4711;
  return 0;
}

struct way {
  const char* name;
  void* handle;
  int versions;
};
static void* find(const struct way* w, const char* name) {
  static const char* const versions[] = {"GLIBC_2.2.5", "GLIBC_2.12", "GLIBC_2.34"};
  void* p = w->versions ? NULL : dlsym(w->handle, name);
  for (int i = 0; w->versions && p == NULL && i < 3; i++) p = dlvsym(w->handle, name, versions[i]);
  CHECK(p != NULL, "%s: no %s", w->name, name);
  if (p == NULL) _exit(1);
  return p;
}

static void* contend(void* argument) {
  const struct way* w = argument;
  Lock lock = w ? (Lock)find(w, "pthread_mutex_lock") : pthread_mutex_lock;
  Lock unlock = w ? (Lock)find(w, "pthread_mutex_unlock") : pthread_mutex_unlock;
  for (int i = 0; i < 100; i++) {
    lock(&mutex);
    CHECK(inside++ == 0, "two threads inside");
    if (i % 20 == 0) pause_ms(1);
    counter++;
    inside--;
    unlock(&mutex);
  }
  return argument;
}

static void* wait_for_turn(void* argument) {
  const struct way* w = argument;
  int (*wait)(pthread_cond_t*, pthread_mutex_t*) =
      (int (*)(pthread_cond_t*, pthread_mutex_t*))dlvsym(w->handle, "pthread_cond_wait", "GLIBC_2.3.2");
  NEED(wait);
  pthread_mutex_lock(&mutex);
  while (!turn) wait(&cond, &mutex);
  pthread_mutex_unlock(&mutex);
  return argument;
}

static void try_way(const struct way* w) {
  STAGE(w->name);
  pthread_t t[4];
  char name[32] = "";
  void* end = NULL;
  counter = 0;
  for (int i = 0; i < 4; i++)
    NEED(((Create)find(w, "pthread_create"))(&t[i], NULL, contend, i % 2 ? (void*)w : NULL) == 0);
  CHECK(((GetName)find(w, "pthread_getname_np"))(t[0], name, sizeof name) == 0 && name[0], "%s: name '%s'", w->name, name);
  for (int i = 0; i < 4; i++)
    CHECK(((Join)find(w, "pthread_join"))(t[i], &end) == 0 && end == (i % 2 ? (void*)w : NULL), "%s: join", w->name);
  CHECK(counter == 400, "%s: counter %d", w->name, counter);
  turn = 0;
  t[0] = start_thread(wait_for_turn, (void*)w);
  pause_ms(5);
  pthread_mutex_lock(&mutex);
  turn = 1;
  pthread_cond_broadcast(&cond);
  pthread_mutex_unlock(&mutex);
  CHECK(join_thread(t[0]) == w, "%s: cond", w->name);
}

static void* from_thread(void* ways) {
  for (int i = 0; i < 6; i++) try_way((const struct way*)ways + i);
  return NULL;
}

int main(void) {
  check_begin();
  struct way ways[] = {
      {"default", RTLD_DEFAULT, 0},
      {"default, version", RTLD_DEFAULT, 1},
      {"next", RTLD_NEXT, 0},
      {"next, version", RTLD_NEXT, 1},
      {"libc", dlopen("libc.so.6", RTLD_NOW), 0},
      {"libpthread", dlopen("libpthread.so.0", RTLD_NOW), 0},
  };
  NEED(ways[4].handle && ways[5].handle);
  int value = 0;
  int (*own)(void*, int*) = (int (*)(void*, int*))dlsym(RTLD_DEFAULT, "sem_getvalue");
  CHECK(own && own(NULL, &value) == 0 && value == 4711, "the program's own function");
  int (*next)(void*, int*) = (int (*)(void*, int*))dlsym(RTLD_NEXT, "sem_getvalue");
  CHECK(next && next != own, "the next one");
  dlerror();
  CHECK(dlvsym(RTLD_DEFAULT, "pthread_mutex_lock", "GLIBC_9.9") == NULL && dlerror() != NULL, "a version that nobody has");
  CHECK(dlsym(ways[4].handle, "no_such_function") == NULL && dlerror() != NULL, "a name that nobody has");
  for (int i = 0; i < 6; i++) try_way(&ways[i]);
  join_thread(start_thread(from_thread, ways));
  return check_end();
}
