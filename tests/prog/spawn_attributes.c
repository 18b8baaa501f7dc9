/*
 * posix_spawn with every attribute and file action, system, popen and vfork, in threads with masks of their own beside waiting
 * ones: what the child finds, and that others go on while the parent of a slow vfork child or a FIFO's opener is suspended.
 */
// cflags: -Wno-deprecated-declarations
#include "check.h"

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>

extern char** environ;
static char self[4096], folder[] = "/tmp/spawn_attributes.XXXXXX";
static atomic_long ticks;
static atomic_int stop;

/* --- the child: "child" as first argument; says what it finds on descriptor 1 */
static unsigned long long in_status(const char* field) {
  char line[300];
  unsigned long long v = 0;
  FILE* f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (strncmp(line, field, strlen(field)) == 0) v = strtoull(line + strlen(field), NULL, 16);
  if (f) fclose(f);
  return v;
}
static int be_child(void) {
  char where[4096] = "";
  int open_ones = 0;
  struct sched_param p = {0};
  sched_getparam(0, &p);
  for (int i = 3; i < 200; i++) open_ones += fcntl(i, F_GETFD) >= 0;
  printf("blocked %llx ignored %llx caught %llx group %d session %d policy %d/%d folder %s descriptors %d nice %d\n",
         in_status("SigBlk:"), in_status("SigIgn:") & 0x2a00, in_status("SigCgt:"), getpgrp() == getpid(), getsid(0) == getpid(),
         sched_getscheduler(0), p.sched_priority, strrchr(getcwd(where, sizeof where) ? where : "/?", '/'), open_ones,
         getpriority(PRIO_PROCESS, 0));
  char line[100];
  while (fgets(line, sizeof line, stdin)) printf("input %s", line);
  return 17;
}

static void* ticker(void* unused) {
  while (!stop) {
    ticks++;
    usleep(500);
  }
  return unused;
}

