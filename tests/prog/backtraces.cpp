// Stacks of threads can be walked to their end: backtrace(), the unwinder, dladdr; also in a signal handler.
// cflags: -rdynamic

#include "check.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <unwind.h>

#include <atomic>
#include <string>

static int has(void* const* frames, int n, const char* name) {
  for (int i = 0; i < n; i++) {
    Dl_info info;
    if (dladdr(frames[i], &info) && info.dli_sname &&
        std::string(info.dli_sname).find(name) != std::string::npos)
      return 1;
  }
  return 0;
}

static _Unwind_Reason_Code count_frame(_Unwind_Context*, void* counter) {
  return ++*static_cast<int*>(counter) < 200 ? _URC_NO_REASON : _URC_NORMAL_STOP;
}

extern "C" __attribute__((noinline)) void innermost_function() {
  void* frames[100];
  int n = backtrace(frames, 100);
  CHECK(n > 3 && n < 50, "backtrace gave %d frames", n);
  CHECK(has(frames, n, "innermost_function") && has(frames, n, "middle_function") &&
            has(frames, n, "thread_function"),
        "a function is missing in the backtrace");
  int count = 0;
  _Unwind_Reason_Code end = _Unwind_Backtrace(count_frame, &count);
  CHECK(end == _URC_END_OF_STACK, "unwinding ended with %d after %d frames", end, count);
  CHECK(count > 3 && count < 50, "unwinding gave %d frames", count);
  asm volatile("");
}
extern "C" __attribute__((noinline)) void middle_function(int depth) {
  if (depth > 0)
    middle_function(depth - 1);
  else
    innermost_function();
  asm volatile("");
}

static std::atomic<int> handled{0};
extern "C" void handler_function(int) {
  void* frames[100];
  int n = backtrace(frames, 100);
  if (has(frames, n, "handler_function") && has(frames, n, "thread_function")) handled++;
}

extern "C" void* thread_function(void*) {
  middle_function(3);
  pause_ms(1);
  middle_function(0);
  raise(SIGUSR1);
  pause_ms(1);
  return nullptr;
}

int main() {
  check_begin();
  void* load[1];
  backtrace(load, 1);  // loads libgcc_s once, outside of the handler
  signal(SIGUSR1, handler_function);
  pthread_t t[8];
  for (auto& id : t) id = start_thread(thread_function, nullptr);
  for (auto& id : t) join_thread(id);
  CHECK(handled == 8, "%d of 8 handlers saw the whole stack", handled.load());
  return check_end();
}
