// Small vocabulary shared by every file: attributes, time, and the atomics policy of the lock-free parts.
#pragma once
#include <time.h>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/sys.h"

#define VTHR_LIKELY(x) __builtin_expect(!!(x), 1)
#define VTHR_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define VTHR_NOINLINE __attribute__((noinline))
#define VTHR_EXPORT extern "C" __attribute__((visibility("default")))

namespace vthr {

constexpr size_t kCacheLine = 64;
constexpr size_t kPage = 4096;
constexpr int64_t kNever = INT64_MAX;  // a deadline that does not come
constexpr int64_t kSecond = 1000000000, kMilli = 1000000, kMicro = 1000;

// The atomics of the product. What threads share without a lock, and the locks themselves, are templates over such a
// policy, so that a model checker (tests/model) runs the same headers with atomics of its own.
struct RealAtomics {
  template <class T>
  using atomic = std::atomic<T>;
  static void pause() { __builtin_ia32_pause(); }
  static void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
  // Sleep and wake on a 32-bit word, or the low half of a longer one: a private futex.
  static void wait(const void* word, uint32_t value) { sys_futex_wait(word, value); }
  static void wake(const void* word) { sys_futex_wake(word); }
  static void* map(size_t bytes) { return sys_map(bytes); }
  static void unmap(void* p, size_t bytes) { sys_unmap(p, bytes); }
  static constexpr int kSpins = 200;  // of a lock, before it sleeps
};

// CLOCK_MONOTONIC in nanoseconds. Any thread, async-signal-safe (vDSO).
inline int64_t now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * kSecond + ts.tv_nsec;
}

inline size_t round_up(size_t n, size_t to) { return (n + to - 1) & ~(to - 1); }

// a + b for deadlines: kNever stays kNever and nothing wraps.
inline int64_t deadline_after(int64_t now, int64_t ns) {
  if (ns < 0) return now;
  return ns >= kNever - now ? kNever : now + ns;
}

}  // namespace vthr
