/*
 * What libc keeps for each thread: the resolver's state, the locale, the last error of the loader, h_errno, the buffers of strerror and
 * strsignal. Each thread has its own, fresh ones, also where it follows another that left a mess.
 */
#include "check.h"

#include <arpa/nameser.h>
#include <dlfcn.h>
#include <locale.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <stdatomic.h>

enum { THREADS = 12, WAVES = 6 };
static void* states[THREADS];
static pthread_barrier_t all;

static void* thread(void* argument) {
  long id = (long)argument;
  char text[64];
  struct __res_state* state = &_res;
  states[id] = state;
  pthread_barrier_wait(&all);
  for (int i = 0; i < THREADS; i++) CHECK(i == id || states[i] != state, "two threads have one resolver state");
  CHECK((state->options & RES_INIT) == 0, "a used resolver state in a new thread");
  CHECK(h_errno == 0 && errno == 0, "h_errno %d, errno %d in a new thread", h_errno, errno);
  CHECK(dlerror() == NULL, "an error of the loader in a new thread");
  CHECK(uselocale((locale_t)0) == LC_GLOBAL_LOCALE, "another locale in a new thread");
  CHECK(res_init() == 0, "res_init");
  state->retry = 20 + (int)id;
  state->retrans = 30 + (int)id;
  h_errno = 40 + (int)id;
  CHECK(dlopen("/nonexistent.so", RTLD_NOW) == NULL, "dlopen");
  const char* error_text = strerror(1000 + (int)id);
  snprintf(text, sizeof text, "Unknown error %ld", 1000 + id);
  locale_t own = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  NEED(own != (locale_t)0);
  uselocale(own);
  for (int i = 0; i < 5; i++) {
    usleep(300);
    sched_yield();
    CHECK(&_res == state && state->retry == 20 + (int)id && state->retrans == 30 + (int)id, "the resolver's state changed");
    CHECK(h_errno == 40 + (int)id, "h_errno changed");
    CHECK(strcmp(error_text, text) == 0, "strerror: %s", error_text);
    CHECK(uselocale((locale_t)0) == own, "the locale changed");
  }
  /* half of them leave everything as it is, but the locale, which is freed */
  if (id % 2) {
    const char* said = dlerror();
    CHECK(said && strstr(said, "nonexistent"), "dlerror: %s", said ? said : "nothing");
    uselocale(LC_GLOBAL_LOCALE);
    freelocale(own);
    res_nclose(state);
  } else {
    uselocale(LC_GLOBAL_LOCALE);
    freelocale(own);
    errno = EDOM;
  }
  return NULL;
}

/* A name look-up in each of many threads at once. */
static void* look_up(void* unused) {
  struct addrinfo hints, *found = NULL;
  memset(&hints, 0, sizeof hints);
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  for (int i = 0; i < 5; i++) {
    int error = getaddrinfo("localhost", "80", &hints, &found);
    CHECK(error == 0, "getaddrinfo: %s", gai_strerror(error));
    if (error != 0) continue;
    struct sockaddr_in* a = (struct sockaddr_in*)found->ai_addr;
    CHECK(ntohl(a->sin_addr.s_addr) == INADDR_LOOPBACK && ntohs(a->sin_port) == 80, "another address");
    freeaddrinfo(found);
  }
  return unused;
}

int main(void) {
  check_begin();
  pthread_t t[THREADS];
  pthread_barrier_init(&all, NULL, THREADS);
  for (int wave = 0; wave < WAVES; wave++) {
    STAGE("own states");
    for (long i = 0; i < THREADS; i++) t[i] = start_thread(thread, (void*)i);
    for (int i = 0; i < THREADS; i++) join_thread(t[i]);
    STAGE("look-ups");
    for (int i = 0; i < THREADS; i++) t[i] = start_thread(look_up, NULL);
    for (int i = 0; i < THREADS; i++) join_thread(t[i]);
  }
  return check_end();
}
