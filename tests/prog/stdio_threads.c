/* stdio in threads: streams on pipes and sockets that block inside libc, locked streams, one stream for many threads. */
#include "net.h"

/* fgets, getline, fread and fscanf that wait for data inside libc. */
static void* talk(void* argument) {
  FILE* out = fdopen(*(int*)argument, "w");
  setvbuf(out, NULL, _IOLBF, 0);
  for (int i = 0; i < 10; i++) {
    pause_ms(2);
    fprintf(out, "line %d\n", i);
  }
  for (int i = 0; i < 10; i++) {
    pause_ms(2);
    fprintf(out, "%d %d\n", i, i * i);
  }
  fclose(out);
  return NULL;
}

static void* listen_to(void* unused) {
  (void)unused;
  int p[2], a, b, i;
  char line[64], want[64], *grown = NULL;
  size_t room = 0;
  NEED(pipe(p) == 0);
  pthread_t t = start_thread(talk, &p[1]);
  FILE* in = fdopen(p[0], "r");
  for (i = 0; i < 10; i++) {
    snprintf(want, sizeof want, "line %d\n", i);
    if (i % 2)
      CHECK(fgets(line, sizeof line, in) && !strcmp(line, want), "fgets: '%s'", line);
    else
      CHECK(getline(&grown, &room, in) == (ssize_t)strlen(want) && !strcmp(grown, want), "getline");
  }
  for (i = 0; fscanf(in, "%d %d", &a, &b) == 2; i++) CHECK(a == i && b == i * i, "fscanf: %d %d", a, b);
  CHECK(i == 10 && feof(in) && !ferror(in), "%d pairs", i);
  fclose(in);
  free(grown);
  join_thread(t);
  return NULL;
}

/* Many threads print on one stream: lines stay whole; a locked stream belongs to one thread also while it sleeps. */
enum { WRITERS = 20, LINES = 60 };
static FILE* shared;
static void* print_lines(void* argument) {
  long id = (long)argument;
  for (int i = 0; i < LINES; i++) {
    if (i % 10 == 0) {
      flockfile(shared);
      fprintf(shared, "%ld", id);
      if (i % 20 == 0) pause_ms(1);
      fputs(" says ", shared);
      flockfile(shared); /* it counts */
      fprintf(shared, "%d\n", i);
      funlockfile(shared);
      funlockfile(shared);
    } else if (i % 10 == 1 && ftrylockfile(shared) == 0) {
      fprintf(shared, "%ld says %d\n", id, i);
      funlockfile(shared);
    } else {
      fprintf(shared, "%ld says %d\n", id, i);
    }
  }
  return NULL;
}

static void* count_lines(void* argument) {
  FILE* in = fdopen(*(int*)argument, "r");
  static unsigned char seen[WRITERS][LINES];
  char line[64];
  long n = 0, id;
  int i, end;
  while (fgets(line, sizeof line, in)) {
    end = 0;
    int fields = sscanf(line, "%ld says %d%n", &id, &i, &end);
    int good = fields == 2 && line[end] == '\n' && id >= 0 && id < WRITERS && i >= 0 && i < LINES;
    CHECK(good, "a torn line: %s", line);
    if (good) CHECK(++seen[id][i] == 1, "line %d of %ld came twice", i, id);
    n++;
  }
  fclose(in);
  return (void*)n;
}

static void one_stream(void) {
  STAGE("one stream for many");
  int p[2];
  pthread_t t[WRITERS];
  NEED(pipe(p) == 0);
  shared = fdopen(p[1], "w");
  setvbuf(shared, NULL, _IOFBF, 256); /* small: it is flushed, and blocks, all the time */
  pthread_t reader = start_thread(count_lines, &p[0]);
  for (long i = 0; i < WRITERS; i++) t[i] = start_thread(print_lines, (void*)i);
  for (int i = 0; i < WRITERS; i++) join_thread(t[i]);
  fclose(shared);
  CHECK(join_thread(reader) == (void*)(long)(WRITERS * LINES), "number of lines");
}

/* A request and answer protocol with one FILE each way, the commonest shape of old servers. */
static void* line_server(void* argument) {
  int fd = *(int*)argument;
  FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
  char line[128];
  while (fgets(line, sizeof line, in)) {
    line[strcspn(line, "\n")] = 0;
    fprintf(out, "[%s]\n", line);
    fflush(out);
  }
  fclose(in);
  fclose(out);
  return NULL;
}
static void* line_client(void* argument) {
  int pair[2];
  char line[128], want[128];
  tcp_pair(pair);
  pthread_t server = start_thread(line_server, &pair[0]);
  FILE *in = fdopen(pair[1], "r"), *out = fdopen(dup(pair[1]), "w");
  for (int i = 0; i < 50; i++) {
    fprintf(out, "request %d of %ld\n", i, (long)argument);
    fflush(out);
    snprintf(want, sizeof want, "[request %d of %ld]\n", i, (long)argument);
    CHECK(fgets(line, sizeof line, in) && !strcmp(line, want), "answer %s", line);
  }
  shutdown(pair[1], SHUT_WR);
  CHECK(!fgets(line, sizeof line, in) && feof(in), "end of file");
  fclose(in);
  fclose(out);
  join_thread(server);
  return NULL;
}

int main(void) {
  check_begin();
  pthread_t t[20];
  STAGE("reads inside libc");
  for (int i = 0; i < 20; i++) t[i] = start_thread(listen_to, NULL);
  listen_to(NULL);
  for (int i = 0; i < 20; i++) join_thread(t[i]);
  one_stream();
  STAGE("lines over TCP");
  for (long i = 0; i < 20; i++) t[i] = start_thread(line_client, (void*)i);
  for (int i = 0; i < 20; i++) join_thread(t[i]);
  return check_end();
}
