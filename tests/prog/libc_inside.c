/*
 * Threads that block in functions of the C library which make the system call, or wait for the lock, by themselves: stdio on
 * sockets and pipes, locks of FILEs, of malloc and of the loader, popen, pclose and system.
 *
 * With a number as the argument only that part runs: libc_entry.py looks at what is reported about it. Each part blocks
 * `rounds` times for at least 5 ms, or once for 400 ms.
 */
// run: args=0 name=reads
// run: args=1 name=writes
// run: args=2 name=processes
// run: args=3 name=file-lock
// run: args=4 name=arena-lock
// run: args=5 name=loader-lock
// run: args=6 name=pointers
// run: args=7 name=deep-lock
// run: args=8 name=forked
#include "net.h"

#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <stdatomic.h>

enum { ROUNDS = 100, LONG_MS = 400 };

/* Somebody who has to go on meanwhile. */
static atomic_long ticks;
static void* tick(void* unused) {
  while (ticks >= 0) {
    usleep(2000);
    if (ticks >= 0) ticks++;
  }
  return unused;
}
static void goes_on(void) {
  long before = ticks;
  CHECK(EVENTUALLY(ticks >= before + 2), "others stand still");
}

/* 0: lines that come one by one, by fgets, getline, fread and fscanf */
static int pair[2];
static void* read_lines(void* unused) {
  FILE* in = fdopen(pair[0], "r");
  char text[100];
  char* line = NULL;
  size_t room = 0;
  int number = -1;
  NEED(in);
  for (int i = 0; i < ROUNDS; i++) {
    switch (i % 4) {
      case 0:
        CHECK(fgets(text, sizeof text, in) && sscanf(text, "line %d", &number) == 1 && number == i, "fgets %d: %s", i, text);
        break;
      case 1:
        CHECK(getline(&line, &room, in) > 0 && sscanf(line, "line %d", &number) == 1 && number == i, "getline %d", i);
        break;
      case 2:
        CHECK(fread(text, 1, 9, in) == 9 && sscanf(text, "line %d", &number) == 1 && number == i, "fread %d", i);
        break;
      case 3:
        CHECK(fscanf(in, "line %d", &number) == 1 && number == i && fgetc(in) == '\n', "fscanf %d: %d", i, number);
        break;
    }
  }
  CHECK(fgets(text, sizeof text, in) == NULL && feof(in), "the end");
  free(line);
  fclose(in);
  return unused;
}
static void reading(void) {
  stream_pair(pair);
  pthread_t t = start_thread(read_lines, NULL);
  for (int i = 0; i < ROUNDS; i++) {
    char text[20];
    pause_ms(5);
    snprintf(text, sizeof text, "line %03d\n", i);
    CHECK(write(pair[1], text, 9) == 9, "write");
  }
  goes_on();
  close(pair[1]);
  join_thread(t);
}

/* 1: printf to a pipe whose reader is slow */
static void* print_much(void* unused) {
  FILE* out = fdopen(pair[1], "w");
  NEED(out);
  for (int i = 0; i < ROUNDS * 1024; i++) CHECK(fprintf(out, "%-63d\n", i) == 64, "fprintf");
  CHECK(fclose(out) == 0, "fclose");
  return unused;
}
static void printing(void) {
  NEED(pipe(pair) == 0);
  pthread_t t = start_thread(print_much, NULL);
  char text[8192];
  long at = 0;
  for (ssize_t n; (n = read(pair[0], text, sizeof text)) > 0; at += n) {
    if (at % 65536 < n) pause_ms(5);
  }
  CHECK(at == (long)ROUNDS * 65536, "%ld bytes came", at);
  close(pair[0]);
  join_thread(t);
}

/* 2: popen, pclose, system */
static void* shells(void* argument) {
  char line[100];
  long i = (long)argument;
  snprintf(line, sizeof line, "sleep 0.4; echo %ld; exec 1>&-; sleep 0.4; exit 3", i);
  FILE* f = popen(line, "r");
  NEED(f);
  CHECK(fgets(line, sizeof line, f) && atol(line) == i, "popen: %s", line);
  CHECK(exited_with(pclose(f), 3), "pclose");
  CHECK(exited_with(system("sleep 0.4; exit 5"), 5), "system");
  return NULL;
}
static void processes(void) {
  pthread_t t[5];
  for (long i = 0; i < 5; i++) t[i] = start_thread(shells, (void*)i);
  goes_on();
  for (int i = 0; i < 5; i++) join_thread(t[i]);
}

