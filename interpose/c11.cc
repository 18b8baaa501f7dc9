// C11 threads: the pthread hooks under other names, with C11's result codes. The types are the same in glibc.
#include <threads.h>
#include <cerrno>

#include "interpose/mutex.h"

namespace {

int result_of(int err) {
  switch (err) {
    case 0:
      return thrd_success;
    case ENOMEM:
      return thrd_nomem;
    case ETIMEDOUT:
      return thrd_timedout;
    case EBUSY:
      return thrd_busy;
    default:
      return thrd_error;
  }
}

pthread_mutex_t* of(mtx_t* m) { return reinterpret_cast<pthread_mutex_t*>(m); }
pthread_cond_t* of(cnd_t* c) { return reinterpret_cast<pthread_cond_t*>(c); }
static_assert(sizeof(mtx_t) == sizeof(pthread_mutex_t) && sizeof(cnd_t) == sizeof(pthread_cond_t));

// The int of a C11 start function travels in the pointer that pthreads pass.
int int_of(void* p) { return static_cast<int>(reinterpret_cast<intptr_t>(p)); }
void* pointer_of(int i) { return reinterpret_cast<void*>(static_cast<intptr_t>(i)); }

}  // namespace

VTHR_EXPORT int mtx_init(mtx_t* m, int type) {
  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_settype(&attr,
                            (type & mtx_recursive) != 0 ? PTHREAD_MUTEX_RECURSIVE : PTHREAD_MUTEX_TIMED_NP);
  return result_of(pthread_mutex_init(of(m), &attr));
}
VTHR_EXPORT void mtx_destroy(mtx_t* m) { pthread_mutex_destroy(of(m)); }
VTHR_EXPORT int mtx_lock(mtx_t* m) { return result_of(pthread_mutex_lock(of(m))); }
VTHR_EXPORT int mtx_trylock(mtx_t* m) { return result_of(pthread_mutex_trylock(of(m))); }
VTHR_EXPORT int mtx_timedlock(mtx_t* m, const timespec* abs) {
  return result_of(pthread_mutex_timedlock(of(m), abs));
}
VTHR_EXPORT int mtx_unlock(mtx_t* m) { return result_of(pthread_mutex_unlock(of(m))); }

VTHR_EXPORT int cnd_init(cnd_t* c) { return result_of(cond_init_new(of(c), nullptr)); }
VTHR_EXPORT void cnd_destroy(cnd_t* c) { cond_destroy_new(of(c)); }
VTHR_EXPORT int cnd_wait(cnd_t* c, mtx_t* m) { return result_of(cond_wait_new(of(c), of(m))); }
VTHR_EXPORT int cnd_timedwait(cnd_t* c, mtx_t* m, const timespec* abs) {
  return result_of(cond_timedwait_new(of(c), of(m), abs));
}
VTHR_EXPORT int cnd_signal(cnd_t* c) { return result_of(cond_signal_new(of(c))); }
VTHR_EXPORT int cnd_broadcast(cnd_t* c) { return result_of(cond_broadcast_new(of(c))); }

VTHR_EXPORT void call_once(once_flag* flag, void (*routine)()) {
  pthread_once(reinterpret_cast<pthread_once_t*>(flag), routine);
}

// Called as if it returned a pointer: in this ABI an int comes back in the low half of the same register, and int_of
// looks at nothing else. So no memory is needed for a start function of our own.
VTHR_EXPORT int thrd_create(thrd_t* id, thrd_start_t start, void* arg) {
  return result_of(
      pthread_create(id, nullptr, reinterpret_cast<void* (*)(void*)>(reinterpret_cast<void*>(start)), arg));
}
VTHR_EXPORT int thrd_join(thrd_t id, int* result) {
  void* value = nullptr;
  int err = pthread_join(id, &value);
  if (err == 0 && result != nullptr) *result = int_of(value);
  return result_of(err);
}
VTHR_EXPORT int thrd_detach(thrd_t id) { return result_of(pthread_detach(id)); }
VTHR_EXPORT void thrd_exit(int result) { pthread_exit(pointer_of(result)); }
