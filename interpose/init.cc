// Start-up (DESIGN D8): the constructor, which is the first of all, and the start of the runtime at the first
// pthread_create. The only file that sees everything.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/single_threaded.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "diag/diag.h"
#include "interpose/blocking.h"
#include "interpose/enter.h"
#include "interpose/libc_entry.h"
#include "interpose/mutex.h"
#include "interpose/thread.h"

namespace vthr {

namespace {

enum class Phase : uint32_t { loaded, starting, fibers, native };
// loaded -> starting   the first pthread_create, under start_lock
// starting -> fibers | native   the same thread (release); pairs with runtime_ready's acquire load
// fibers -> loaded     a forked child
std::atomic<Phase> phase{Phase::loaded};
Lock start_lock;
const char* native_why;  // decided in the constructor: never fibers
bool is_second_copy;
bool sanitized;  // a sanitizer is part of the program
int own_pid;

bool has_go_note() {
  bool found = false;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* arg) {
        if (info->dlpi_name != nullptr && info->dlpi_name[0] != 0)
          return 1;  // the program itself comes first
        for (int i = 0; i < info->dlpi_phnum; i++) {
          const auto& ph = info->dlpi_phdr[i];
          if (ph.p_type != PT_NOTE) continue;
          auto* p = reinterpret_cast<const char*>(info->dlpi_addr + ph.p_vaddr);
          const char* end = p + ph.p_memsz;
          while (p + sizeof(ElfW(Nhdr)) <= end) {
            auto* n = reinterpret_cast<const ElfW(Nhdr)*>(p);
            p += sizeof *n;
            if (n->n_namesz == 4 && memcmp(p, "Go", 3) == 0) *static_cast<bool*>(arg) = true;
            p += ((n->n_namesz + 3) & ~3u) + ((n->n_descsz + 3) & ~3u);
          }
        }
        return 1;
      },
      &found);
  return found;
}

int make_real_thread(void* (*start)(void*), void* arg) {
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attr, 256 << 10);
  // no signal of the program may reach a thread of ours, not even in its first instant
  uint64_t old = sys_set_sigmask(kWorkerMask);
  pthread_t id;
  int err = REAL(pthread_create)(&id, &attr, start, arg);
  sys_set_sigmask(old);
  pthread_attr_destroy(&attr);
  return err;
}

// Between the handlers and the child fork takes the locks of malloc and of all FILEs, one after the other: a fiber that
// parked on one while it holds others could stop our own threads, which allocate. So it waits as a thread would.
void before_fork() {
  diag_before_fork();
  Fiber* f = current;
  if (f != nullptr && runtime_alive()) f->native_only++;
}
void after_fork_in_parent() {
  Fiber* f = current;
  if (f != nullptr && runtime_alive()) f->native_only--;
  diag_after_fork_in_parent();
}

void after_fork_in_child() {
  Fiber* f = current;
  bool in_fiber = f != nullptr && sched_running();
  own_pid = static_cast<int>(sys_call(SYS_getpid));
  if (in_fiber) {
    if (!f->bound) sys_set_sigmask(f->sigmask.load(std::memory_order_relaxed));
    fiber_after_fork_in_child(f);
  }
  start_lock.reset();
  parking_after_fork();
  signals_after_fork();
  child_after_fork();
  if (sched_running()) {
    sched_after_fork();
    phase.store(Phase::loaded, std::memory_order_relaxed);
  }
  diag_after_fork();
}

const char* reason_to_decline() {
  if (options.disable != 0) return "VTHR_DISABLE=1";
  if (is_second_copy) return "another copy of libvthr is loaded";
  if (native_why != nullptr) return native_why;
  if (real_find_default("__asan_init") != nullptr) return "AddressSanitizer in the process";
  if (real_find_default("__tsan_init") != nullptr) return "ThreadSanitizer in the process";
  if (has_go_note()) return "a Go program";
  return nullptr;
}

bool start_slow() {
  Locked hold(start_lock);
  Phase p = phase.load(std::memory_order_relaxed);
  if (p == Phase::fibers) return true;
  if (p == Phase::native || p == Phase::starting) return false;
  if (current != nullptr) current = nullptr;  // a child that forked without our handler
  phase.store(Phase::starting, std::memory_order_relaxed);
  if (sanitized) {
    options_parse(environ);
    diag_init();
  }
  const char* why = reason_to_decline();
  bool strangers = false;
  if (why == nullptr) {
    hooks.deliver_signals = deliver_signals;
    hooks.fiber_ended = [](Fiber* f) { unpark_all(&f->life); };
    hooks.last_fiber_ended = last_fiber_ended;
    hooks.fiber_bound = signals_fiber_bound;
    hooks.make_thread = make_real_thread;
    blocking_scan_inherited();
    strangers = __libc_single_threaded == 0;  // real threads that may sleep in glibc's own locks
    libc_entry_start(strangers);
    why = sched_start();
    if (why != nullptr) libc_entry_undo();
  }
  if (why == nullptr) {
    locks_take_over(strangers);
    signals_start();
  }
  if (options.disable == 0 && !is_second_copy) {
    diag_started(why, {libc_entry.redirected, libc_entry.wanted, libc_entry.why});
    if (why == nullptr && libc_entry.refused)
      diag_line(kLogWarn, "calls from inside libc are not covered and pin: %s", libc_entry.why);
  }  // the other copy speaks
  phase.store(why == nullptr ? Phase::fibers : Phase::native, std::memory_order_release);
  return why == nullptr;
}

}  // namespace

int runtime_pid() { return own_pid; }
void process_ends() { diag_at_exit(); }
void not_supported(const char* function) { diag_not_supported(function); }

bool runtime_ready() {
  Phase p = phase.load(std::memory_order_acquire);
  if (VTHR_LIKELY(p == Phase::fibers)) return true;
  return p == Phase::native ? false : start_slow();
}

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT const char* vthr_version() { return VTHR_VERSION; }

// A name that no other copy of the library can take over.
extern "C" __attribute__((visibility("hidden"), alias("vthr_version"))) const char* own_version();

// glibc passes argc, argv and envp to constructors; `environ` is not yet set for one that runs this early.
__attribute__((constructor)) static void construct(int, char**, char** envp) {
  own_pid = static_cast<int>(sys_call(SYS_getpid));
  real_init();
  native_why = linked_sanitizer();
  sanitized = native_why != nullptr;
  if (sanitized) return;  // its interceptors are not ready this early: the rest comes with our one line
  options_parse(envp);
  is_second_copy = real_find_default("vthr_version") != reinterpret_cast<void*>(&own_version);
  static char why[128];
  const char* missing = nullptr;
  if (!tls_init(real_find_default, &missing)) {
    snprintf(why, sizeof why, "unknown glibc: %s", missing);
    native_why = why;
  }
  if (options.disable != 0 || native_why != nullptr || is_second_copy) locks_stay_native();
  diag_init();
  static_cast<void>(at_quick_exit(process_ends));  // the first to be registered is the last to run
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

__attribute__((destructor)) static void destruct() { diag_at_exit(); }
