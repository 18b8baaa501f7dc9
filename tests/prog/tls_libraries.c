/*
 * Many libraries with thread-local variables come and go while threads are parked that used them: what such a thread finds is its
 * own, or fresh when the library is; destructors at thread end run also when their library was closed before.
 */
// run: timeout=60
#include "check.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/stat.h>

enum { COPIES = 8, THREADS = 24 };
static char folder[] = "/tmp/tls_libraries.XXXXXX", path[COPIES][100];

struct library {
  void* handle;
  int (*fresh)(void), (*holds)(long);
  void (*write)(long), (*at_thread_end)(void (*)(long), long), (*key)(void (*)(long)), (*key_value)(long);
};
static struct library libraries[COPIES];

static void load(struct library* l, const char* file) {
  l->handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!l->handle) {
    check_fail(__LINE__, "dlopen: %s", dlerror());
    _exit(1);
  }
  *(void**)&l->fresh = dlsym(l->handle, "library_fresh");
  *(void**)&l->holds = dlsym(l->handle, "library_holds");
  *(void**)&l->write = dlsym(l->handle, "library_write");
  *(void**)&l->at_thread_end = dlsym(l->handle, "library_at_thread_end");
  *(void**)&l->key = dlsym(l->handle, "library_key");
  *(void**)&l->key_value = dlsym(l->handle, "library_key_value");
  NEED(l->fresh && l->holds && l->write && l->at_thread_end && l->key && l->key_value);
}
static int is_loaded(const char* file) {
  void* handle = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
  if (handle) dlclose(handle);
  return handle != NULL;
}

static int is_static(int i) { return i % 4 == 0; }

static void copy_files(void) {
  char from[4096], block[65536];
  ssize_t n, length = readlink("/proc/self/exe", from, sizeof from - 10);
  NEED(length > 0 && mkdtemp(folder));
  for (int i = 0; i < COPIES; i++) {
    strcpy(from + length, is_static(i) ? ".so" : "_large.so");
    snprintf(path[i], sizeof path[i], "%s/copy%d.so", folder, i);
    int in = open(from, O_RDONLY), out = open(path[i], O_WRONLY | O_CREAT | O_EXCL, 0755);
    NEED(in >= 0 && out >= 0);
    while ((n = read(in, block, sizeof block)) > 0) NEED(write(out, block, (size_t)n) == n);
    close(in);
    close(out);
  }
}
static void remove_files(void) {
  for (int i = 0; i < COPIES; i++) unlink(path[i]);
  rmdir(folder);
}

/* --- parked threads, woken after each change */
static sem_t turn[THREADS], done;
static atomic_int new_from, opened; /* libraries [0, opened) are there; those from new_from on are fresh to all */
static int file_of[COPIES];
static atomic_int over;

static void* parked(void* argument) {
  long id = (long)argument;
  for (int round = 0;; round++) {
    while (sem_wait(&turn[id]) != 0) {
    }
    if (over) return NULL;
    for (int i = 0; i < opened; i++) {
      struct library* l = &libraries[i];
      if (i >= new_from) CHECK(l->fresh(), "round %d, library %d: not fresh for thread %ld", round, i, id);
      else CHECK(l->holds(id * 10 + i), "round %d, library %d: other values for thread %ld", round, i, id);
      l->write(id * 10 + i);
    }
    if (id % 3 == 0) pause_ms(1);
    for (int i = 0; i < opened; i++) CHECK(libraries[i].holds(id * 10 + i), "round %d: changed in a sleep", round);
    sem_post(&done);
  }
}
static void wake_all(void) {
  for (int i = 0; i < THREADS; i++) sem_post(&turn[i]);
  for (int i = 0; i < THREADS; i++)
    while (sem_wait(&done) != 0) {
    }
}
static void* change(void* argument) {
  long step = (long)argument;
  int keep = (int)(step % COPIES);
  if (step % 2) { /* the later ones go and come again, in another order */
    for (int i = opened - 1; i >= keep; i--) CHECK(dlclose(libraries[i].handle) == 0, "dlclose");
    for (int low = keep, high = opened - 1; low < high; low++, high--) {
      int f = file_of[low];
      file_of[low] = file_of[high];
      file_of[high] = f;
    }
    for (int i = keep; i < opened; i++) load(&libraries[i], path[file_of[i]]);
    new_from = keep;
  } else {
    new_from = (int)opened;
    if (opened < COPIES) {
      file_of[opened] = opened;
      load(&libraries[opened], path[opened]);
      opened++;
    }
  }
  return NULL;
}
static void come_and_go(void) {
  STAGE("libraries come and go");
  pthread_t t[THREADS];
  sem_init(&done, 0, 0);
  for (long i = 0; i < THREADS; i++) {
    sem_init(&turn[i], 0, 0);
    t[i] = start_thread(parked, (void*)i);
  }
  for (long step = 0; step < 24; step++) {
    if (step % 3 == 0) join_thread(start_thread(change, (void*)step));
    else change((void*)step);
    wake_all();
  }
  over = 1;
  for (int i = 0; i < THREADS; i++) sem_post(&turn[i]);
  for (int i = 0; i < THREADS; i++) join_thread(t[i]);
  for (int i = 0; i < opened; i++) dlclose(libraries[i].handle);
  for (int i = 0; i < COPIES; i++) CHECK(!is_loaded(path[i]), "copy %d is still there", i);
}

