/* An HTTP/1.1 keep-alive server as they have always been written: one thread per connection, blocking reads
 * and writes.
 *
 *   http_threads [-p PORT] [-s STACK_KIB]      the default stack size is the system's */
#define _GNU_SOURCE
#include "http.h"

#include <pthread.h>
#include <stdint.h>

static void* serve(void* argument) {
  int fd = (int)(intptr_t)argument;
  char data[REQUEST_MAX];
  size_t length = 0;
  for (;;) {
    ssize_t got = read(fd, data + length, sizeof data - length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break; /* also when a request does not fit: the read has no room left */
    length += (size_t)got;
    size_t used;
    size_t owed = count_requests(data, length, &used) * ANSWER_LENGTH;
    if (write_answers(fd, &owed) < 0) break;
    length -= used;
    memmove(data, data + used, length);
  }
  close(fd);
  return NULL;
}

int main(int argc, char** argv) {
  int port = 0;
  size_t stack = 0;
  for (int option; (option = getopt(argc, argv, "p:s:")) != -1;) {
    if (option == 'p')
      port = atoi(optarg);
    else if (option == 's')
      stack = (size_t)atol(optarg) << 10;
    else
      return 2;
  }

  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (stack && (errno = pthread_attr_setstacksize(&attributes, stack))) die("stack size");

  int listener = listen_and_say(port);
  for (;;) {
    int fd = accept_connection(listener, 0);
    if (fd < 0) continue;
    pthread_t thread;
    int error = pthread_create(&thread, &attributes, serve, (void*)(intptr_t)fd);
    if (error) {
      fprintf(stderr, "http_threads: pthread_create: %s\n", strerror(error));
      close(fd);
    }
  }
}
