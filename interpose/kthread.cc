// What belongs to kernel threads: affinity, scheduling, CPU clocks. A fiber that changes its own is bound to a kernel
// thread of its own (DESIGN D11), so that nobody else inherits the change; reading binds nobody.
#include <pthread.h>
#include <sched.h>
#include <cerrno>
#include <cstring>

#include "interpose/enter.h"
#include "interpose/thread.h"

namespace vthr {

namespace {

// The kernel's id for calls about f: 0 is the caller, -1 nobody in particular (it runs wherever a worker does).
int kernel_tid_of(Fiber* f) {
  if (f->bound) return f->worker.load(std::memory_order_relaxed)->tid;
  return f == current ? 0 : -1;
}

Fiber* fiber_with_tid(int tid) {
  if (tid == 0) return current != nullptr && runtime_alive() ? current : nullptr;
  if (tid < kFirstTid) return nullptr;
  struct Find {
    int tid;
    Fiber* found;
  } find{tid, nullptr};
  fiber_each(
      [](Fiber* f, void* arg) {
        auto* s = static_cast<Find*>(arg);
        if (f->tid == s->tid && !fiber_has_ended(f)) s->found = f;
      },
      &find);
  return find.found;
}

// 0 or an error number; ENOTSUP for another fiber that is not bound: it would have to be stopped first.
template <class Call>
int change(Fiber* f, const char* name, Call call) {
  Fiber* self = fiber_here();
  if (f == self) bind_fiber(f);
  int tid = kernel_tid_of(f);
  if (tid < 0) {
    not_supported(name);
    return ENOTSUP;
  }
  return static_cast<int>(-call(tid));
}

// What the kernel refuses whoever asks.
bool valid_priority(int policy, int priority) {
  policy &= ~SCHED_RESET_ON_FORK;
  if (policy < 0) return false;
  long least = sys_call(SYS_sched_get_priority_min, policy),
       most = sys_call(SYS_sched_get_priority_max, policy);
  return least >= 0 && priority >= least && priority <= most;
}

long get_affinity(Fiber* f, size_t size, cpu_set_t* set) {
  int tid = kernel_tid_of(f);
  long n = sys_call(SYS_sched_getaffinity, tid < 0 ? 0 : tid, static_cast<long>(size), sys_arg(set));
  if (n > 0 && static_cast<size_t>(n) < size)
    memset(reinterpret_cast<char*>(set) + n, 0, size - static_cast<size_t>(n));
  return n < 0 ? n : 0;
}

// Clock ids of fibers have the kernel's form for threads (~tid << 3 | per thread | scheduler's clock), with a tid that
// no kernel thread can have.
constexpr int kPerThreadSched = 4 | 2;
clockid_t clock_of(Fiber* f) {
  return static_cast<clockid_t>(~static_cast<unsigned>(f->tid) << 3 | kPerThreadSched);
}

}  // namespace

}  // namespace vthr

using namespace vthr;

// Programs older than glibc 2.3.4 call versions without a size.
constexpr size_t kOldSize = 128;
using GetOf = int (*)(pthread_t, size_t, cpu_set_t*);
using SetOf = int (*)(pthread_t, size_t, const cpu_set_t*);
using GetByTid = int (*)(pid_t, size_t, cpu_set_t*);
using SetByTid = int (*)(pid_t, size_t, const cpu_set_t*);

VTHR_EXPORT int getaffinity_new(pthread_t id, size_t size, cpu_set_t* set) {
  Fiber* f = fiber_of(id);
  return f == nullptr ? REAL_AS(GetOf, getaffinity_new)(id, size, set)
                      : static_cast<int>(-get_affinity(f, size, set));
}
VTHR_EXPORT int getaffinity_234(pthread_t id, size_t size, cpu_set_t* set) {
  return getaffinity_new(id, size, set);
}
VTHR_EXPORT int getaffinity_old(pthread_t id, cpu_set_t* set) { return getaffinity_new(id, kOldSize, set); }

VTHR_EXPORT int setaffinity_new(pthread_t id, size_t size, const cpu_set_t* set) {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL_AS(SetOf, setaffinity_new)(id, size, set);
  return change(f, "pthread_setaffinity_np of another thread", [&](int tid) {
    return sys_call(SYS_sched_setaffinity, tid, static_cast<long>(size), sys_arg(set));
  });
}
VTHR_EXPORT int setaffinity_234(pthread_t id, size_t size, const cpu_set_t* set) {
  return setaffinity_new(id, size, set);
}
VTHR_EXPORT int setaffinity_old(pthread_t id, const cpu_set_t* set) {
  return setaffinity_new(id, kOldSize, set);
}

