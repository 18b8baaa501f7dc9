/* Regular files, /dev files and directories in threads: nothing about them changes, positions are shared as natively. */
#include "net.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

static char name[128];

static void* own_file(void* argument) {
  char path[160], data[5000], back[5000];
  snprintf(path, sizeof path, "%s.%ld", name, (long)argument);
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  NEED(fd >= 0);
  fill_stream(data, 0, sizeof data);
  struct iovec parts[2] = {{back, 100}, {back + 100, sizeof back - 100}};
  CHECK(write(fd, data, sizeof data) == sizeof data, "write");
  CHECK(lseek(fd, 0, SEEK_CUR) == sizeof data, "position");
  CHECK(read(fd, back, 1) == 0, "end of file");
  CHECK(lseek(fd, 0, SEEK_SET) == 0 && read(fd, back, 10) == 10 && is_stream(back, 0, 10),
        "read at the start");
  CHECK(pread(fd, back, 100, 1000) == 100 && is_stream(back, 1000, 100), "pread");
  CHECK(lseek(fd, 0, SEEK_CUR) == 10, "pread moved the position");
  CHECK(lseek(fd, 0, SEEK_SET) == 0 && readv(fd, parts, 2) == sizeof data && is_stream(back, 0, sizeof data),
        "readv");
  CHECK(pwrite(fd, "XY", 2, 4) == 2 && pread(fd, back, 4, 3) == 4 && back[1] == 'X' && back[2] == 'Y',
        "pwrite");
  CHECK(lseek(fd, 0, SEEK_SET) == 0 && writev(fd, (struct iovec[]){{data, 7}, {data + 7, 3}}, 2) == 10,
        "writev");
  CHECK(pread(fd, back, 10, 0) == 10 && is_stream(back, 0, 10), "after writev");
  int more = open(path, O_WRONLY | O_APPEND);
  CHECK(write(more, "end", 3) == 3 && pread(fd, back, 8, sizeof data) == 3 && !memcmp(back, "end", 3),
        "append");
  close(more);
  CHECK(fsync(fd) == 0 && ftruncate(fd, 100) == 0, "fsync and ftruncate");
  struct stat st;
  CHECK(fstat(fd, &st) == 0 && st.st_size == 100, "size");
  int pair[2];
  off_t from = 0;
  stream_pair(pair);
  CHECK(sendfile(pair[1], fd, &from, 100) == 100 && from == 100, "sendfile");
  CHECK(read_all(pair[0], back, 100) && is_stream(back, 0, 100), "what sendfile sent");
  close(pair[0]);
  close(pair[1]);
  close(fd);
  CHECK(unlink(path) == 0, "unlink");
  return NULL;
}

/* Threads that read through one descriptor share its position: each record is read once. */
static int common;
static void* share(void* argument) {
  long record, sum = 0;
  ssize_t n;
  while ((n = read(common, &record, sizeof record)) == sizeof record) sum += record;
  CHECK(n == 0, "read: %zd", n);
  (void)argument;
  return (void*)sum;
}

static void* devices(void* unused) {
  (void)unused;
  char b[4096];
  int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_RDWR),
      random = open("/dev/urandom", O_RDONLY);
  memset(b, 1, sizeof b);
  CHECK(read(zero, b, sizeof b) == sizeof b && b[0] == 0 && b[4095] == 0, "/dev/zero");
  CHECK(read(null, b, sizeof b) == 0 && write(null, b, sizeof b) == sizeof b, "/dev/null");
  CHECK(read(random, b, 100) == 100, "/dev/urandom");
  close(zero);
  close(null);
  close(random);
  int full = open("/dev/full", O_WRONLY);
  if (full >= 0) {
    CHECK(write(full, "x", 1) == -1 && errno == ENOSPC, "/dev/full: errno %d", errno);
    close(full);
  }
  int proc = open("/proc/self/status", O_RDONLY);
  CHECK(read(proc, b, sizeof b) > 100, "/proc/self/status");
  close(proc);
  DIR* d = opendir("/proc/self");
  int entries = 0;
  while (readdir(d)) entries++;
  CHECK(entries > 10, "%d entries in /proc/self", entries);
  closedir(d);
  return NULL;
}

int main(void) {
  check_begin();
  const char* dir = getenv("TMPDIR");
  pthread_t t[10];
  snprintf(name, sizeof name, "%.80s/check-files-%d", dir ? dir : "/tmp", (int)getpid());
  STAGE("a file for each thread");
  for (long i = 0; i < 10; i++) t[i] = start_thread(own_file, (void*)i);
  own_file((void*)99);
  for (int i = 0; i < 10; i++) join_thread(t[i]);
  STAGE("one descriptor for all");
  common = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
  NEED(common >= 0 && unlink(name) == 0);
  for (long v = 1; v <= 2000; v++) NEED(write(common, &v, sizeof v) == sizeof v);
  lseek(common, 0, SEEK_SET);
  long sum = 0;
  for (int i = 0; i < 10; i++) t[i] = start_thread(share, NULL);
  for (int i = 0; i < 10; i++) sum += (long)join_thread(t[i]);
  CHECK(sum == 2001000, "sum of the records %ld", sum);
  STAGE("devices");
  join_thread(start_thread(devices, NULL));
  devices(NULL);
  return check_end();
}
