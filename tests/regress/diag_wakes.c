/*
 * A program with an allocator of its own. A library that watches the program from a thread of its own allocates as well, and
 * so may hold the allocator's lock while all threads of the program wait for it: when it gives the lock back they go on.
 */
// run: env=VTHR_PIN_THRESHOLD=5ms name=main-waits
// run: env=VTHR_PIN_THRESHOLD=5ms args=leave name=main-leaves
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void inline_sleep(long ms) {
  struct timespec span = {0, ms * 1000000};
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"((long)SYS_nanosleep), "D"(&span), "S"(0L)
                   : "rcx", "r11", "memory");
}

static pthread_mutex_t heap_lock = PTHREAD_MUTEX_INITIALIZER;
static _Alignas(64) unsigned char heap[64 << 20];
static size_t heap_used;
static int strangers;

static void* take(size_t size, size_t alignment) {
  void* p = NULL;
  char name[16] = "";
  if (alignment < 32) alignment = 32;
  prctl(PR_GET_NAME, name);
  pthread_mutex_lock(&heap_lock);
  if (!strcmp(name, "vthr-diag") && strangers++ < 20) inline_sleep(30); /* long enough for the others to come */
  size_t start = (heap_used + 16 + alignment - 1) / alignment * alignment;
  if (size < sizeof heap && start + size < sizeof heap) {
    p = heap + start;
    memcpy(heap + start - 16, &size, sizeof size);
    heap_used = start + size;
  }
  pthread_mutex_unlock(&heap_lock);
  return p;
}
void* malloc(size_t size) { return take(size, 32); }
void free(void* p) { (void)p; }
void* calloc(size_t n, size_t size) { return take(n * size, 32); }
void* realloc(void* old, size_t size) {
  size_t before = 0;
  void* p = take(size, 32);
  if (p && old) {
    memcpy(&before, (unsigned char*)old - 16, sizeof before);
    memcpy(p, old, before < size ? before : size);
  }
  return p;
}
void* aligned_alloc(size_t alignment, size_t size) { return take(size, alignment); }
void* memalign(size_t alignment, size_t size) { return take(size, alignment); }
int posix_memalign(void** p, size_t alignment, size_t size) {
  *p = take(size, alignment);
  return *p ? 0 : 12;
}

static int done;
static void* work(void* unused) {
  for (int i = 0; i < 50; i++) {
    inline_sleep(10); /* something for it to look at */
    for (int j = 0; j < 4; j++) {
      volatile char* p = malloc(100);
      p[0] = 1;
      usleep(1000);
    }
  }
  if (__atomic_add_fetch(&done, 1, __ATOMIC_RELAXED) == 2) write(1, "OK\n", 3);
  return unused;
}

int main(int argc, char** argv) {
  (void)argv;
  pthread_t t[2];
  alarm(25);
  for (int i = 0; i < 2; i++)
    if (pthread_create(&t[i], NULL, work, NULL) != 0) return 1;
  if (argc > 1) pthread_exit(NULL); /* the process goes on until the last thread ends */
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  return 0;
}