VTHR_EXPORT int sched_getaffinity_new(pid_t pid, size_t size, cpu_set_t* set) {
  Fiber* f = fiber_with_tid(pid);
  if (f == nullptr) return REAL_AS(GetByTid, sched_getaffinity_new)(pid, size, set);
  return static_cast<int>(libc_result(get_affinity(f, size, set)));
}
VTHR_EXPORT int sched_getaffinity_old(pid_t pid, cpu_set_t* set) {
  return sched_getaffinity_new(pid, kOldSize, set);
}

VTHR_EXPORT int sched_setaffinity_new(pid_t pid, size_t size, const cpu_set_t* set) {
  Fiber* f = fiber_with_tid(pid);
  if (f == nullptr) return REAL_AS(SetByTid, sched_setaffinity_new)(pid, size, set);
  int err = change(f, "sched_setaffinity of another thread", [&](int tid) {
    return sys_call(SYS_sched_setaffinity, tid, static_cast<long>(size), sys_arg(set));
  });
  return static_cast<int>(libc_result(-err));
}
VTHR_EXPORT int sched_setaffinity_old(pid_t pid, const cpu_set_t* set) {
  return sched_setaffinity_new(pid, kOldSize, set);
}

__asm__(".symver getaffinity_new, pthread_getaffinity_np@@GLIBC_2.32");
__asm__(".symver getaffinity_234, pthread_getaffinity_np@GLIBC_2.3.4");
__asm__(".symver getaffinity_old, pthread_getaffinity_np@GLIBC_2.3.3");
__asm__(".symver setaffinity_new, pthread_setaffinity_np@@GLIBC_2.34");
__asm__(".symver setaffinity_234, pthread_setaffinity_np@GLIBC_2.3.4");
__asm__(".symver setaffinity_old, pthread_setaffinity_np@GLIBC_2.3.3");
__asm__(".symver sched_getaffinity_new, sched_getaffinity@@GLIBC_2.3.4");
__asm__(".symver sched_getaffinity_old, sched_getaffinity@GLIBC_2.3.3");
__asm__(".symver sched_setaffinity_new, sched_setaffinity@@GLIBC_2.3.4");
__asm__(".symver sched_setaffinity_old, sched_setaffinity@GLIBC_2.3.3");

VTHR_EXPORT int pthread_getschedparam(pthread_t id, int* policy, sched_param* param) noexcept {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL(pthread_getschedparam)(id, policy, param);
  if (fiber_has_ended(f)) return ESRCH;
  int tid = kernel_tid_of(f);
  long p = sys_call(SYS_sched_getscheduler, tid < 0 ? 0 : tid);
  if (p < 0) return static_cast<int>(-p);
  *policy = static_cast<int>(p);
  return static_cast<int>(-sys_call(SYS_sched_getparam, tid < 0 ? 0 : tid, sys_arg(param)));
}

VTHR_EXPORT int pthread_setschedparam(pthread_t id, int policy, const sched_param* param) noexcept {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL(pthread_setschedparam)(id, policy, param);
  if (fiber_has_ended(f)) return ESRCH;
  if (!valid_priority(policy, param->sched_priority)) return EINVAL;
  // what every unbound fiber has already
  if (!f->bound && policy == SCHED_OTHER && param->sched_priority == 0) return 0;
  return change(f, "pthread_setschedparam of another thread",
                [&](int tid) { return sys_call(SYS_sched_setscheduler, tid, policy, sys_arg(param)); });
}

VTHR_EXPORT int pthread_setschedprio(pthread_t id, int priority) noexcept {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL(pthread_setschedprio)(id, priority);
  if (fiber_has_ended(f)) return ESRCH;
  if (!f->bound && !valid_priority(SCHED_OTHER, priority)) return EINVAL;
  sched_param param{};
  param.sched_priority = priority;
  if (!f->bound && priority == 0) return 0;
  return change(f, "pthread_setschedprio of another thread",
                [&](int tid) { return sys_call(SYS_sched_setparam, tid, sys_arg(&param)); });
}

VTHR_EXPORT int pthread_getcpuclockid(pthread_t id, clockid_t* clock) noexcept {
  Fiber* f = fiber_of(id);
  if (f == nullptr) return REAL(pthread_getcpuclockid)(id, clock);
  if (fiber_has_ended(f)) return ESRCH;
  fiber_cpu_time(f);  // the accounting begins now
  *clock = clock_of(f);
  return 0;
}

VTHR_EXPORT int clock_gettime(clockid_t clock, timespec* ts) noexcept {
  Fiber* f = nullptr;
  if (VTHR_UNLIKELY(clock == CLOCK_THREAD_CPUTIME_ID)) {
    f = fiber_with_tid(0);
  } else if (VTHR_UNLIKELY(clock < 0 && (clock & 7) == kPerThreadSched)) {
    f = fiber_with_tid(~(clock >> 3));
  }
  if (VTHR_LIKELY(f == nullptr)) return REAL(clock_gettime)(clock, ts);
  auto ns = static_cast<int64_t>(fiber_cpu_time(f));
  *ts = {ns / kSecond, ns % kSecond};
  return 0;
}