/* --- destructors */
static sem_t may_end, registered;
static atomic_long ended_sum, key_sum;
static void at_end(long v) {
  usleep(500);
  ended_sum += v;
}
static void at_key(long v) { key_sum += v; }
static void* with_destructor(void* argument) {
  struct library* l = &libraries[0];
  l->at_thread_end(at_end, (long)argument);
  sem_post(&registered);
  while (sem_wait(&may_end) != 0) {
  }
  return NULL;
}
static void* with_key(void* argument) {
  libraries[0].key_value((long)argument);
  sem_post(&registered);
  while (sem_wait(&may_end) != 0) {
  }
  return NULL;
}
static void destructors(void) {
  pthread_t t[THREADS];
  sem_init(&may_end, 0, 0);
  sem_init(&registered, 0, 0);
  for (int round = 0; round < 3; round++) {
    STAGE("destructors of a closed library");
    ended_sum = 0;
    load(&libraries[0], path[round]);
    for (long i = 0; i < THREADS; i++) t[i] = start_thread(with_destructor, (void*)(i + 1));
    for (int i = 0; i < THREADS; i++) sem_wait(&registered);
    CHECK(dlclose(libraries[0].handle) == 0, "dlclose");
    CHECK(is_loaded(path[round]), "unloaded although threads have destructors in it");
    for (int i = 0; i < THREADS; i++) sem_post(&may_end);
    for (int i = 0; i < THREADS; i++) join_thread(t[i]);
    CHECK(ended_sum == THREADS * (THREADS + 1) / 2, "destructors: %ld", (long)ended_sum);
    is_loaded(path[round]); /* its dlclose is the one that unloads */
    CHECK(!is_loaded(path[round]), "still there");
    STAGE("keys of a closed library");
    key_sum = 0;
    load(&libraries[0], path[round]);
    libraries[0].key(at_key);
    for (long i = 0; i < THREADS; i++) t[i] = start_thread(with_key, (void*)(i + 1));
    for (int i = 0; i < THREADS; i++) sem_wait(&registered);
    for (int i = 0; i < THREADS / 2; i++) sem_post(&may_end);
    CHECK(EVENTUALLY(key_sum > 0), "no destructor of a key ran");
    for (int i = 0; i < THREADS; i++) sem_post(&may_end);
    for (int i = 0; i < THREADS; i++) join_thread(t[i]);
    CHECK(key_sum == THREADS * (THREADS + 1) / 2, "destructors of the key: %ld", (long)key_sum);
    for (int i = 0; i < THREADS / 2; i++) sem_trywait(&may_end);
    while (sem_trywait(&may_end) == 0) {
    }
    for (long i = 0; i < THREADS; i++) t[i] = start_thread(with_key, (void*)(i + 1));
    for (int i = 0; i < THREADS; i++) sem_wait(&registered);
    CHECK(dlclose(libraries[0].handle) == 0, "dlclose"); /* which deletes the key */
    key_sum = 0;
    for (int i = 0; i < THREADS; i++) sem_post(&may_end);
    for (int i = 0; i < THREADS; i++) join_thread(t[i]);
    CHECK(key_sum == 0, "the destructor of a deleted key ran");
  }
}

/* --- all at once */
static struct library permanent;
static atomic_int stop;
static void* load_in_turns(void* argument) {
  long id = (long)argument;
  for (int i = 0; i < 30; i++) {
    struct library l;
    load(&l, path[id]);
    CHECK(l.fresh(), "a library that was just loaded is not fresh");
    l.write(id + i);
    pause_ms(i % 3);
    CHECK(l.holds(id + i), "the values changed");
    CHECK(dlclose(l.handle) == 0, "dlclose");
  }
  return NULL;
}
static void* user(void* argument) {
  long id = (long)argument;
  CHECK(permanent.fresh(), "the library that stays is not fresh in a new thread");
  permanent.write(id);
  for (int i = 0; i < 3; i++) {
    usleep(200);
    CHECK(permanent.holds(id), "the values in the library that stays changed");
  }
  return NULL;
}
static void* users(void* argument) {
  for (long i = 0; !stop; i++) {
    pthread_t t[4];
    for (long k = 0; k < 4; k++) t[k] = start_thread(user, (void*)((long)argument * 10 + k));
    for (int k = 0; k < 4; k++) join_thread(t[k]);
  }
  return NULL;
}
static void at_once(void) {
  STAGE("all at once");
  pthread_t l[COPIES], u[6];
  load(&permanent, path[COPIES - 1]);
  int n = 0;
  for (long i = 0; i < COPIES - 1; i++)
    if (!is_static((int)i)) l[n++] = start_thread(load_in_turns, (void*)i);
  for (long i = 0; i < COUNT_OF(u); i++) u[i] = start_thread(users, (void*)i);
  while (n > 0) join_thread(l[--n]);
  stop = 1;
  for (int i = 0; i < COUNT_OF(u); i++) join_thread(u[i]);
  dlclose(permanent.handle);
}

int main(void) {
  check_begin();
  copy_files();
  come_and_go();
  destructors();
  at_once();
  remove_files();
  return check_end();
}