static int wait_code(pid_t child) {
  int status = -1;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

/* Runs the child with these, and compares what it says. `input` must be closed in the child's place. */
static void spawn_and_compare(const char* what, posix_spawn_file_actions_t* actions, posix_spawnattr_t* attr, int low,
                              const char* want) {
  int p[2];
  char text[600] = "";
  size_t length = 0;
  ssize_t n;
  pid_t child = -1;
  char* arguments[] = {self, (char*)"child", NULL};
  NEED(pipe2(p, O_CLOEXEC) == 0);
  posix_spawn_file_actions_adddup2(actions, p[1], 1);
  if (low) posix_spawn_file_actions_addclosefrom_np(actions, 3);
  int error = posix_spawn(&child, self, actions, attr, arguments, environ);
  CHECK(error == 0, "%s: %s", what, strerror(error));
  close(p[1]);
  while (error == 0 && (n = read(p[0], text + length, sizeof text - 1 - length)) > 0) length += (size_t)n;
  close(p[0]);
  CHECK(error != 0 || exited_with(wait_code(child), 17), "%s: exit code", what);
  CHECK(strcmp(text, want) == 0, "%s: the child says\n  %s  want\n  %s", what, text, want);
}

static void* attributes(void* argument) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attr;
  sigset_t mask, set;
  char file[200], want[600];
  const char* last = strrchr(folder, '/');
  long id = (long)argument;
  sigemptyset(&mask);
  sigaddset(&mask, id % 2 ? SIGUSR1 : SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &mask, NULL);
  unsigned own = id % 2 ? 0x200 : 0x800;

#define BEGIN()                           \
  posix_spawn_file_actions_init(&actions); \
  posix_spawnattr_init(&attr);             \
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0)
#define END()                                 \
  posix_spawn_file_actions_destroy(&actions); \
  posix_spawnattr_destroy(&attr)

  BEGIN(); /* nothing: the thread's mask, the ignored signal, the folder; caught ones become default ones */
  posix_spawn_file_actions_addchdir_np(&actions, folder);
  snprintf(want, sizeof want, "blocked %x ignored 2000 caught 0 group 0 session 0 policy 0/0 folder %s descriptors 0 nice 0\n", own, last);
  spawn_and_compare("no attribute", &actions, &attr, 1, want);
  END();

  BEGIN();
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  posix_spawnattr_setsigmask(&attr, &set);
  sigemptyset(&set);
  sigaddset(&set, SIGALRM);
  posix_spawnattr_setsigdefault(&attr, &set);
  posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_RESETIDS);
  posix_spawnattr_setpgroup(&attr, 0);
  posix_spawn_file_actions_addchdir_np(&actions, folder);
  snprintf(want, sizeof want, "blocked 4000 ignored 0 caught 0 group 1 session 0 policy 0/0 folder %s descriptors 0 nice 0\n", last);
  spawn_and_compare("mask, default, group", &actions, &attr, 1, want);
  END();

  BEGIN();
  struct sched_param other = {0};
  posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSCHEDULER | POSIX_SPAWN_SETSID);
  posix_spawnattr_setschedpolicy(&attr, SCHED_OTHER);
  posix_spawnattr_setschedparam(&attr, &other);
  posix_spawn_file_actions_addchdir_np(&actions, folder);
  snprintf(want, sizeof want, "blocked %x ignored 2000 caught 0 group 1 session 1 policy %d/0 folder %s descriptors 0 nice 0\n", own,
           SCHED_OTHER, last);
  spawn_and_compare("session, scheduler", &actions, &attr, 1, want);
  END();

  /* descriptors: opened, moved onto each other, closed, a folder by its descriptor */
  snprintf(file, sizeof file, "%s/input%ld", folder, id);
  int in = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600), root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  NEED(in >= 0 && root >= 0 && write(in, "one\ntwo\n", 8) == 8);
  close(in);
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attr);
  posix_spawn_file_actions_addfchdir_np(&actions, root);
  posix_spawn_file_actions_addopen(&actions, 0, file, O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, 0, 150);
  posix_spawn_file_actions_addclose(&actions, 0);
  posix_spawn_file_actions_adddup2(&actions, 150, 0);
  posix_spawn_file_actions_addclose(&actions, 150);
  snprintf(want, sizeof want,
           "blocked %x ignored 2000 caught 0 group 0 session 0 policy 0/0 folder / descriptors 0 nice 0\ninput one\ninput two\n", own);
  spawn_and_compare("file actions", &actions, &attr, 1, want);
  END();
  close(root);
  unlink(file);

  /* failures come back as results, and leave nothing behind */
  pid_t child;
  char* arguments[] = {self, (char*)"child", NULL};
  BEGIN();
  posix_spawn_file_actions_addopen(&actions, 5, "/nonexistent/file", O_RDONLY, 0);
  CHECK(posix_spawn(&child, self, &actions, NULL, arguments, environ) == ENOENT, "an action that fails");
  END();
  BEGIN();
  posix_spawn_file_actions_adddup2(&actions, 190, 5);
  CHECK(posix_spawn(&child, self, &actions, NULL, arguments, environ) == EBADF, "dup2 of a closed descriptor");
  END();
  pthread_sigmask(SIG_SETMASK, NULL, &set);
  CHECK(sigismember(&set, id % 2 ? SIGUSR1 : SIGUSR2) && !sigismember(&set, SIGTERM), "the thread's own mask changed");
  return NULL;
}

/* An action that waits: the FIFO's other end is opened by another thread of this process. */
static char fifo[200];
static void* open_writer(void* unused) {
  long before = ticks;
  CHECK(EVENTUALLY(ticks > before + 5), "no other thread goes on");
  int fd = open(fifo, O_WRONLY | O_CLOEXEC);
  CHECK(fd >= 0 && write(fd, "by fifo\n", 8) == 8, "fifo: %s", strerror(errno));
  close(fd);
  return unused;
}
static void waiting_action(void) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attr;
  snprintf(fifo, sizeof fifo, "%s/fifo", folder);
  NEED(mkfifo(fifo, 0600) == 0);
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attr);
  posix_spawn_file_actions_addopen(&actions, 0, fifo, O_RDONLY, 0);
  posix_spawn_file_actions_addchdir_np(&actions, "/");
  pthread_t t = start_thread(open_writer, NULL);
  spawn_and_compare("FIFO", &actions, &attr, 1,
                    "blocked 0 ignored 2000 caught 0 group 0 session 0 policy 0/0 folder / descriptors 0 nice 0\ninput by fifo\n");
  join_thread(t);
  unlink(fifo);
  END();
}
static void* waiting_action_thread(void* unused) {
  waiting_action();
  return unused;
}

