/*
 * A program that has functions of its own by the names of some of libc, exported. libc does not call them for its own purposes,
 * so nobody else may in its place.
 */
// cflags: -rdynamic
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int pipe(int fds[2]);
unsigned alarm(unsigned seconds);

static int calls;
#define OWN(name)                \
  int name(const char* about) { \
    (void)about;                 \
    calls++;                     \
    return -1;                   \
  }
OWN(read)
OWN(write)
OWN(poll)
OWN(connect)
OWN(send)
OWN(recvfrom)
OWN(waitpid)
OWN(wait4)
OWN(waitid)

static int fds[2];
static void* reader(void* unused) {
  char text[20] = "";
  FILE* in = fdopen(fds[0], "r");
  if (!in || !fgets(text, sizeof text, in) || strcmp(text, "hello\n")) printf("FAIL: fgets: %s\n", text);
  return unused;
}
static void* shell(void* unused) {
  FILE* p = popen("sleep 0.05; echo x", "r");
  char text[20] = "";
  if (!p || !fgets(text, sizeof text, p) || strcmp(text, "x\n") || pclose(p) != 0) printf("FAIL: popen: %s\n", text);
  if (system("exit 3") != 3 << 8) printf("FAIL: system\n");
  return unused;
}

int main(void) {
  pthread_t a, b;
  alarm(25);
  if (pipe(fds) != 0) return 1;
  FILE* out = fdopen(fds[1], "w");
  if (!out || pthread_create(&a, NULL, reader, NULL) != 0 || pthread_create(&b, NULL, shell, NULL) != 0) return 1;
  pthread_join(b, NULL);
  fputs("hello\n", out);
  fflush(out);
  pthread_join(a, NULL);
  if (calls != 0) printf("FAIL: %d calls of the program's own functions\n", calls);
  puts("OK");
  return calls != 0;
}
