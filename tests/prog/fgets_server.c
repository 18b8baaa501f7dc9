/*
 * A thread for each of 1,000 connections, which reads lines by fgets and answers by dprintf. With "count" it says how many
 * kernel threads the process has while all of them wait.
 */
// run: timeout=60
#include "net.h"

#include <dirent.h>
#include <stdatomic.h>
#include <sys/resource.h>

enum { ROUNDS = 3 };
static int connections = 1000;
static atomic_int answered;

static void* serve(void* argument) {
  int fd = (int)(long)argument, n;
  char line[100];
  FILE* in = fdopen(fd, "r");
  NEED(in);
  while (fgets(line, sizeof line, in)) {
    CHECK(sscanf(line, "question %d", &n) == 1, "the line: %s", line);
    CHECK(dprintf(fd, "answer %d\n", n + 1) > 0, "dprintf");
    answered++;
  }
  fclose(in);
  return NULL;
}

static int kernel_threads(void) {
  int n = 0;
  DIR* d = opendir("/proc/self/task");
  NEED(d);
  for (struct dirent* e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

int main(int argc, char** argv) {
  check_begin();
  struct rlimit files;
  NEED(getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
  setrlimit(RLIMIT_NOFILE, &files);
  if (2 * connections + 100 > (int)files.rlim_cur) connections = (int)files.rlim_cur / 2 - 50;
  int* client = calloc((size_t)connections, sizeof *client);
  pthread_t* t = calloc((size_t)connections, sizeof *t);
  NEED(client && t);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 64 << 10);
  for (int i = 0; i < connections; i++) {
    int pair[2];
    stream_pair(pair);
    client[i] = pair[0];
    NEED(pthread_create(&t[i], &attr, serve, (void*)(long)pair[1]) == 0);
  }
  for (int round = 0; round < ROUNDS; round++) {
    char line[100], want[100];
    int length;
    for (int i = 0; i < connections; i++) {
      length = snprintf(line, sizeof line, "question %d\n", i * ROUNDS + round);
      CHECK(write(client[i], line, (size_t)length) == length, "write");
    }
    for (int i = 0; i < connections; i++) {
      length = snprintf(want, sizeof want, "answer %d\n", i * ROUNDS + round + 1);
      CHECK(read_all(client[i], line, (size_t)length) && !memcmp(line, want, (size_t)length), "answer %d", i);
    }
  }
  CHECK(EVENTUALLY(answered == ROUNDS * connections), "%d answers", (int)answered);
  pause_ms(50);
  if (argc > 1) printf("%d connections, %d kernel threads\n", connections, kernel_threads());
  for (int i = 0; i < connections; i++) close(client[i]);
  for (int i = 0; i < connections; i++) join_thread(t[i]);
  return check_end();
}
