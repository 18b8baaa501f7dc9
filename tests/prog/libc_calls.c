/* libc functions that lock, allocate or use thread-local state inside, called by many threads at once. */
#include "net.h"

#include <locale.h>
#include <netdb.h>
#include <pwd.h>
#include <search.h>
#include <stdatomic.h>
#include <wchar.h>

static void* memory(void* argument) {
  unsigned seed = (unsigned)(long)argument + 1;
  enum { SLOTS = 64 };
  unsigned char* slot[SLOTS] = {0};
  size_t size[SLOTS] = {0};
  for (int i = 0; i < 4000; i++) {
    int k = rand_r(&seed) % SLOTS;
    unsigned char want = (unsigned char)(k + (long)argument);
    if (slot[k]) {
      CHECK(slot[k][0] == want && slot[k][size[k] - 1] == want, "somebody else wrote into my memory");
      free(slot[k]);
      slot[k] = NULL;
    } else {
      size[k] = 1 + (size_t)rand_r(&seed) % (i % 100 == 0 ? 300000 : 3000);
      slot[k] = i % 3 ? malloc(size[k]) : aligned_alloc(64, size[k] = (size[k] + 63) / 64 * 64);
      NEED(slot[k]);
      slot[k][0] = slot[k][size[k] - 1] = want;
    }
    if (i % 500 == 0) pause_ms(1);
  }
  for (int k = 0; k < SLOTS; k++) free(slot[k]);
  return NULL;
}

/* Memory that one thread allocates and another frees. */
static int handover[2];
static void* give(void* unused) {
  (void)unused;
  for (int i = 0; i < 500; i++) {
    char* p = malloc(1 + (size_t)i * 7);
    p[0] = 'g';
    NEED(write(handover[1], &p, sizeof p) == sizeof p);
  }
  return NULL;
}
static void* take(void* unused) {
  (void)unused;
  char* p;
  for (int i = 0; i < 500; i++) {
    NEED(read_all(handover[0], &p, sizeof p));
    CHECK(p[0] == 'g', "handed-over memory");
    free(p);
  }
  return NULL;
}

static void* names(void* unused) {
  (void)unused;
  struct addrinfo hints, *list = NULL;
  memset(&hints, 0, sizeof hints);
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  for (int i = 0; i < 5; i++) {
    int r = getaddrinfo("localhost", "80", &hints, &list);
    CHECK(r == 0, "getaddrinfo: %s", gai_strerror(r));
    if (r == 0) {
      struct sockaddr_in* a = (struct sockaddr_in*)list->ai_addr;
      CHECK(a->sin_port == htons(80) && ntohl(a->sin_addr.s_addr) >> 24 == 127, "localhost");
      freeaddrinfo(list);
    }
    char host[64], service[16];
    struct sockaddr_in a = loopback();
    a.sin_port = htons(1234);
    CHECK(getnameinfo((struct sockaddr*)&a, sizeof a, host, sizeof host, service, sizeof service,
                      NI_NUMERICHOST | NI_NUMERICSERV) == 0 &&
              !strcmp(host, "127.0.0.1") && !strcmp(service, "1234"),
          "getnameinfo");
    char buffer[2048];
    struct passwd entry, *found = NULL;
    CHECK(getpwnam_r("root", &entry, buffer, sizeof buffer, &found) == 0 && found && entry.pw_uid == 0,
          "getpwnam_r");
    CHECK(getpwuid(0) != NULL, "getpwuid");
  }
  return NULL;
}

static int compare(const void* a, const void* b) { return *(const int*)a - *(const int*)b; }
static void* others(void* argument) {
  for (int i = 0; i < 30; i++) {
    char text[100];
    time_t t = 86400L * 365 * (1 + i);
    struct tm tm;
    CHECK(localtime_r(&t, &tm) && mktime(&tm) == t, "localtime_r and mktime");
    CHECK(strftime(text, sizeof text, "%Y-%m-%d", &tm) == 10, "strftime");
    CHECK(strstr(strerror(ENOENT), "No such file") != NULL, "strerror: %s", strerror(ENOENT));
    snprintf(text, sizeof text, "%s", strerror(100000 + (int)(long)argument)); /* in a buffer of the thread */
    CHECK(strstr(text, "Unknown error") != NULL, "strerror of an unknown error: %s", text);
    CHECK(!getenv("CHECK_NONE"), "getenv");
    int numbers[2000];
    unsigned seed = (unsigned)i;
    for (int k = 0; k < 2000; k++) numbers[k] = rand_r(&seed) % 1000;
    qsort(numbers, 2000, sizeof numbers[0], compare);
    for (int k = 1; k < 2000; k++) CHECK(numbers[k - 1] <= numbers[k], "qsort");
    wchar_t wide[16];
    CHECK(mbstowcs(wide, "wide", 16) == 4 && wcslen(wide) == 4, "mbstowcs");
    (void)random();
    (void)drand48();
    locale_t own = newlocale(LC_ALL_MASK, "C", (locale_t)0), old = uselocale(own);
    pause_ms(1);
    CHECK(uselocale((locale_t)0) == own, "the locale changed in a sleep");
    uselocale(old);
    freelocale(own);
    FILE* f = tmpfile();
    CHECK(f && fprintf(f, "%d", i) > 0 && fclose(f) == 0, "tmpfile");
    char* memory_text = NULL;
    size_t length = 0;
    f = open_memstream(&memory_text, &length);
    fprintf(f, "%s %d", "memory", i);
    fclose(f);
    CHECK(memory_text && !strncmp(memory_text, "memory ", 7) && length >= 8, "open_memstream");
    free(memory_text);
  }
  return NULL;
}

int main(void) {
  check_begin();
  static void* (*const parts[])(void*) = {memory, names, others};
  static const char* const part_name[] = {"malloc", "names and addresses", "others"};
  pthread_t t[16];
  for (int i = 0; i < COUNT_OF(parts); i++) {
    STAGE(part_name[i]);
    for (long k = 0; k < 16; k++) t[k] = start_thread(parts[i], (void*)k);
    parts[i]((void*)99);
    for (int k = 0; k < 16; k++) join_thread(t[k]);
  }
  STAGE("memory handed over");
  NEED(pipe(handover) == 0);
  for (int i = 0; i < 8; i++) t[i] = start_thread(i % 2 ? give : take, NULL);
  for (int i = 0; i < 8; i++) join_thread(t[i]);
  return check_end();
}
