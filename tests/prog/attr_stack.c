/* Stack sizes, guards and bounds as the attributes ask for them, and stacks that the program brings itself. */
#include "check.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* Uses about `bytes` of stack, page by page, and comes back. */
__attribute__((noinline)) static int use_stack(size_t bytes) {
  volatile char page[2048];
  page[0] = page[sizeof page - 1] = 1;
  if (bytes <= sizeof page + 200) return page[0];
  return use_stack(bytes - sizeof page - 64) + page[sizeof page - 1];
}

struct want {
  size_t size, guard;
  char* base;
  pthread_t id;
};

static void* look(void* argument) {
  struct want* want = argument;
  pthread_attr_t attr;
  void* base = NULL;
  size_t size = 0, guard = 0, size2 = 0;
  char local;
  CHECK(pthread_getattr_np(pthread_self(), &attr) == 0, "pthread_getattr_np");
  CHECK(pthread_attr_getstack(&attr, &base, &size) == 0, "getstack");
  CHECK(pthread_attr_getstacksize(&attr, &size2) == 0 && size2 == size, "getstacksize %zu, getstack %zu",
        size2, size);
  CHECK(pthread_attr_getguardsize(&attr, &guard) == 0, "getguardsize");
  CHECK(&local > (char*)base && &local < (char*)base + size, "%p is not within %p + %zu", (void*)&local, base,
        size);
  /* part of it may be used for other purposes: as natively, TLS and the guard lie in it or beside it */
  CHECK(size + 65536 >= want->size && size <= want->size + 65536, "stack of %zu, asked for %zu", size,
        want->size);
  CHECK(guard == want->guard, "guard of %zu, asked for %zu", guard, want->guard);
  pthread_attr_destroy(&attr);
  if (want->base)
    CHECK(&local > want->base && &local < want->base + want->size, "not on the stack that was given");
  size_t room = (size_t)(&local - (char*)base);
  CHECK(room + 16384 >= want->size, "only %zu bytes of %zu left at the start", room, want->size);
  /* leave 8 KiB for the frames around us and for signal frames */
  CHECK(use_stack(room > want->size ? want->size - 12288 : room - 8192) > 0, "use_stack");
  return NULL;
}

static void sized(size_t size, size_t guard) {
  pthread_attr_t attr;
  struct want want = {.size = size, .guard = guard};
  size_t back = 0;
  pthread_attr_init(&attr);
  NEED(pthread_attr_setstacksize(&attr, size) == 0);
  NEED(pthread_attr_setguardsize(&attr, guard) == 0);
  CHECK(pthread_attr_getstacksize(&attr, &back) == 0 && back == size, "attribute: size %zu", back);
  CHECK(pthread_attr_getguardsize(&attr, &back) == 0 && back == guard, "attribute: guard %zu", back);
  NEED(pthread_create(&want.id, &attr, look, &want) == 0);
  join_thread(want.id);
  pthread_attr_destroy(&attr);
}

static void given(void) {
  STAGE("stacks of the program");
  enum { N = 4, SIZE = 256 * 1024 };
  struct want want[N];
  char* memory[N];
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < N; i++) {
      pthread_attr_t attr;
      memory[i] =
          i % 2 ? malloc(SIZE + 64)
                : mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
      NEED(memory[i] && memory[i] != MAP_FAILED);
      memset(memory[i], 0x5A, SIZE);
      want[i] = (struct want){.size = SIZE, .base = memory[i]};
      pthread_attr_init(&attr);
      NEED(pthread_attr_setstack(&attr, memory[i], SIZE) == 0);
      NEED(pthread_create(&want[i].id, &attr, look, &want[i]) == 0);
      pthread_attr_destroy(&attr);
    }
    for (int i = 0; i < N; i++) {
      join_thread(want[i].id);
      int used = 0;
      for (int k = 0; k < SIZE; k++) used += memory[i][k] != 0x5A;
      CHECK(used > 1000, "only %d bytes of the given stack were written", used);
      if (i % 2)
        free(memory[i]);
      else
        munmap(memory[i], SIZE);
    }
  }
}

static void* fallen_off(void* unused) {
  (void)unused;
  pthread_attr_t attr;
  void* base;
  size_t size;
  pthread_getattr_np(pthread_self(), &attr);
  pthread_attr_getstack(&attr, &base, &size);
  volatile char* below = (char*)base - 64; /* in the guard */
  *below = 1;
  return NULL;
}
static int overflow(void* argument) {
  pthread_attr_t attr;
  pthread_t t;
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, (size_t)argument);
  NEED(pthread_create(&t, &attr, fallen_off, NULL) == 0);
  pthread_join(t, NULL);
  return 0;
}

static void bad_attributes(void) {
  STAGE("attributes that are refused");
  pthread_attr_t attr;
  size_t size;
  int v = -1;
  char* memory = malloc(65536);
  pthread_attr_init(&attr);
  CHECK(pthread_attr_setstacksize(&attr, 100) == EINVAL, "stack size 100");
  CHECK(pthread_attr_setstack(&attr, memory, 100) == EINVAL, "stack of 100 bytes");
  CHECK(pthread_attr_setinheritsched(&attr, 99) == EINVAL, "inheritsched 99");
  CHECK(pthread_attr_getguardsize(&attr, &size) == 0 && size == 4096, "default guard %zu", size);
  CHECK(pthread_attr_getscope(&attr, &v) == 0 && v == PTHREAD_SCOPE_SYSTEM, "scope %d", v);
  pthread_attr_destroy(&attr);
  free(memory);
}

/* The default is RLIMIT_STACK as it was at start; pthread_setattr_default_np changes it. A recycled stack may be larger. */
static void* size_of_mine(void* unused) {
  (void)unused;
  pthread_attr_t attr;
  size_t size = 0;
  pthread_getattr_np(pthread_self(), &attr);
  pthread_attr_getstacksize(&attr, &size);
  pthread_attr_destroy(&attr);
  return (void*)size;
}
static void defaults(void) {
  STAGE("default size");
  pthread_attr_t attr;
  size_t want = 0, got = (size_t)join_thread(start_thread(size_of_mine, NULL));
  CHECK(pthread_getattr_default_np(&attr) == 0, "getattr_default_np");
  CHECK(pthread_attr_getstacksize(&attr, &want) == 0 && want > 0, "default size %zu", want);
  CHECK(got + 65536 >= want, "a default stack has %zu, want %zu", got, want);
  CHECK(pthread_attr_setstacksize(&attr, 512 * 1024) == 0 && pthread_setattr_default_np(&attr) == 0,
        "setattr_default_np");
  got = (size_t)join_thread(start_thread(size_of_mine, NULL));
  CHECK(got + 65536 >= 512 * 1024, "after the default was set: %zu", got);
  pthread_attr_destroy(&attr);
}

int main(void) {
  check_begin();
  STAGE("sizes");
  static const size_t sizes[] = {65536, 1 << 20, 200 * 1024, 16 << 20, 65536, 1 << 20};
  for (int i = 0; i < COUNT_OF(sizes); i++) {
    sized(sizes[i], 4096);
    sized(sizes[i], 32768);
    sized(sizes[i], 0);
  }
  given();
  STAGE("the guard ends the process");
  CHECK(killed_by(in_child(overflow, (void*)65536), SIGSEGV), "64 KiB");
  CHECK(killed_by(in_child(overflow, (void*)(1 << 20)), SIGSEGV), "1 MiB");
  bad_attributes();
  defaults();
  return check_end();
}
