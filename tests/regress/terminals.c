/* Terminals, inotify and FIFOs: files whose reads the kernel cannot try without waiting. Others run meanwhile. */
#include "../prog/net.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <termios.h>

static int master, slave, watch;
static atomic_int answered;
static char dir[128];

static void* read_lines(void* unused) {
  (void)unused;
  char line[64];
  for (int i = 0; i < 5; i++) {
    ssize_t n = read(slave, line, sizeof line);
    CHECK(n == 6 && !memcmp(line, "line", 4) && line[4] == '0' + i && line[5] == '\n', "line %d: %zd, errno %d", i, n, errno);
    CHECK(write(slave, "ok", 2) == 2, "write: errno %d", errno);
    answered++;
  }
  return NULL;
}

static void* read_watch(void* unused) {
  (void)unused;
  char text[4096];
  ssize_t n = read(watch, text, sizeof text);
  struct inotify_event* e = (struct inotify_event*)text;
  CHECK(n > 0 && (e->mask & IN_CREATE), "inotify: %zd, errno %d", n, errno);
  return NULL;
}

static void* read_fifo(void* argument) {
  char c;
  int fd = open(argument, O_RDONLY);
  CHECK(fd >= 0, "open of a FIFO: errno %d", errno);
  CHECK(read(fd, &c, 1) == 1 && c == 'f', "FIFO: errno %d", errno);
  CHECK(read(fd, &c, 1) == 0, "end of the FIFO");
  close(fd);
  return NULL;
}

static void* null_and_zero(void* unused) {
  (void)unused;
  char b[100000], c = 1;
  int null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDONLY), random = open("/dev/urandom", O_RDONLY);
  CHECK(write(null, b, sizeof b) == sizeof b && read(null, &c, 1) == 0, "/dev/null");
  memset(b, 1, sizeof b);
  CHECK(read(zero, b, sizeof b) == sizeof b && b[99999] == 0, "/dev/zero");
  CHECK(read(random, b, sizeof b) == sizeof b, "/dev/urandom");
  close(null);
  close(zero);
  close(random);
  return NULL;
}

int main(void) {
  check_begin();
  struct termios raw;
  char name[160], b[16];
  const char* tmp = getenv("TMPDIR");
  snprintf(dir, sizeof dir, "%.80s/check-terminals-XXXXXX", tmp ? tmp : "/tmp");
  NEED(mkdtemp(dir));
  master = posix_openpt(O_RDWR | O_NOCTTY);
  NEED(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
  slave = open(ptsname(master), O_RDWR | O_NOCTTY);
  NEED(slave >= 0 && tcgetattr(slave, &raw) == 0);
  raw.c_lflag &= ~(tcflag_t)ECHO;
  raw.c_oflag &= ~(tcflag_t)OPOST;
  NEED(tcsetattr(slave, TCSANOW, &raw) == 0);
  watch = inotify_init1(IN_CLOEXEC);
  NEED(watch >= 0 && inotify_add_watch(watch, dir, IN_CREATE) >= 0);
  pthread_t lines = start_thread(read_lines, NULL), events = start_thread(read_watch, NULL);
  join_thread(start_thread(null_and_zero, NULL));
  pause_ms(50);
  STAGE("terminal");
  for (int i = 0; i < 5; i++) {
    char line[8];
    snprintf(line, sizeof line, "line%d\n", i);
    CHECK(write(master, line, 6) == 6, "write");
    CHECK(EVENTUALLY(answered == i + 1), "line %d was not answered", i);
    CHECK(read(master, b, sizeof b) == 2 && b[0] == 'o', "the answer");
    pause_ms(10);
  }
  join_thread(lines);
  STAGE("FIFO and inotify");
  snprintf(name, sizeof name, "%s/fifo", dir);
  NEED(mkfifo(name, 0600) == 0);
  join_thread(events);
  pthread_t f = start_thread(read_fifo, name);
  int out = open(name, O_WRONLY);
  pause_ms(30);
  CHECK(write(out, "f", 1) == 1, "write to the FIFO");
  close(out);
  join_thread(f);
  unlink(name);
  rmdir(dir);
  return check_end();
}
