/*
 * Numbers of descriptors that libc closes for itself (fclose, closedir, pclose) come back as other kinds of files:
 * a read of a file that was a pipe is not short, a write to a pipe that was a file is whole and waits for its reader.
 */
#include "../prog/net.h"

#include <dirent.h>

enum { SIZE = 4 << 20 };

static int open_data(char* data) {
  char name[128];
  const char* dir = getenv("TMPDIR");
  snprintf(name, sizeof name, "%.80s/check-reused-XXXXXX", dir ? dir : "/var/tmp");
  int fd = mkstemp(name);
  NEED(fd >= 0);
  unlink(name);
  for (long done = 0; done < SIZE;) {
    ssize_t n = write(fd, data + done, (size_t)(SIZE - done));
    NEED(n > 0);
    done += n;
  }
  fsync(fd);
  return fd;
}

static void* file_after_pipe(void* argument) {
  char *data = argument, *buffer = malloc(SIZE), c;
  int p[2], keep = open_data(data);
  NEED(pipe(p) == 0);
  CHECK(write(p[1], "x", 1) == 1 && read(p[0], &c, 1) == 1, "pipe");
  int number = p[0];
  fclose(fdopen(p[0], "r"));
  int fd = open("/dev/null", O_RDONLY);
  NEED(fd == number);
  fclose(fdopen(fd, "r"));
  NEED(dup(keep) == number);
  for (int i = 0; i < 5; i++) {
    posix_fadvise(number, 0, SIZE, POSIX_FADV_DONTNEED);
    /* some of it in memory, the rest not */
    CHECK(pread(number, buffer, 5000, 0) == 5000, "pread");
    lseek(number, 0, SEEK_SET);
    ssize_t n = read(number, buffer, SIZE);
    CHECK(n == SIZE && !memcmp(buffer, data, SIZE), "read gave %zd of %d", n, SIZE);
    CHECK(read(number, buffer, 10) == 0, "end of file");
  }
  close(number);
  close(keep);
  close(p[1]);
  free(buffer);
  return NULL;
}

static void* consume(void* argument) {
  int fd = *(int*)argument;
  char* buffer = malloc(70000);
  long got = 0;
  ssize_t n;
  while ((n = read(fd, buffer, 70000)) > 0) got += n;
  free(buffer);
  return (void*)got;
}

static void* pipe_after_file(void* argument) {
  char *data = argument, c;
  for (int i = 0; i < 10; i++) {
    DIR* d = opendir("/");
    int number = dirfd(d), p[2];
    errno = 0;
    CHECK(read(number, &c, 1) == -1 && errno == EISDIR, "read of a directory: errno %d", errno);
    closedir(d);
    NEED(pipe(p) == 0);
    if (p[0] != number && p[1] != number) NEED(dup2(p[1], number) == number);
    pthread_t t = start_thread(consume, &p[0]);
    int out = p[0] == number ? p[1] : number;
    ssize_t n = write(out, data, SIZE);
    CHECK(n == SIZE, "write to a pipe gave %zd of %d", n, SIZE);
    if (out != p[1]) close(out);
    close(p[1]);
    CHECK((long)join_thread(t) == SIZE, "read all");
    close(p[0]);
  }
  return NULL;
}

int main(void) {
  check_begin();
  char* data = malloc(SIZE);
  fill_stream(data, 0, SIZE);
  for (int i = 0; i < 2; i++) {
    join_thread(start_thread(file_after_pipe, data));
    join_thread(start_thread(pipe_after_file, data));
  }
  return check_end();
}
