/* A program with an allocator of its own, whose lock is held by a thread that sleeps in the kernel, unseen. */
#include "pin.h"

/* Never gives anything back; 64 MiB are enough for this program. */
static pthread_mutex_t heap_lock = PTHREAD_MUTEX_INITIALIZER;
static _Alignas(64) unsigned char heap[64 << 20];
static size_t heap_used;

static void* take(size_t size, size_t alignment) {
  void* p = NULL;
  if (alignment < 32) alignment = 32;
  pthread_mutex_lock(&heap_lock);
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
void* calloc(size_t n, size_t size) { return take(n * size, 32); } /* the heap is zero and used once */
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
  return *p ? 0 : ENOMEM;
}

static void* hold_heap(void* unused) {
  pthread_mutex_lock(&heap_lock);
  before_pin();
  inline_sleep(300);
  pthread_mutex_unlock(&heap_lock);
  after_pin(); /* prints what it finds, so not before */
  return unused;
}
static void* allocate(void* unused) {
  (void)unused;
  char* p = malloc(1000);
  p[0] = 1;
  return p;
}

int main(int argc, char** argv) {
  check_begin();
  start_tickers();
  STAGE("pin within malloc");
  pthread_t holder = start_thread(hold_heap, NULL);
  pause_ms(50);
  pthread_t waiter = start_thread(allocate, NULL);
  CHECK(join_thread(waiter) != NULL, "malloc");
  join_thread(holder);
  linger(argc, argv);
  stop_tickers();
  return check_end();
}
