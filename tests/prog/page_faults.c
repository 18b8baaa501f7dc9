/*
 * Page faults that another thread of the same process has to serve (userfaultfd): the thread that faults sleeps in the kernel at an
 * ordinary instruction, the others go on. SIGBUS of a file that was cut short comes to the thread that touched it.
 */
#include "check.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { PAGES = 32, THREADS = 16 };
static long page;
static char* area;
static int fault_fd;
static atomic_int served, finished, ticks;

static void* server(void* unused) {
  char* filled = aligned_alloc((size_t)page, (size_t)page);
  while (served < PAGES) {
    struct uffd_msg m;
    struct pollfd p = {fault_fd, POLLIN, 0};
    poll(&p, 1, -1);
    if (read(fault_fd, &m, sizeof m) != sizeof m || m.event != UFFD_EVENT_PAGEFAULT) continue;
    int before = ticks;
    for (int i = 0; i < 500 && ticks == before; i++) usleep(1000); /* somebody else goes on meanwhile */
    char* at = (char*)(m.arg.pagefault.address & ~(unsigned long long)(page - 1));
    memset(filled, 'a' + (int)((at - area) / page) % 26, (size_t)page);
    struct uffdio_copy copy = {.dst = (unsigned long)at, .src = (unsigned long)filled, .len = (unsigned long)page};
    if (ioctl(fault_fd, UFFDIO_COPY, &copy) == 0) served++;
    else CHECK(errno == EEXIST, "UFFDIO_COPY: %s", strerror(errno));
  }
  free(filled);
  return unused;
}
static void* toucher(void* argument) {
  for (long i = (long)argument; i < PAGES; i += THREADS) {
    CHECK(area[i * page + 5] == (char)('a' + i % 26), "page %ld holds %d", i, area[i * page + 5]);
    usleep(100);
  }
  finished++;
  return NULL;
}
static void* ticker(void* unused) {
  while (finished < THREADS) {
    ticks++;
    usleep(300);
  }
  return unused;
}

static void user_faults(void) {
  STAGE("faults that a thread serves");
  fault_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
  if (fault_fd < 0) return; /* not for everybody, not everywhere */
  struct uffdio_api api = {.api = UFFD_API};
  area = mmap(NULL, (size_t)(PAGES * page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  NEED(area != MAP_FAILED && ioctl(fault_fd, UFFDIO_API, &api) == 0);
  struct uffdio_register all = {.range = {(unsigned long)area, (unsigned long)(PAGES * page)}, .mode = UFFDIO_REGISTER_MODE_MISSING};
  NEED(ioctl(fault_fd, UFFDIO_REGISTER, &all) == 0);
  pthread_t s = start_thread(server, NULL), k = start_thread(ticker, NULL), t[THREADS];
  for (long i = 0; i < THREADS; i++) t[i] = start_thread(toucher, (void*)i);
  for (int i = 0; i < THREADS; i++) join_thread(t[i]);
  join_thread(s);
  join_thread(k);
  close(fault_fd);
  munmap(area, (size_t)(PAGES * page));
}

static __thread sigjmp_buf back;
static void on_bus(int unused) {
  (void)unused;
  siglongjmp(back, 1);
}
static atomic_int hit;
static void* cut_short(void* argument) {
  char path[] = "/tmp/page_faults.XXXXXX";
  int fd = mkstemp(path);
  unlink(path);
  NEED(fd >= 0 && ftruncate(fd, 2 * page) == 0);
  char* map = mmap(NULL, (size_t)(2 * page), PROT_READ, MAP_SHARED, fd, 0);
  NEED(map != MAP_FAILED);
  NEED(ftruncate(fd, page) == 0);
  for (int i = 0; i < 10; i++) {
    if (sigsetjmp(back, 1) == 0) {
      usleep(50);
      CHECK(*(volatile char*)(map + page) != 0, "nothing is there");
    } else {
      hit++;
    }
  }
  munmap(map, (size_t)(2 * page));
  close(fd);
  return argument;
}

int main(void) {
  check_begin();
  page = sysconf(_SC_PAGESIZE);
  user_faults();
  STAGE("files that were cut short");
  signal(SIGBUS, on_bus);
  pthread_t t[8];
  for (int i = 0; i < COUNT_OF(t); i++) t[i] = start_thread(cut_short, NULL);
  for (int i = 0; i < COUNT_OF(t); i++) join_thread(t[i]);
  CHECK(hit == 10 * COUNT_OF(t), "%d times SIGBUS", (int)hit);
  return check_end();
}
