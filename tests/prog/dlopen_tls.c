/*
 * A library with thread-local variables is loaded while threads sleep: each of them, and each thread made later, finds
 * the initial values, then its own. Unloading and loading again, from threads too, starts afresh.
 */
#include "check.h"

#include <dlfcn.h>
#include <semaphore.h>
#include <stdatomic.h>

enum { SLEEPERS = 24 };
static char path[4096];
static int (*look)(void), (*is_dirty)(long);
static void (*dirty)(long);
static sem_t go;
static atomic_int looked;

static void* load(void) {
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    check_fail(__LINE__, "dlopen: %s", dlerror());
    _exit(1);
  }
  *(void**)&look = dlsym(handle, "library_look");
  *(void**)&dirty = dlsym(handle, "library_dirty");
  *(void**)&is_dirty = dlsym(handle, "library_is_dirty");
  NEED(look && dirty && is_dirty);
  return handle;
}

static void use(long id) {
  CHECK(look() == 0, "thread %ld finds other values than the initial ones", id);
  dirty(id);
  for (int i = 0; i < 5; i++) {
    pause_ms(1);
    CHECK(is_dirty(id) == 0, "the values of thread %ld changed in a sleep", id);
  }
  looked++;
}

static void* old_thread(void* argument) {
  while (sem_wait(&go) != 0) {
  }
  use((long)argument);
  return NULL;
}
static void* new_thread(void* argument) {
  use((long)argument);
  return NULL;
}

static void* loader(void* unused) {
  (void)unused;
  return load();
}

static void* open_and_close(void* unused) {
  (void)unused;
  for (int i = 0; i < 20; i++) {
    void* handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    CHECK(handle != NULL, "dlopen in a thread");
    int (*here)(void);
    *(void**)&here = dlsym(handle, "library_look");
    CHECK(here() == 0, "initial values in a thread that loads");
    CHECK(dlclose(handle) == 0, "dlclose");
    CHECK(dlopen("/nonexistent/library.so", RTLD_NOW) == NULL && dlerror() != NULL && dlerror() == NULL,
          "dlerror");
  }
  return NULL;
}

int main(void) {
  check_begin();
  pthread_t t[SLEEPERS], n[8];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 4);
  NEED(length > 0);
  strcpy(path + length, ".so");
  sem_init(&go, 0, 0);
  for (int round = 0; round < 3; round++) {
    STAGE("threads that slept while the library was loaded");
    looked = 0;
    for (long i = 0; i < SLEEPERS; i++) t[i] = start_thread(old_thread, (void*)i);
    pause_ms(20);
    void* handle = round == 1 ? join_thread(start_thread(loader, NULL)) : load();
    for (int i = 0; i < SLEEPERS; i++) sem_post(&go);
    for (int i = 0; i < SLEEPERS; i++) join_thread(t[i]);
    CHECK(looked == SLEEPERS, "%d threads looked", (int)looked);
    STAGE("threads made after the library was loaded");
    for (int wave = 0; wave < 3; wave++) {
      for (long i = 0; i < 8; i++) n[i] = start_thread(new_thread, (void*)(100 + i));
      for (int i = 0; i < 8; i++) join_thread(n[i]);
    }
    use(1000);
    CHECK(dlclose(handle) == 0, "dlclose");
  }
  STAGE("loading in many threads");
  for (int i = 0; i < 8; i++) n[i] = start_thread(open_and_close, NULL);
  for (int i = 0; i < 8; i++) join_thread(n[i]);
  return check_end();
}
