// Waiting for child processes, and system(3), which does.
//
// A fiber waits on the ring (IORING_OP_WAITID), for a state that it leaves to be collected (WNOWAIT), and collects it by
// the call itself without waiting, which knows resource usage and all options. Another thread may be faster: then again.
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "interpose/blocking.h"
#include "interpose/entries.h"

extern "C" pid_t __waitpid(pid_t pid, int* status, int options);

namespace vthr {

namespace {

// Options that waitid knows; __WNOTHREAD means children of one kernel thread: not of a fiber.
constexpr int kStates = WSTOPPED | WEXITED | WCONTINUED;
constexpr int kKinds = __WCLONE | __WALL;

Request wait_request_for(idtype_t type, id_t id, int options) {
  Request r;
  r.code = kOpWaitid;
  r.fd = static_cast<int>(id);
  r.len = static_cast<uint32_t>(type);
  r.flags = static_cast<uint32_t>((options & (kStates | kKinds)) | WNOWAIT);
  return r;
}

// Waits until there is something to collect, or nothing to wait for: 0, or -EINTR when the call ends so.
// try_now: the call without waiting; `nothing` is its answer when there is nothing yet.
template <class Try, class Native>
long wait_for_child(Fiber* f, const Request& r, int options, const char* name, Try try_now, Native natively) {
  if (VTHR_UNLIKELY(cancel_due(f))) cancel_here();
  for (;;) {
    bool nothing = false;
    long got = try_now(&nothing);
    if (!nothing || (options & WNOHANG) != 0) return got;
    if (!engine_features.waitid || (options & __WNOTHREAD) != 0) return native_point(f, name, natively);
    long res = wait_request(f, r, Reason::child, kNever);
    if (res == -EINTR) return res;
    if (res == -EINVAL) return native_point(f, name, natively);
  }
}

long wait4_fiber(Fiber* f, pid_t pid, int* status, int options, rusage* usage) {
  idtype_t type = pid > 0 ? P_PID : pid == -1 ? P_ALL : P_PGID;
  id_t id = pid > 0 ? static_cast<id_t>(pid) : pid < -1 ? -static_cast<id_t>(pid) : 0;
  auto call = [=](int how) { return sys_call(SYS_wait4, pid, sys_arg(status), how, sys_arg(usage)); };
  return wait_for_child(
      f, wait_request_for(type, id, options | WEXITED), options, "wait4",
      [=](bool* nothing) {
        long r = call(options | WNOHANG);
        *nothing = r == 0;
        return r;
      },
      [=] { return call(options); });
}

long waitid_fiber(Fiber* f, idtype_t type, id_t id, siginfo_t* info, int options, rusage* usage) {
  auto call = [=](siginfo_t* to, int how) {
    return sys_call(SYS_waitid, type, id, sys_arg(to), how, sys_arg(usage));
  };
  return wait_for_child(
      f, wait_request_for(type, id, options), options, "waitid",
      [=](bool* nothing) {
        siginfo_t found{};
        siginfo_t* to = info != nullptr ? info : &found;  // which the kernel writes to in any case
        long r = call(to, options | WNOHANG);
        *nothing = r == 0 && to->si_pid == 0;
        return r;
      },
      [=] { return call(info, options); });
}

}  // namespace

pid_t entry_wait4(pid_t pid, int* status, int options, rusage* usage) {
  Fiber* f = fiber_here();
  long r = f != nullptr ? wait4_fiber(f, pid, status, options, usage)
                        : cancellable(SYS_wait4, pid, sys_arg(status), options, sys_arg(usage));
  return static_cast<pid_t>(libc_result(r));
}

int entry_waitid(idtype_t type, id_t id, siginfo_t* info, int options) {
  Fiber* f = fiber_here();
  long r = f != nullptr ? waitid_fiber(f, type, id, info, options, nullptr)
                        : cancellable(SYS_waitid, type, id, sys_arg(info), options, 0);
  return static_cast<int>(libc_result(r));
}

long child_by_number(Fiber* f, long nr, long a, long b, long c, long d, long e) {
  if (nr == SYS_wait4)
    return wait4_fiber(f, static_cast<pid_t>(a), reinterpret_cast<int*>(b), static_cast<int>(c),
                       reinterpret_cast<rusage*>(d));
  return waitid_fiber(f, static_cast<idtype_t>(a), static_cast<id_t>(b), reinterpret_cast<siginfo_t*>(c),
                      static_cast<int>(d), reinterpret_cast<rusage*>(e));
}

// ---- system(3) ----

namespace {

// While any thread is in system(), the process ignores these two (POSIX). libc counts for itself: so from the start of
// the runtime on nobody uses libc's, or one would take the other's "ignored" for what to go back to.
Lock shell_lock;
int shells;
struct sigaction interrupt_before, quit_before;

void ignore_keyboard(bool* was_interrupt_ignored, bool* was_quit_ignored) {
  Locked hold(shell_lock);
  if (shells++ == 0) {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGINT, &ignore, &interrupt_before);
    sigaction(SIGQUIT, &ignore, &quit_before);
  }
  *was_interrupt_ignored = interrupt_before.sa_handler == SIG_IGN;
  *was_quit_ignored = quit_before.sa_handler == SIG_IGN;
}
void heed_keyboard() {
  Locked hold(shell_lock);
  if (--shells != 0) return;
  sigaction(SIGINT, &interrupt_before, nullptr);
  sigaction(SIGQUIT, &quit_before, nullptr);
}

// The thread is cancelled while the shell runs: as libc does.
void end_shell(void* shell) {
  pid_t pid = *static_cast<pid_t*>(shell);
  sys_call(SYS_kill, pid, SIGKILL);
  while (sys_call(SYS_wait4, pid, 0, 0, 0) == -EINTR) {
  }
  heed_keyboard();
}

pid_t wait_for_shell(pid_t pid, int* status) {
  pid_t r;
  do {
    r = entry_wait4(pid, status, 0, nullptr);
  } while (r < 0 && errno == EINTR);
  return r;
}

int run_shell(const char* command) {
  sigset_t child, before, to_default;
  bool interrupt_ignored = false, quit_ignored = false;
  ignore_keyboard(&interrupt_ignored, &quit_ignored);
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &child, &before);