/* 3: the lock of a FILE */
static FILE* shared;
static atomic_int holding, holder_done;
static void* hold_file(void* unused) {
  for (int i = 0; i < ROUNDS; i++) {
    flockfile(shared);
    holding = 1;
    usleep(5000);
    holding = 0;
    fprintf(shared, "held %d\n", i);
    funlockfile(shared);
    usleep(1);
  }
  holder_done = 1;
  return unused;
}
static void* use_file(void* unused) {
  for (int i = 0; i < ROUNDS; i++) {
    while (!holding && !holder_done) usleep(100);
    fprintf(shared, "used %d\n", i);
  }
  return unused;
}
static void file_lock(void) {
  char* text = NULL;
  size_t size = 0;
  shared = open_memstream(&text, &size);
  NEED(shared);
  pthread_t a = start_thread(hold_file, NULL), b = start_thread(use_file, NULL);
  for (int i = 0; i < 10; i++) { /* the initial thread wants it too */
    flockfile(shared);
    CHECK(!holding, "two have the lock");
    funlockfile(shared);
    pause_ms(2);
  }
  join_thread(a);
  join_thread(b);
  fclose(shared);
  int lines = 0;
  for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
  CHECK(lines == 2 * ROUNDS, "%d lines", lines);
  free(text);
}

/* 4: the lock of an arena of malloc: malloc_stats prints while it holds it, to a pipe that is full */
static atomic_int stats_begun, stats_done, allocators;
static void* print_stats(void* unused) {
  stats_begun = 1;
  malloc_stats();
  stats_done = 1;
  return unused;
}
static void* allocate(void* unused) {
  while (!stats_begun) usleep(1000);
  usleep(50000);
  allocators++;
  for (int i = 0; i < 100; i++) free(malloc(100000)); /* not from a cache */
  return unused;
}
static void arena(void) {
  int p[2], saved = dup(2);
  static char text[65536];
  NEED(pipe(p) == 0 && fcntl(p[1], F_SETFL, O_NONBLOCK) == 0);
  while (write(p[1], text, 4096) > 0) {
  }
  while (write(p[1], text, 1) > 0) {
  }
  NEED(fcntl(p[1], F_SETFL, 0) == 0 && fcntl(p[0], F_SETFL, O_NONBLOCK) == 0);
  dup2(p[1], 2);
  /* pthread_create allocates too: all before the lock is held */
  pthread_t b = start_thread(allocate, NULL), c = start_thread(allocate, NULL), a = start_thread(print_stats, NULL);
  while (allocators < 2) pause_ms(1);
  long before = ticks;
  pause_ms(LONG_MS);
  int ticked = EVENTUALLY(ticks >= before + 2), early = stats_done;
  while (!stats_done) {
    if (read(p[0], text, sizeof text) <= 0) pause_ms(1);
  }
  join_thread(a);
  join_thread(b);
  join_thread(c);
  dup2(saved, 2);
  close(saved);
  close(p[0]);
  close(p[1]);
  CHECK(ticked && !early, "others stand still, or nobody held the lock: %d %d", ticked, early);
}

/* 5: the loader's lock, held by a callback that blocks */
static atomic_int in_callback;
static int slow_callback(struct dl_phdr_info* info, size_t size, void* data) {
  (void)info;
  (void)size;
  (void)data;
  in_callback = 1;
  usleep(LONG_MS * 1000);
  in_callback = 0;
  return 1;
}
static int quick_callback(struct dl_phdr_info* info, size_t size, void* data) {
  (void)info;
  (void)size;
  CHECK(!in_callback, "two callbacks at once");
  (*(int*)data)++;
  return 1;
}
static void* walk_slowly(void* unused) {
  dl_iterate_phdr(slow_callback, NULL);
  return unused;
}
static void* walk(void* unused) {
  int calls = 0;
  while (!in_callback && calls < 1) usleep(100);
  dl_iterate_phdr(quick_callback, &calls);
  CHECK(calls == 1, "%d calls", calls);
  CHECK(dlsym(RTLD_DEFAULT, "puts") != NULL, "dlsym");
  void* handle = dlopen("libm.so.6", RTLD_NOW);
  CHECK(handle != NULL && dlclose(handle) == 0, "dlopen");
  return unused;
}
static void loader(void) {
  pthread_t a = start_thread(walk_slowly, NULL), b[3];
  for (int i = 0; i < 3; i++) b[i] = start_thread(walk, NULL);
  goes_on();
  join_thread(a);
  for (int i = 0; i < 3; i++) join_thread(b[i]);
}

