// Shared by the units: groups of threads, scaled rounds, TLS start-up, children.
#pragma once
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/base.h"
#include "runtime/tls.h"

namespace vthr {

#ifdef __SANITIZE_THREAD__
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

#ifdef __SANITIZE_ADDRESS__
constexpr bool kAsan = true;
#else
constexpr bool kAsan = false;
#endif
#ifdef VTHR_NO_FS_SWITCH
constexpr bool kFsMoves = false;  // fibers have the TLS of the worker that runs them
#else
constexpr bool kFsMoves = true;
#endif

// Rounds of a stress test: fewer under ThreadSanitizer, which is slow.
inline int rounds(int n) { return kTsan ? n / 10 : n; }

// Runs body(0) .. body(n - 1), each on a thread of its own, all beginning together.
template <class F>
void together(int n, F body) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < n; i++) {
    threads.emplace_back([&, i] {
      ready.fetch_add(1);
      while (ready.load() < n) sched_yield();
      body(i);
    });
  }
  for (auto& t : threads) t.join();
}

// Waits until `condition` holds; false after `limit` ns.
template <class F>
bool eventually(F condition, int64_t limit = 10 * kSecond) {
  for (int64_t end = now_ns() + limit; !condition();) {
    if (now_ns() > end) return false;
    usleep(100);
  }
  return true;
}

// For short spins on 2 CPUs: the other side may be off its CPU.
class Spin {
 public:
  void operator()() {
    if (++n_ % 64 == 0) sched_yield();
  }

 private:
  int n_ = 0;
};

// Bounds a stress test in time too: on a loaded machine each yield may cost a slice of the scheduler.
class Budget {
 public:
  explicit Budget(int rounds, int64_t ns = 2 * kSecond) : rounds_(rounds), end_(now_ns() + ns) {}
  bool has(int round) const { return round < rounds_ && (round % 16 != 0 || now_ns() < end_); }

 private:
  int rounds_;
  int64_t end_;
};

inline int64_t cpu_ns(clockid_t clock) {
  timespec ts;
  clock_gettime(clock, &ts);
  return ts.tv_sec * kSecond + ts.tv_nsec;
}

// What the constructor of the library does, and what its first worker measures on a real thread. nullptr, or what is
// missing in this glibc.
inline const char* start_tls() {
  static const char* why = [] {
    const char* missing = nullptr;
    if (!tls_init([](const char* name) { return dlsym(RTLD_DEFAULT, name); }, &missing)) return missing;
    std::thread(tls_measure_on_worker).join();
    return static_cast<const char*>(nullptr);
  }();
  return why;
}

// Runs `body` in a forked child; its return value is the exit status. Returns what waitpid says.
template <class F>
int in_child(F body) {
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    signal(SIGSEGV, SIG_DFL);  // not ThreadSanitizer's
    _exit(body());
  }
  int status = -1;
  waitpid(pid, &status, 0);
  return status;
}
inline bool exited(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }
inline bool killed_by(int status, int sig) { return WIFSIGNALED(status) && WTERMSIG(status) == sig; }

}  // namespace vthr

#ifdef __SANITIZE_ADDRESS__
// Fibers live on stacks that AddressSanitizer does not know: it cannot move their frames to the heap, nor find what only they
// point to.
extern "C" __attribute__((used, weak, visibility("default"))) const char* __asan_default_options() {
  return "detect_stack_use_after_return=0:detect_leaks=0";
}
#endif
