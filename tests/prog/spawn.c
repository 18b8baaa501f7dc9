/* system, popen, posix_spawn, vfork and exec from threads beside sleeping ones; masks and descriptors of the children. */
#include "net.h"

#include <spawn.h>

extern char** environ;
static int park[2];

static void* sleeper(void* unused) {
  (void)unused;
  char c;
  CHECK(read(park[0], &c, 1) == 0, "the sleeper's pipe");
  return NULL;
}

static int status_of(pid_t pid) {
  int status = -1;
  CHECK(waitpid(pid, &status, 0) == pid, "waitpid: errno %d", errno);
  return status;
}

static void* by_system(void* argument) {
  char command[100];
  int code = 3 + (int)((long)argument % 40);
  snprintf(command, sizeof command, "exit %d", code);
  for (int i = 0; i < 3; i++) {
    int status = system(command);
    CHECK(exited_with(status, code), "system: status %#x, want code %d", status, code);
  }
  CHECK(system(NULL) != 0, "no shell");
  return NULL;
}

static void* by_popen(void* argument) {
  char line[100], want[100];
  long id = (long)argument;
  snprintf(line, sizeof line, "sleep 0.02; echo line %ld; cat; exit 4", id);
  snprintf(want, sizeof want, "line %ld\n", id);
  FILE* f = popen(line, "r");
  NEED(f);
  CHECK(fgets(line, sizeof line, f) && !strcmp(line, want), "popen for reading: %s", line);
  CHECK(!fgets(line, sizeof line, f), "the end of the output");
  CHECK(exited_with(pclose(f), 4), "pclose");
  f = popen("read a; read b; test \"$a$b\" = onetwo", "w");
  NEED(f);
  fputs("one\n", f);
  fflush(f);
  pause_ms(5);
  fputs("two\n", f);
  CHECK(exited_with(pclose(f), 0), "popen for writing");
  return NULL;
}

static void* by_spawn(void* unused) {
  (void)unused;
  int p[2], in[2];
  char text[200] = "";
  pid_t pid;
  posix_spawn_file_actions_t actions;
  char* arguments[] = {(char*)"sh", (char*)"-c", (char*)"read x; echo got $x; exit 6", NULL};
  char* missing[] = {(char*)"none", NULL};
  NEED(pipe2(p, O_CLOEXEC) == 0 && pipe2(in, O_CLOEXEC) == 0);
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, p[1], 1);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  CHECK(posix_spawnp(&pid, "sh", &actions, NULL, arguments, environ) == 0, "posix_spawnp");
  close(p[1]);
  close(in[0]);
  pause_ms(5);
  CHECK(write(in[1], "this\n", 5) == 5, "write");
  ssize_t n = read(p[0], text, sizeof text - 1);
  CHECK(n == 9 && !strcmp(text, "got this\n"), "output '%s'", text);
  CHECK(exited_with(status_of(pid), 6), "exit code");
  close(p[0]);
  close(in[1]);
  posix_spawn_file_actions_destroy(&actions);
  CHECK(posix_spawn(&pid, "/nonexistent/program", NULL, NULL, missing, environ) == ENOENT,
        "a program that is not there");
  return NULL;
}

static void* by_vfork(void* unused) {
  (void)unused;
  static volatile int touched; /* the child shares the memory */
  for (int i = 0; i < 3; i++) {
    int before = touched;
    pid_t pid = vfork();
    if (pid == 0) {
      __atomic_add_fetch(&touched, 1, __ATOMIC_SEQ_CST);
      execl("/bin/sh", "sh", "-c", "exit 5", (char*)NULL);
      _exit(127);
    }
    CHECK(pid > 0 && touched > before, "vfork: %d", (int)pid);
    CHECK(exited_with(status_of(pid), 5), "exit code of the program");
    pid = vfork();
    if (pid == 0) _exit(11);
    CHECK(exited_with(status_of(pid), 11), "exit code after vfork");
    pid = vfork();
    if (pid == 0) {
      execl("/nonexistent/program", "none", (char*)NULL);
      _exit(errno == ENOENT ? 12 : 13);
    }
    CHECK(exited_with(status_of(pid), 12), "a program that is not there");
  }
  return NULL;
}

static void* by_fork_exec(void* unused) {
  (void)unused;
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    char* arguments[] = {(char*)"sh", (char*)"-c", (char*)"test \"$CHECK_VALUE\" = from-exec && exit 9",
                         NULL};
    char* environment[] = {(char*)"CHECK_VALUE=from-exec", (char*)"PATH=/usr/bin:/bin", NULL};
    execvpe("sh", arguments, environment);
    _exit(127);
  }
  CHECK(exited_with(status_of(pid), 9), "exit code of the program");
  return NULL;
}

/* The blocked signals of a child are those of the thread that made it. (A shell may change its mask: none in between.) */
static void child_mask(char* text, int how) {
  char* arguments[] = {(char*)"grep", (char*)"SigBlk", (char*)"/proc/self/status", NULL};
  int p[2];
  pid_t pid = -1;
  NEED(pipe2(p, O_CLOEXEC) == 0);
  fflush(stdout);
  if (how == 0) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, p[1], 1);
    CHECK(posix_spawnp(&pid, "grep", &actions, NULL, arguments, environ) == 0, "posix_spawnp");
    posix_spawn_file_actions_destroy(&actions);
  } else {
    pid = how == 1 ? fork() : vfork();
    if (pid == 0) {
      dup2(p[1], 1);
      execvp("grep", arguments);
      _exit(127);
    }
  }
  close(p[1]);
  ssize_t n = read(p[0], text, 63);
  text[n > 0 ? n : 0] = 0;
  close(p[0]);
  status_of(pid);
}
static void* masks(void* argument) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1); /* 200 in hexadecimal */
  if (argument) pthread_sigmask(SIG_BLOCK, &set, NULL);
  for (int how = 0; how < 3; how++) {
    char text[64] = "";
    child_mask(text, how);
    CHECK(!strcmp(text, argument ? "SigBlk:\t0000000000000200\n" : "SigBlk:\t0000000000000000\n"),
          "way %d: %s", how, text);
  }
  return NULL;
}

int main(void) {
  check_begin();
  static void* (*const parts[])(void*) = {by_system, by_popen, by_spawn, by_vfork, by_fork_exec, masks};
  static const char* const names[] = {"system", "popen", "posix_spawn", "vfork", "fork and exec", "masks"};
  pthread_t s[10], t[6];
  NEED(pipe2(park, O_CLOEXEC) == 0);
  for (int i = 0; i < 10; i++) s[i] = start_thread(sleeper, NULL);
  for (int i = 0; i < COUNT_OF(parts); i++) {
    STAGE(names[i]);
    int n = i == 5 ? 2 : 6;
    for (long k = 0; k < n; k++) t[k] = start_thread(parts[i], (void*)k);
    for (int k = 0; k < n; k++) join_thread(t[k]);
    parts[i](NULL);
  }
  STAGE("the sleepers");
  close(park[1]);
  for (int i = 0; i < 10; i++) join_thread(s[i]);
  return check_end();
}