/* A vfork child that takes its time, and uses hooks: only its parent waits. */
static void* slow_vfork(void* unused) {
  int p[2];
  char c = 0;
  NEED(pipe2(p, O_CLOEXEC) == 0);
  long before = ticks;
  pid_t child = vfork();
  if (child == 0) {
    struct timespec span = {0, 20000000};
    for (int i = 0; i == 0 || (i < 500 && ticks <= before + 3); i++) nanosleep(&span, NULL); /* the memory is shared */
    if (write(p[1], "x", 1) != 1) _exit(1);
    execl("/bin/sh", "sh", "-c", "exit 21", (char*)NULL);
    _exit(2);
  }
  CHECK(ticks > before + 3, "no other thread went on meanwhile");
  CHECK(read(p[0], &c, 1) == 1 && c == 'x', "the pipe");
  CHECK(exited_with(wait_code(child), 21), "the program");
  close(p[0]);
  close(p[1]);
  return unused;
}

/* A shell changes its mask in 1 of 2 ways, so what it started is asked. */
static void* shells(void* argument) {
  sigset_t mask;
  char command[5000], line[600];
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR2);
  if (argument) pthread_sigmask(SIG_BLOCK, &mask, NULL);
  snprintf(command, sizeof command, "exec %s child </dev/null", self);
  FILE* f = popen(command, "r");
  NEED(f && fgets(line, sizeof line, f));
  CHECK(strncmp(line, argument ? "blocked 800 " : "blocked 0 ", argument ? 12 : 10) == 0, "popen: %s", line);
  CHECK(exited_with(pclose(f), 17), "pclose");
  snprintf(command, sizeof command, "exec %s child </dev/null >/dev/null", self);
  CHECK(exited_with(system(command), 17), "system");
  CHECK(killed_by(system("kill -9 $$"), SIGKILL), "system of a command that is killed");
  return NULL;
}

static void caught(int unused) { (void)unused; }

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "child") == 0) return be_child();
  check_begin();
  for (int i = 3; i < 200; i++) fcntl(i, F_SETFD, FD_CLOEXEC);
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  NEED(n > 0 && mkdtemp(folder));
  signal(SIGALRM, check_hang);
  signal(SIGUSR1, caught);
  signal(SIGUSR2, caught);
  signal(SIGALRM, SIG_IGN); /* 2000: the watchdog is the runner's time limit from here on */
  pthread_t t[6], tick[3];
  for (int i = 0; i < 3; i++) tick[i] = start_thread(ticker, NULL);
  STAGE("attributes");
  for (long i = 0; i < COUNT_OF(t); i++) t[i] = start_thread(attributes, (void*)i);
  for (int i = 0; i < COUNT_OF(t); i++) join_thread(t[i]);
  STAGE("an action that waits");
  join_thread(start_thread(waiting_action_thread, NULL));
  waiting_action();
  STAGE("slow vfork");
  for (int i = 0; i < 4; i++) t[i] = start_thread(slow_vfork, NULL);
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  slow_vfork(NULL);
  STAGE("shells");
  for (long i = 0; i < 4; i++) t[i] = start_thread(shells, (void*)(i % 2));
  for (int i = 0; i < 4; i++) join_thread(t[i]);
  stop = 1;
  for (int i = 0; i < 3; i++) join_thread(tick[i]);
  rmdir(folder);
  return check_end();
}
