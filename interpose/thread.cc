// pthread_create and what belongs to it: a pthread of the program becomes a fiber.
#include "interpose/thread.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

#include "interpose/enter.h"
#include "interpose/mutex.h"

// Public since glibc 2.3.3, with __pthread_register_cancel: the expansion of pthread_cleanup_push in C uses them.

namespace vthr {

namespace {

// Pairs (Dekker): the initial thread sets this, then counts the fibers; the last fiber's end counts, then reads this.
std::atomic<bool> initial_thread_left{false};
std::atomic<bool> exit_begun{false};

// Runs exit(0) for a program whose initial thread called pthread_exit and whose last fiber has ended.
void* exit_main(void*) {
  // the initial thread runs its own destructors first, as natively
  for (int i = 0; i < 2000; i++) {
    char text[256] = {};
    long fd = sys_call(SYS_openat, AT_FDCWD, sys_arg("/proc/self/stat"), O_RDONLY | O_CLOEXEC);
    if (fd < 0) break;
    sys_call(SYS_read, fd, sys_arg(text), sizeof text - 1);
    sys_call(SYS_close, fd);
    const char* p = strrchr(text, ')');
    if (p == nullptr || p[1] == 0 || p[2] == 'Z') break;
    timespec ts{0, 1000000};
    sys_call(SYS_nanosleep, sys_arg(&ts));
  }
  exit(0);
}

// The end of the last fiber and that of the initial thread may both see that nobody is left, and a second exit() would end
// the process while the first still runs its handlers.
void begin_exit() {
  if (!exit_begun.exchange(true, std::memory_order_acq_rel)) hooks.make_thread(exit_main, nullptr);
}

// The bottom frame of the program's part of a fiber. pthread_exit and cancellation unwind to it by glibc's own public
// means (HAZARDS 21).
VTHR_NOINLINE void run_start(Fiber* f) {
  __pthread_unwind_buf_t buf;
  if (__sigsetjmp(reinterpret_cast<__jmp_buf_tag*>(buf.__cancel_jmp_buf), 0) == 0) {
    __pthread_register_cancel(&buf);
    leave(f);  // handlers may run from here on: they may use ctype, and end the thread
    f->result = f->start(f->arg);
    __pthread_unregister_cancel(&buf);
  } else {
    f->native_call = nullptr;  // it may have been in one
    if (!f->exit_called) f->result = PTHREAD_CANCELED;
  }
}

// The child of a fork in a fiber came to the end of its only thread: it is the last one, so the process ends.
[[noreturn]] void end_as_kernel_thread() {
  initial_thread_left.store(true, std::memory_order_seq_cst);
  if (fiber_live_count() == 0 && !exit_begun.exchange(true, std::memory_order_acq_rel)) exit(0);
  for (;;) sys_call(SYS_exit, 0);
}

void fiber_main(Fiber* f) {
  tls_first_run();
  run_start(f);
  tls_run_destructors();
  if (VTHR_UNLIKELY(current != f || !runtime_alive())) end_as_kernel_thread();
  signals_fiber_ends(f);
  if (VTHR_UNLIKELY(f->bound)) tls_leave_robust(f->tcb);
  f->native_only++;  // it looks the loader's modules up under a lock of the runtime, so it must not park
  tls_recycle();
  f->native_only--;
  enter(f);
  exit_fiber(f);
}

int read_attr(const pthread_attr_t* attr, FiberAttr* out, uint64_t* mask) {
  pthread_attr_t defaults;
  bool own = attr == nullptr;
  if (own) {
    if (pthread_getattr_default_np(&defaults) != 0) return EAGAIN;
    attr = &defaults;
  }
  size_t size = 0, guard = 0;
  void* low = nullptr;
  int detached = 0;
  pthread_attr_getstacksize(attr, &size);
  pthread_attr_getguardsize(attr, &guard);
  pthread_attr_getdetachstate(attr, &detached);
  size_t user_size = 0;
  // glibc gives (char*)0 - size when no stack was set
  if (pthread_attr_getstack(attr, &low, &user_size) != 0 || reinterpret_cast<uintptr_t>(low) + user_size == 0)
    low = nullptr;
  if (own && options.stack_size != 0) size = options.stack_size;
  sigset_t set;
  if (!own && pthread_attr_getsigmask_np(attr, &set) == 0) memcpy(mask, &set, sizeof *mask);
  if (own) pthread_attr_destroy(&defaults);
  out->detached = detached == PTHREAD_CREATE_DETACHED;
  out->user_stack_low = low;
  out->guard_bytes = low != nullptr ? 0 : round_up(guard, kPage);
  out->stack_bytes = low != nullptr ? user_size : round_up(size, kPage) + out->guard_bytes;
  return out->stack_bytes < size ? EINVAL : 0;
}

// Is `f` a fiber that ended or never was joinable? 0: join may wait for it.
int claim_join(Fiber* f, Fiber* self) {
  // as glibc: no dead lock for one that is cancelled before it waits, nor with one that is and will go on
  if (self != nullptr && !cancel_due(self)) {
    if (f == self) return EDEADLK;
    if (self->joiner.load(std::memory_order_relaxed) == f->tcb && !cancel_due(f)) return EDEADLK;
  }
  uint32_t life = f->life.load(std::memory_order_acquire);
  if (life == kDetached) return EINVAL;
  if (life == kFree) return ESRCH;
  void* nobody = nullptr;
  return f->joiner.compare_exchange_strong(nobody, tls_self(), std::memory_order_acq_rel) ? 0 : EINVAL;
}

int join(Fiber* f, void** result, int64_t deadline) {
  Fiber* self = fiber_here();
  int err = claim_join(f, self);
  if (err != 0) return err;
  DeferredCancel deferred;
  admission_joined(f, self);
  ParkArgs args;
  args.reason = Reason::join;
  args.point = true;
  args.deadline = deadline;
  args.still = [](const void* key, void*) {
    return static_cast<const std::atomic<uint32_t>*>(key)->load(std::memory_order_acquire) != kEnded;
  };
  while (f->life.load(std::memory_order_acquire) != kEnded) {
    Wake how = park_on(&f->life, args);
    if (how == Wake::timed_out && f->life.load(std::memory_order_acquire) != kEnded) {
      f->joiner.store(nullptr, std::memory_order_release);
      if (self != nullptr) admission_regain(self);
      return ETIMEDOUT;
    }
    if (how == Wake::cancelled) {
      f->joiner.store(nullptr, std::memory_order_release);
      if (self != nullptr) admission_regain(self);
      cancel_here();
      return join(f, result, deadline);
    }
  }
  if (self != nullptr) admission_regain(self);
  if (result != nullptr) *result = f->result;
  fiber_free(f);
  return 0;
}

}  // namespace

void last_fiber_ended() {
  if (initial_thread_left.load(std::memory_order_acquire)) begin_exit();
}

void fiber_after_fork_in_child(Fiber* f) {
  current = nullptr;
  tls_after_fork_in_fiber();
  f->in_runtime.store(0, std::memory_order_relaxed);
  initial_thread_left.store(false, std::memory_order_relaxed);
  exit_begun.store(false, std::memory_order_relaxed);
}

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT int pthread_create(pthread_t* id, const pthread_attr_t* attr, void* (*start)(void*),
                               void* arg) noexcept {
  if (!runtime_ready()) return REAL(pthread_create)(id, attr, start, arg);
  FiberAttr fa;
  uint64_t mask = inherited_sigmask();
  int err = read_attr(attr, &fa, &mask);
  if (err != 0) return err;
  Fiber* f;
  err = fiber_make(fa, fiber_main, &f);
  if (err != 0) return err;
  f->start = start;
  f->arg = arg;
  set_sigmask(f, mask);
  Fiber* self = fiber_here();
  if (self != nullptr) {
    memcpy(f->name, self->name, sizeof f->name);
  } else {
    sys_call(SYS_prctl, PR_GET_NAME, sys_arg(f->name));
  }
  char* top =
      fa.user_stack_low != nullptr ? f->stack_low + f->stack_bytes : static_cast<char*>(f->slot.record);
  context_make(
      &f->ctx, top, f->stack_bytes,
      [](void* p) {
        auto* fiber = static_cast<Fiber*>(p);
        fiber->main(fiber);
      },
      f);
  *id = reinterpret_cast<pthread_t>(f->tcb);
  err = launch(f);
  if (err != 0) {
    fiber_note_end();
    fiber_free(f);
  }
  return err;
}

VTHR_EXPORT int pthread_join(pthread_t id, void** result) {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL(pthread_join)(id, result);
  return join(f, result, kNever);
}

VTHR_EXPORT int pthread_tryjoin_np(pthread_t id, void** result) noexcept {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL(pthread_tryjoin_np)(id, result);
  if (!fiber_has_ended(f)) return EBUSY;
  return join(f, result, kNever);
}

VTHR_EXPORT int pthread_clockjoin_np(pthread_t id, void** result, clockid_t clock, const timespec* abs) {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL(pthread_clockjoin_np)(id, result, clock, abs);
  if (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME) return EINVAL;
  if (abs != nullptr && !valid_nsec(abs)) return EINVAL;
  return join(f, result, abs == nullptr ? kNever : deadline_of(clock, abs));
}

VTHR_EXPORT int pthread_timedjoin_np(pthread_t id, void** result, const timespec* abs) {
  return pthread_clockjoin_np(id, result, CLOCK_REALTIME, abs);
}

VTHR_EXPORT int pthread_detach(pthread_t id) noexcept {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL(pthread_detach)(id);
  uint32_t s = f->life.load(std::memory_order_acquire);
  if (s == kDetached) return EINVAL;
  if (s == kFree) return ESRCH;
  // Who joins it keeps it: then there is nothing to do, as in glibc.
  void* nobody = nullptr;
  if (!f->joiner.compare_exchange_strong(nobody, f->tcb, std::memory_order_acq_rel))
    return nobody == f->tcb ? EINVAL : 0;
  s = kJoinable;
  if (!f->life.compare_exchange_strong(s, kDetached, std::memory_order_acq_rel)) fiber_free(f);
  return 0;
}

VTHR_EXPORT void pthread_exit(void* value) {
  Fiber* f = fiber_here();
  if (f != nullptr) {
    f->result = value;
    f->exit_called = true;
  } else if (sched_running() && sys_gettid() == static_cast<int>(sys_call(SYS_getpid))) {
    initial_thread_left.store(true, std::memory_order_seq_cst);
    if (fiber_live_count() == 0) begin_exit();
  }
  REAL(pthread_exit)(value);
  __builtin_unreachable();
}

VTHR_EXPORT int pthread_getattr_np(pthread_t id, pthread_attr_t* attr) noexcept {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL(pthread_getattr_np)(id, attr);
  int err = pthread_attr_init(attr);
  if (err != 0) return err;
  pthread_attr_setstack(attr, f->stack_low + f->guard_bytes, f->stack_bytes - f->guard_bytes);
  pthread_attr_setguardsize(attr, f->guard_bytes);
  pthread_attr_setdetachstate(attr, f->life.load(std::memory_order_relaxed) == kDetached
                                        ? PTHREAD_CREATE_DETACHED
                                        : PTHREAD_CREATE_JOINABLE);
  return 0;
}

VTHR_EXPORT int pthread_setname_np(pthread_t id, const char* name) noexcept {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL(pthread_setname_np)(id, name);
  size_t n = strnlen(name, sizeof f->name);
  if (n == sizeof f->name) return ERANGE;
  if (fiber_has_ended(f)) return ENOENT;  // glibc opens a file of /proc
  memset(f->name, 0, sizeof f->name);
  memcpy(f->name, name, n);
  return 0;
}

VTHR_EXPORT int pthread_getname_np(pthread_t id, char* name, size_t size) noexcept {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL(pthread_getname_np)(id, name, size);
  if (size < sizeof f->name) return ERANGE;
  if (fiber_has_ended(f)) return ENOENT;
  strcpy(name, f->name);
  return 0;
}

VTHR_EXPORT int prctl(int option, ...) noexcept {
  va_list ap;
  va_start(ap, option);
  unsigned long a[4];
  for (auto& v : a) v = va_arg(ap, unsigned long);
  va_end(ap);
  Fiber* f = fiber_here();
  if (f != nullptr && option == PR_SET_NAME) {
    auto* name = reinterpret_cast<const char*>(a[0]);
    memset(f->name, 0, sizeof f->name);
    memcpy(f->name, name, strnlen(name, sizeof f->name - 1));
    return 0;
  }
  if (f != nullptr && option == PR_GET_NAME) {
    memcpy(reinterpret_cast<char*>(a[0]), f->name, sizeof f->name);
    return 0;
  }
  return static_cast<int>(
      libc_result(sys_call(SYS_prctl, option, static_cast<long>(a[0]), static_cast<long>(a[1]),
                           static_cast<long>(a[2]), static_cast<long>(a[3]))));
}