/* 6: functions that were not found by name: by the handle of the C library, and in a library that prefers its own names */
typedef ssize_t read_function(int fd, void* buffer, size_t length);
static read_function *by_handle, *by_deep_library;
static void* read_through(void* function) {
  char text[10];
  for (int i = 0; i < ROUNDS / 2; i++)
    CHECK(((read_function*)function)(pair[0], text, 1) == 1, "read %d: errno %d", i, errno);
  return NULL;
}
static void pointers(void) {
  static char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 4);
  NEED(length > 0);
  strcpy(path + length, ".so");
  void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), *deep = dlopen(path, RTLD_NOW | RTLD_DEEPBIND);
  NEED(libc && deep);
  by_handle = (read_function*)dlsym(libc, "read");
  by_deep_library = (read_function*)dlsym(deep, "deep_read");
  NEED(by_handle && by_deep_library);
  stream_pair(pair);
  pthread_t a = start_thread(read_through, (void*)by_handle), b = start_thread(read_through, (void*)by_deep_library);
  for (int i = 0; i < ROUNDS; i++) {
    pause_ms(5);
    CHECK(write(pair[1], "x", 1) == 1, "write");
  }
  goes_on();
  join_thread(a);
  join_thread(b);
  close(pair[0]);
  close(pair[1]);
}

/* 7: a lock that a library locks by the names of libc alone, and the program by its own */
static pthread_mutex_t deep_mutex = PTHREAD_MUTEX_INITIALIZER;
static int deep_count;
static int (*deep_lock_function)(pthread_mutex_t*), (*deep_unlock_function)(pthread_mutex_t*);
static void* lock_through(void* argument) {
  int deep = argument != NULL;
  for (int i = 0; i < ROUNDS; i++) {
    deep ? deep_lock_function(&deep_mutex) : pthread_mutex_lock(&deep_mutex);
    int count = deep_count;
    if (i % 4 == 0) usleep(1000);
    deep_count = count + 1;
    deep ? deep_unlock_function(&deep_mutex) : pthread_mutex_unlock(&deep_mutex);
  }
  return NULL;
}
static void deep_lock(void) {
  static char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 4);
  NEED(length > 0);
  strcpy(path + length, ".so");
  void* deep = dlopen(path, RTLD_NOW | RTLD_DEEPBIND);
  NEED(deep);
  deep_lock_function = (int (*)(pthread_mutex_t*))dlsym(deep, "deep_lock");
  deep_unlock_function = (int (*)(pthread_mutex_t*))dlsym(deep, "deep_unlock");
  NEED(deep_lock_function && deep_unlock_function);
  pthread_t t[4];
  for (long i = 0; i < 4; i++) t[i] = start_thread(lock_through, i % 2 ? (void*)1 : NULL);
  lock_through(NULL);
  lock_through((void*)1);
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  CHECK(deep_count == 6 * ROUNDS, "%d times", deep_count);
}

/* 8: what a forked child does with all of it */
static int child_body(void* unused) {
  (void)unused;
  stream_pair(pair);
  pthread_t t = start_thread(read_lines, NULL);
  for (int i = 0; i < ROUNDS; i++) {
    char text[20];
    snprintf(text, sizeof text, "line %03d\n", i);
    CHECK(write(pair[1], text, 9) == 9, "write");
  }
  close(pair[1]);
  join_thread(t);
  CHECK(exited_with(system("exit 5"), 5), "system");
  return check_findings != 0;
}
static int child_alone(void* unused) {
  (void)unused;
  char text[20] = "";
  FILE* f = popen("echo x", "r");
  CHECK(f && fgets(text, sizeof text, f) && text[0] == 'x' && exited_with(pclose(f), 0), "popen");
  return check_findings != 0;
}
static void* forks(void* unused) {
  CHECK(exited_with(in_child(child_alone, NULL), 0), "a child without threads");
  CHECK(exited_with(in_child(child_body, NULL), 0), "a child with threads");
  return unused;
}
static void forked(void) {
  forks(NULL);
  join_thread(start_thread(forks, NULL));
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*run)(void);
  } parts[] = {{"stdio reads", reading},   {"stdio writes", printing}, {"processes", processes},
               {"a FILE's lock", file_lock}, {"an arena's lock", arena}, {"the loader's lock", loader},
               {"pointers", pointers},     {"another's lock", deep_lock},  {"forked", forked}};
  mallopt(M_ARENA_MAX, 1);
  check_begin();
  pthread_t ticker = start_thread(tick, NULL);
  for (int i = 0; i < COUNT_OF(parts); i++) {
    if (argc > 1 && atoi(argv[1]) != i) continue;
    STAGE(parts[i].name);
    parts[i].run();
  }
  ticks = -1000000000;
  join_thread(ticker);
  return check_end();
}
