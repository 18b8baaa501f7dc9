/*
 * The number of a file that fclose closed belongs to a pipe or a socket next: what comes in parts is read in parts, what has a
 * time-out times out, and who waits for it does not stop the others.
 */
#include "net.h"

#include <stdatomic.h>

static int file_number(void) {
  char text[100];
  FILE* f = fopen("/proc/self/exe", "r");
  NEED(f && fread(text, 1, sizeof text, f) == sizeof text);
  int fd = fileno(f);
  fclose(f);
  return fd;
}

static void* reads(void* unused) {
  char text[100];
  int p[2], s[2], number = file_number();
  NEED(pipe(p) == 0);
  CHECK(p[0] == number, "the pipe is %d, the file was %d", p[0], number);
  CHECK(write(p[1], "abc", 3) == 3 && read(p[0], text, 100) == 3, "a part of a pipe");
  CHECK(write(p[1], "abc", 3) == 3 && close(p[1]) == 0, "write");
  CHECK(read(p[0], text, 100) == 3 && read(p[0], text, 100) == 0, "the end of a pipe");
  close(p[0]);

  number = file_number();
  stream_pair(s);
  CHECK(s[0] == number, "the socket is %d, the file was %d", s[0], number);
  CHECK(write(s[1], "abc", 3) == 3 && read(s[0], text, 100) == 3, "a part of a socket");
  number = s[0];
  set_timeout(number, SO_RCVTIMEO, 50);
  CHECK(read(number, text, 1) == -1 && errno == EAGAIN, "a time-out: errno %d", errno);
  close(s[0]);
  close(s[1]);
  return unused;
}

static int p[2];
static atomic_int ready_to_read;
static void* waits(void* unused) {
  char text[10];
  int number = file_number();
  NEED(pipe(p) == 0);
  CHECK(p[0] == number, "the pipe is %d, the file was %d", p[0], number);
  ready_to_read = 1;
  CHECK(read(p[0], text, sizeof text) == 2, "what was waited for");
  return unused;
}
static void* goes_on(void* unused) {
  while (!ready_to_read) usleep(1000);
  usleep(30000);
  CHECK(write(p[1], "ab", 2) == 2, "write");
  return unused;
}

int main(void) {
  check_begin();
  STAGE("parts and ends");
  join_thread(start_thread(reads, NULL));
  STAGE("a wait");
  pthread_t a = start_thread(waits, NULL), b = start_thread(goes_on, NULL);
  join_thread(a);
  join_thread(b);
  return check_end();
}
