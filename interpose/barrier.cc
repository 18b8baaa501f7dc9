// pthread_barrier_*: glibc's object, the parking lot behind it. Process-shared barriers are glibc's own.
#include <cerrno>

#include "interpose/mutex.h"

namespace vthr {

namespace {

// glibc's object, 20 of pthread_barrier_t's 32 bytes; its init writes it, the first and the last word are zero then.
struct Barrier {
  std::atomic<uint64_t> round;
  uint32_t count;
  int shared;  // 0: of this process only
  std::atomic<uint32_t> inside;
};
static_assert(sizeof(Barrier) <= sizeof(pthread_barrier_t) && offsetof(Barrier, inside) == 16);

// round: the low half counts who has arrived, the high half the rounds.
//   arrived + 1                  each but the last of a round (acq_rel)
//   arrived = 0 and rounds + 1   the last one (acq_rel), which then wakes the others
// Pairs: what each did before it arrived is seen by the last (its acquire), and through it by all who leave (they load
// the new round with acquire).
//
// inside: who is inside pthread_barrier_wait, so that destroy can wait until nobody touches the object any more.
//   + 1 on the way in; - 1 (release) as the last touch on the way out
//   kDestroying set by destroy (acquire), which sleeps until the rest is 0; who brings it there wakes it
constexpr uint64_t kRound = 1ull << 32;
constexpr uint32_t kDestroying = 1u << 31;

Barrier* of(pthread_barrier_t* b) { return reinterpret_cast<Barrier*>(b); }
bool is_native(const Barrier* b) { return (b->shared | native_all) != 0; }

void wait_for_round(Barrier* b, uint64_t mine) {
  ParkArgs args;
  args.reason = Reason::barrier;
  args.deaf = waits_deaf();
  args.still_arg = &mine;
  args.still = [](const void* key, void* arg) {
    uint64_t now = static_cast<const Barrier*>(key)->round.load(std::memory_order_relaxed);
    return now / kRound == *static_cast<uint64_t*>(arg);
  };
  while (b->round.load(std::memory_order_acquire) / kRound == mine) park_uncancelled(b, args);
}

}  // namespace

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT int pthread_barrier_init(pthread_barrier_t* b, const pthread_barrierattr_t* attr,
                                     unsigned count) {
  return REAL(pthread_barrier_init)(b, attr, count);
}

VTHR_EXPORT int pthread_barrier_wait(pthread_barrier_t* barrier) {
  Barrier* b = of(barrier);
  if (is_native(b))
    return pinned("pthread_barrier_wait", [=] { return REAL(pthread_barrier_wait)(barrier); });
  b->inside.fetch_add(1, std::memory_order_relaxed);
  uint64_t r = b->round.load(std::memory_order_relaxed), to;
  do {
    to = static_cast<uint32_t>(r) + 1 < b->count ? r + 1 : (r / kRound + 1) * kRound;
  } while (!b->round.compare_exchange_weak(r, to, std::memory_order_acq_rel, std::memory_order_relaxed));
  bool last = to / kRound != r / kRound;
  if (last) {
    unpark_all(b);
  } else {
    wait_for_round(b, r / kRound);
  }
  const void* destroyer = &b->inside;
  if (b->inside.fetch_sub(1, std::memory_order_release) == (kDestroying | 1)) unpark_all(destroyer);
  return last ? PTHREAD_BARRIER_SERIAL_THREAD : 0;
}

VTHR_EXPORT int pthread_barrier_destroy(pthread_barrier_t* barrier) {
  Barrier* b = of(barrier);
  if (is_native(b))
    return pinned("pthread_barrier_destroy", [=] { return REAL(pthread_barrier_destroy)(barrier); });
  if (static_cast<uint32_t>(b->round.load(std::memory_order_relaxed)) != 0)
    return EBUSY;  // undefined: threads wait
  ParkArgs args;
  args.reason = Reason::barrier;
  args.deaf = waits_deaf();
  args.still = [](const void* key, void*) {
    return static_cast<const std::atomic<uint32_t>*>(key)->load(std::memory_order_relaxed) != kDestroying;
  };
  if (b->inside.fetch_or(kDestroying, std::memory_order_acquire) != 0) {
    while (b->inside.load(std::memory_order_acquire) != kDestroying) park_uncancelled(&b->inside, args);
  }
  return 0;
}
