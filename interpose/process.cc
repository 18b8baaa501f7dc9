// Processes (DESIGN D10): the relatives of fork, exec, credentials, and the ways to end. fork itself needs no hook: the
// handlers of pthread_atfork in init.cc do it all.
#include <grp.h>
#include <pthread.h>
#include <spawn.h>
#include <unistd.h>
#include <cerrno>
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "interpose/signal.h"

namespace vthr {

namespace {

// Children of a fiber, and programs that it becomes, get the fiber's signal mask: for the length of the call the
// worker's kernel mask is the fiber's. Hooks go native meanwhile: a vfork child shares our memory (HAZARDS 7, 11).
class AsThread {
 public:
  explicit AsThread(Fiber* f) : fiber_(f) {
    if (f == nullptr) return;
    f->native_only++;
    old_ = sys_set_sigmask(f->sigmask.load(std::memory_order_relaxed));
  }
  ~AsThread() { restore(); }
  void restore() {
    if (fiber_ == nullptr) return;
    int saved = errno;
    sys_set_sigmask(old_);
    fiber_->native_only--;
    errno = saved;
  }
  AsThread(const AsThread&) = delete;
  AsThread& operator=(const AsThread&) = delete;

 private:
  Fiber* fiber_;
  uint64_t old_ = 0;
};

// No worker is made meanwhile; a child that has forked behind our back may have a lock that nobody gives back.
class NoThreadIsMade {
 public:
  NoThreadIsMade() : locked_(runtime_alive()) {
    if (locked_) kernel_threads_lock.lock();
  }
  ~NoThreadIsMade() {
    if (locked_) kernel_threads_lock.unlock();
  }
  NoThreadIsMade(const NoThreadIsMade&) = delete;
  NoThreadIsMade& operator=(const NoThreadIsMade&) = delete;

 private:
  bool locked_;
};

// set*id: glibc marks each listed thread and waits for THREAD_SELF of each to be unmarked: that must be the worker.
// The call is in a function of its own, which looks up where errno is: compilers take that for a constant of a function.
template <class F>
__attribute__((noinline, noclone)) long result_of(F call) {
  NoThreadIsMade hold;
  long r = call();
  return r < 0 ? -errno : r;
}
template <class F>
__attribute__((noinline, noclone)) long as_worker(Fiber* f, F call) {
  f->in_runtime.store(1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  tls_set_fs(f->worker.load(std::memory_order_relaxed)->tcb);
  long r = result_of(call);
  tls_set_fs(f->tcb);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  f->in_runtime.store(0, std::memory_order_relaxed);
  return r;
}
template <class F>
int with_worker_tcb(Fiber* f, F call) {
  long r = as_worker(f, call);
  deliver_due(f);
  return static_cast<int>(libc_result(r));
}

}  // namespace

}  // namespace vthr

using namespace vthr;

#define CREDENTIAL_CALL(name, params, args)                               \
  VTHR_EXPORT int name params noexcept {                                  \
    Fiber* f = fiber_here();                                              \
    if (f == nullptr) {                                                   \
      NoThreadIsMade hold;                                                \
      return REAL(name) args;                                             \
    }                                                                     \
    return with_worker_tcb(f, [&]() -> long { return REAL(name) args; }); \
  }

CREDENTIAL_CALL(setuid, (uid_t a), (a))
CREDENTIAL_CALL(setgid, (gid_t a), (a))
CREDENTIAL_CALL(seteuid, (uid_t a), (a))
CREDENTIAL_CALL(setegid, (gid_t a), (a))
CREDENTIAL_CALL(setreuid, (uid_t a, uid_t b), (a, b))
CREDENTIAL_CALL(setregid, (gid_t a, gid_t b), (a, b))
CREDENTIAL_CALL(setresuid, (uid_t a, uid_t b, uid_t c), (a, b, c))
CREDENTIAL_CALL(setresgid, (gid_t a, gid_t b, gid_t c), (a, b, c))
CREDENTIAL_CALL(setgroups, (size_t n, const gid_t* list), (n, list))

VTHR_EXPORT int initgroups(const char* user, gid_t group) {
  Fiber* f = fiber_here();
  if (f == nullptr) {
    NoThreadIsMade hold;
    return REAL(initgroups)(user, group);
  }
  return with_worker_tcb(f, [&]() -> long { return REAL(initgroups)(user, group); });
}

// The versions for programs older than glibc 2.15 give a file that is no program to the shell.
using Spawn = int (*)(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                      char* const*, char* const*);
#define SPAWN_CALL(name)                                                                        \
  VTHR_EXPORT int name(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions, \
                       const posix_spawnattr_t* attr, char* const argv[], char* const envp[]) { \
    AsThread as(fiber_here());                                                                  \
    return REAL_AS(Spawn, name)(pid, path, actions, attr, argv, envp);                          \
  }

SPAWN_CALL(spawn_new)
SPAWN_CALL(spawn_old)
SPAWN_CALL(spawnp_new)
SPAWN_CALL(spawnp_old)
__asm__(".symver spawn_new, posix_spawn@@GLIBC_2.15");
__asm__(".symver spawn_old, posix_spawn@GLIBC_2.2.5");
__asm__(".symver spawnp_new, posix_spawnp@@GLIBC_2.15");
__asm__(".symver spawnp_old, posix_spawnp@GLIBC_2.2.5");

VTHR_EXPORT FILE* popen(const char* command, const char* mode) {
  AsThread as(fiber_here());
  return REAL(popen)(command, mode);
}

VTHR_EXPORT int execve(const char* path, char* const argv[], char* const envp[]) noexcept {
  AsThread as(fiber_here());
  return REAL(execve)(path, argv, envp);
}

VTHR_EXPORT int execv(const char* path, char* const argv[]) noexcept {
  AsThread as(fiber_here());
  return REAL(execv)(path, argv);
}

VTHR_EXPORT int execvp(const char* file, char* const argv[]) noexcept {
  AsThread as(fiber_here());
  return REAL(execvp)(file, argv);
}

VTHR_EXPORT int execvpe(const char* file, char* const argv[], char* const envp[]) noexcept {
  AsThread as(fiber_here());
  return REAL(execvpe)(file, argv, envp);
}

VTHR_EXPORT int fexecve(int fd, char* const argv[], char* const envp[]) noexcept {
  AsThread as(fiber_here());
  return REAL(fexecve)(fd, argv, envp);
}

// ---- the ways to end: the report is written first, but not by a vfork child, which shares our memory ----

namespace {
[[noreturn]] void end_process(int code) {
  if (sys_call(SYS_getpid) == runtime_pid()) process_ends();
  for (;;) sys_call(SYS_exit_group, code);
}
}  // namespace

VTHR_EXPORT void _exit(int code) { end_process(code); }

VTHR_EXPORT void _Exit(int code) noexcept { end_process(code); }

VTHR_EXPORT void exit(int code) noexcept {
  REAL(exit)(code);
  __builtin_unreachable();
}

// The one for programs older than glibc 2.24 runs the destructors of the calling thread first.
VTHR_EXPORT void quick_exit_new(int code) {
  REAL_AS(void (*)(int), quick_exit_new)(code);
  __builtin_unreachable();
}
VTHR_EXPORT void quick_exit_old(int code) {
  REAL_AS(void (*)(int), quick_exit_old)(code);
  __builtin_unreachable();
}
__asm__(".symver quick_exit_new, quick_exit@@GLIBC_2.24");
__asm__(".symver quick_exit_old, quick_exit@GLIBC_2.10");
