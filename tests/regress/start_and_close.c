/* The first thread of a process, in its first instant: what it closes is closed, so the other end gets EPIPE at once. */
#include "../prog/net.h"

enum { PROCESSES = 150, PAIRS = 40 };

static void* closes(void* unused) {
  for (int i = 0; i < PAIRS; i++) {
    int pair[2];
    stream_pair(pair);
    close(pair[0]);
    ssize_t n = send(pair[1], "x", 1, MSG_NOSIGNAL);
    CHECK(n == -1 && errno == EPIPE, "pair %d: %zd, errno %d", i, n, errno);
    close(pair[1]);
  }
  return unused;
}

static int child(void* unused) {
  (void)unused;
  join_thread(start_thread(closes, NULL));
  return check_findings != 0;
}

int main(void) {
  check_begin();
  for (int i = 0; i < PROCESSES; i++) CHECK(exited_with(in_child(child, NULL), 0), "process %d", i);
  return check_end();
}