  sigemptyset(&to_default);
  if (!interrupt_ignored) sigaddset(&to_default, SIGINT);
  if (!quit_ignored) sigaddset(&to_default, SIGQUIT);
  posix_spawnattr_t attr;
  posix_spawnattr_init(&attr);
  posix_spawnattr_setsigmask(&attr, &before);
  posix_spawnattr_setsigdefault(&attr, &to_default);
  posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  char shell[] = "sh", option[] = "-c";
  char* const argv[] = {shell, option, const_cast<char*>(command), nullptr};
  pid_t pid = -1;
  int err = posix_spawn(&pid, "/bin/sh", nullptr, &attr, argv, environ);
  posix_spawnattr_destroy(&attr);

  int status = 127 << 8;  // no shell, as if it had said so
  if (err == 0) {
    pthread_cleanup_push(end_shell, &pid);
    if (wait_for_shell(pid, &status) != pid) {
      err = errno;
      status = -1;
    }
    pthread_cleanup_pop(0);
  }
  heed_keyboard();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (err != 0) errno = err;
  return status;
}

}  // namespace

void child_after_fork() {
  shell_lock.reset();
  shells = 0;
}

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT pid_t wait4(pid_t pid, int* status, int options, rusage* usage) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(wait4)(pid, status, options, usage);
  return static_cast<pid_t>(libc_result(wait4_fiber(f, pid, status, options, usage)));
}

VTHR_EXPORT pid_t wait3(int* status, int options, rusage* usage) {
  return wait4(WAIT_ANY, status, options, usage);
}

VTHR_EXPORT pid_t waitpid(pid_t pid, int* status, int options) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(waitpid)(pid, status, options);
  return static_cast<pid_t>(libc_result(wait4_fiber(f, pid, status, options, nullptr)));
}
VTHR_EXPORT pid_t __waitpid(pid_t pid, int* status, int options) { return waitpid(pid, status, options); }

VTHR_EXPORT pid_t wait(int* status) { return waitpid(WAIT_ANY, status, 0); }
VTHR_EXPORT pid_t __wait(int* status) { return wait(status); }

VTHR_EXPORT int waitid(idtype_t type, id_t id, siginfo_t* info, int options) {
  Fiber* f = fiber_here();
  if (f == nullptr) return REAL(waitid)(type, id, info, options);
  return static_cast<int>(libc_result(waitid_fiber(f, type, id, info, options, nullptr)));
}

VTHR_EXPORT int system(const char* command) {
  if (!sched_running()) return REAL(system)(command);
  if (command == nullptr) return run_shell("exit 0") == 0 ? 1 : 0;
  return run_shell(command);
}
