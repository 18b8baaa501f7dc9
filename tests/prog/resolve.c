/*
 * Resolves names of a name server of the test (resolver.py), one in each of many threads at once, all at the same time.
 * Usage: resolve COUNT. host<i>.test is 10.0.i/256.i%256; every tenth name is asked for by TCP.
 */
// run: args=0
#include "net.h"

#include <netdb.h>
#include <stdatomic.h>

static atomic_int arrived;
static int count;

static void* resolve(void* argument) {
  long i = (long)argument;
  char name[64], text[INET_ADDRSTRLEN] = "", want[64];
  struct addrinfo hints, *found = NULL;
  snprintf(name, sizeof name, i % 10 == 9 ? "tcp%ld.test" : "host%ld.test", i);
  snprintf(want, sizeof want, "10.0.%ld.%ld", i / 256, i % 256);
  arrived++;
  while (arrived < count) usleep(1000);
  if (i % 10 == 8) {
    struct hostent host, *result = NULL;
    char buffer[2048];
    int error = 0;
    CHECK(gethostbyname_r(name, &host, buffer, sizeof buffer, &result, &error) == 0 && result, "%s: %d", name, error);
    if (result) inet_ntop(AF_INET, result->h_addr_list[0], text, sizeof text);
  } else {
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    int error = getaddrinfo(name, "80", &hints, &found);
    CHECK(error == 0, "%s: %s", name, gai_strerror(error));
    if (error == 0) {
      inet_ntop(AF_INET, &((struct sockaddr_in*)found->ai_addr)->sin_addr, text, sizeof text);
      CHECK(found->ai_family == AF_INET && found->ai_next == NULL, "%s: other addresses", name);
      freeaddrinfo(found);
    }
  }
  CHECK(!strcmp(text, want), "%s is %s, want %s", name, text, want);
  return NULL;
}

static void* no_name(void* unused) {
  struct addrinfo* found = NULL;
  CHECK(getaddrinfo("127.0.0.1", "80", NULL, &found) == 0 && found, "a number");
  if (found) freeaddrinfo(found);
  return unused;
}

int main(int argc, char** argv) {
  check_begin();
  count = argc > 1 ? atoi(argv[1]) : 0;
  pthread_t* t = calloc((size_t)count + 1, sizeof *t);
  NEED(t);
  for (long i = 0; i < count; i++) t[i] = start_thread(resolve, (void*)i);
  t[count] = start_thread(no_name, NULL);
  for (int i = 0; i <= count; i++) join_thread(t[i]);
  free(t);
  return check_end();
}
