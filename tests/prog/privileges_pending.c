/*
 * Privileges dropped while calls are under way: what these do when they go on, they do as the new user, whichever thread changes
 * it: files that are opened, peers that are told who connects, signals that are refused. As another user than root nothing changes.
 */
#include "net.h"

#include <grp.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { OTHER = 65534, THREADS = 14 };
static int go[2], listening;
static struct sockaddr_un where;
static char folder[] = "/tmp/privileges_pending.XXXXXX";
static atomic_int ready, finished;
static uid_t want;
static sem_t changed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void as_new_user(long id, const char* how) {
  char file[200];
  struct stat s;
  snprintf(file, sizeof file, "%s/file%ld", folder, id);
  int fd = open(file, O_CREAT | O_EXCL | O_WRONLY, 0600);
  CHECK(fd >= 0, "%s: open: %s", how, strerror(errno));
  CHECK(fd < 0 || (fstat(fd, &s) == 0 && s.st_uid == want), "%s: the new file belongs to %d", how, (int)s.st_uid);
  if (fd >= 0) close(fd);
  unlink(file);
  CHECK(kill(1, 0) == (want == 0 ? 0 : -1), "%s: may signal process 1", how);
  CHECK(setuid(0) == (want == 0 ? 0 : -1), "%s: becomes root again", how);
  CHECK(open("/etc/shadow", O_RDONLY) == -1 || want == 0, "%s: reads what root alone may", how);
}

static void* thread(void* argument) {
  long id = (long)argument;
  char c;
  const char* how = "?";
  struct pollfd f = {go[0], POLLIN, 0};
  ready++;
  switch (id % 7) {
    case 0:
      how = "read";
      CHECK(read(go[0], &c, 1) == 1, "read");
      break;
    case 1:
      how = "poll";
      while (poll(&f, 1, -1) < 0) {
      }
      break;
    case 2:
      how = "sem_wait";
      while (sem_wait(&changed) != 0) {
      }
      break;
    case 3:
      how = "mutex";
      pthread_mutex_lock(&lock);
      pthread_mutex_unlock(&lock);
      break;
    case 4:
      how = "sleep";
      while (getuid() != want) pause_ms(2);
      break;
    case 5:
      how = "computing";
      while (syscall(SYS_getuid) != (long)want) {
      }
      break;
    default: {
      how = "connect";
      int fd = socket(AF_UNIX, SOCK_STREAM, 0);
      CHECK(connect(fd, (struct sockaddr*)&where, sizeof where) == 0, "connect: %s", strerror(errno));
      CHECK(read(fd, &c, 1) == 1, "a byte from the server");
      close(fd);
    }
  }
  as_new_user(id, how);
  finished++;
  return NULL;
}

/* Accepts what there is; the first was connected before the change. */
static void serve(int n) {
  for (int i = 0; i < n; i++) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    int fd = accept(listening, NULL, NULL);
    NEED(fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0);
    /* those that waited for room in the queue connect as the new user */
    if (i >= 1) CHECK(peer.uid == want || peer.uid == 0, "connected as %d", (int)peer.uid);
    CHECK(write(fd, "x", 1) == 1, "write");
    close(fd);
  }
}

static void* drop(void* argument) {
  (void)argument;
  if (want == 0) return NULL;
  CHECK(setgroups(0, NULL) == 0 && setgid(OTHER) == 0 && setuid(OTHER) == 0, "change: %s", strerror(errno));
  return NULL;
}

static int body(void* in_thread) {
  pthread_t t[THREADS];
  alarm(20);
  want = geteuid() == 0 ? OTHER : geteuid();
  NEED(pipe(go) == 0);
  sem_init(&changed, 0, 0);
  pthread_mutex_lock(&lock);
  where.sun_family = AF_UNIX;
  snprintf(where.sun_path, sizeof where.sun_path, "%s/socket", folder);
  listening = socket(AF_UNIX, SOCK_STREAM, 0);
  NEED(bind(listening, (struct sockaddr*)&where, sizeof where) == 0 && listen(listening, 0) == 0);
  NEED(chmod(where.sun_path, 0777) == 0);
  for (long i = 0; i < THREADS; i++) t[i] = start_thread(thread, (void*)i);
  CHECK(EVENTUALLY(ready == THREADS), "not all are ready");
  pause_ms(30);
  if (in_thread) join_thread(start_thread(drop, NULL));
  else drop(NULL);
  CHECK(write(go[1], "xxxx", 4) == 4, "write");
  for (int i = 0; i < THREADS; i++) sem_post(&changed);
  pthread_mutex_unlock(&lock);
  serve(THREADS / 7);
  for (int i = 0; i < THREADS; i++) join_thread(t[i]);
  CHECK(finished == THREADS, "%d finished", (int)finished);
  unlink(where.sun_path);
  return check_findings != 0;
}

int main(void) {
  check_begin();
  NEED(mkdtemp(folder) && chmod(folder, 0777) == 0);
  for (long in_thread = 0; in_thread < 2; in_thread++) {
    STAGE(in_thread ? "changed by a thread" : "changed by main");
    CHECK(exited_with(in_child(body, (void*)in_thread), 0), "the child");
    char path[200];
    snprintf(path, sizeof path, "%s/socket", folder);
    unlink(path);
  }
  rmdir(folder);
  return check_end();
}
