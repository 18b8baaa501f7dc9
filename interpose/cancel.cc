// pthread_cancel for fibers. The state lives where glibc keeps it, in the TCB, so its own pthread_setcancelstate,
// pthread_testcancel and the cancellation points that are not hooked go on working; we only wake the target.
#include <pthread.h>
#include <cerrno>

#include "interpose/enter.h"
#include "interpose/thread.h"

namespace vthr {

void cancel_here() {
  Fiber* f = current;
  if (f == nullptr || cancel_due(f)) pthread_testcancel();
}

void cancel_from_signal(Fiber* f) {
  if (cancel_due(f) && (__atomic_load_n(f->cancel_word, __ATOMIC_RELAXED) & kCancelAsync) != 0)
    pthread_testcancel();
}

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT int pthread_cancel(pthread_t id) {
  Fiber* f = fiber_of(id);
  if (f == nullptr) {
    int r = REAL(pthread_cancel)(id);
    signals_wrap_handlers();  // glibc installs its handler at the first call
    if (sched_running()) cancel_foreign_wait(reinterpret_cast<void*>(id));
    return r;
  }
  uint32_t life = f->life.load(std::memory_order_acquire);
  if (life == kEnded || life == kFree) return 0;
  int before = __atomic_fetch_or(f->cancel_word, kCanceling | kCanceled, __ATOMIC_SEQ_CST);
  if ((before & (kCanceled | kExiting)) != 0 || (before & kCancelDisabled) != 0) return 0;
  if (f == current) {
    cancel_from_signal(f);
    return 0;
  }
  f->cancel_asked.store(1, std::memory_order_seq_cst);
  if (f->bound) cancel_foreign_wait(f->tcb);
  admission_joined(f, nullptr);  // a queued one must start to reach its first cancellation point
  interrupt_wait(f, true);
  Worker* w = f->worker.load(std::memory_order_relaxed);
  if (w != nullptr && w->running.load(std::memory_order_relaxed) == f) signal_worker(w, kAskCancel);
  return 0;
}
