// The parking lot's buckets (runtime/bucket.h): no wake is lost, none is counted that nobody got, no node is read after its end.
// With a batch of one GCC 12 keeps the array in registers and takes its unused place for a use.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "runtime/bucket.h"

#include "tests/model/checker.h"

namespace {
using namespace model;
using vthr::Wake;

// What the seeded faults change: the way of the waiter around the buckets.
enum Order {
  right,
  validates_after_enqueue,
  validates_before_lock,
  times_out_after_wake,
  leaves_without_lock
};

struct NoFibers {
  static void unpark(vthr::Fiber*) {}
};

// As park_foreign of parking.cc, with the batch of one and two buckets.
template <Fault F, Order Way>
struct Lot {
  using A = Atomics<F>;
  using Buckets = vthr::BucketsT<A, NoFibers, 1, 1>;
  using Word = vthr::WaitWordT<A>;
  Buckets buckets;
  char keys[64];
  Plain<int> got[3];  // wakes, by thread

  // A key that falls in another bucket than `key`.
  const char* other(const char* key) {
    auto half = [](const char* k) { return reinterpret_cast<uintptr_t>(k) * 0x9e3779b97f4a7c15ull >> 63; };
    const char* k = keys;
    while (half(k) == half(key)) k++;
    return k;
  }
  Wake wait(int me, const void* key, bool timed, typename Buckets::Still still, void* arg) {
    Word word;
    vthr::WaitNodeT<A> n;
    n.word = &word;
    n.ticket = word.begin(Word::waiting);
    if (Way == validates_before_lock && still != nullptr && !still(key, arg)) return Wake::invalid;
    bool early = Way == validates_after_enqueue || Way == validates_before_lock;
    if (!buckets.publish(&n, key, 1, early ? nullptr : still, arg)) return Wake::invalid;
    if (Way == validates_after_enqueue && still != nullptr && !still(key, arg)) return Wake::invalid;
    bool late = false;
    auto how = word.sleep(n.ticket, [&] {
      late = !A::sleep(word.address(), static_cast<uint32_t>(n.ticket), timed) && timed;
      return late ? Word::timed_out : Word::waiting;
    });
    if (Way == times_out_after_wake && late) how = Word::timed_out;
    if (how == Word::woken) return got[me].set(got[me].get() + 1), Wake::woken;
    if (Way != leaves_without_lock || n.queued) buckets.withdraw(&n);
    return Wake::timed_out;
  }
  int all() { return got[0].get() + got[1].get() + got[2].get(); }
};

// A futex: two wait while the value is 0, one of them not for ever; the third changes it and wakes both.
template <Fault F, Order Way>
struct Futex : Lot<F, Way> {
  static constexpr int threads = 3;
  Atomic<int, F> value{0};
  Plain<int> woken;

  void thread(int me) {
    if (me == 2) {
      value.store(1, std::memory_order_relaxed);
      woken.set(static_cast<int>(this->buckets.wake(&value, SIZE_MAX, ~0u)));
      return;
    }
    this->wait(
        me, &value, me == 1,
        [](const void*, void* self) {
          return static_cast<Futex*>(self)->value.load(std::memory_order_relaxed) == 0;
        },
        this);
  }
  void end() {
    for (int i = 1; i <= 3; i++) check(machine.is_over(i), "a wake was lost: somebody sleeps for ever");
    check(woken.get() == this->all(), "wakes that nobody got");
    check(!this->buckets.anybody(&value), "who left is still queued");
  }
};

// One waits with a time-out and moves to another key; two wake it there, or on the first.
template <Fault F, Order Way>
struct Requeue : Lot<F, Way> {
  static constexpr int threads = 3;
  Plain<int> woken[2];

  void thread(int me) {
    const char *from = this->keys, *to = this->other(from);
    if (me == 0) {
      this->wait(0, from, true, nullptr, nullptr);
    } else if (me == 1) {
      size_t n = 0;
      this->buckets.requeue(from, 0, to, 1, nullptr, nullptr, &n);
      woken[0].set(static_cast<int>(this->buckets.wake(to, 1, ~0u)));
    } else {
      woken[1].set(static_cast<int>(this->buckets.wake(from, 1, ~0u)));
    }
  }
  void end() {
    check(woken[0].get() + woken[1].get() == this->all(), "wakes that nobody got");
    check(!this->buckets.anybody(this->keys) && !this->buckets.anybody(this->other(this->keys)),
          "who left is still queued");
  }
};

}  // namespace

int main() {
  begin();
  explore<Futex<kNone, right>>("parking: futex", {3, 2});
  explore<Requeue<kNone, right>>("parking: requeue", {3, 2});
  must_find<Futex<kNone, validates_after_enqueue>>("  seeded: validate after enqueue", {2, 1});
  must_find<Futex<kNone, validates_before_lock>>("  seeded: validate before the lock", {2, 1});
  must_find<Futex<kNone, times_out_after_wake>>("  seeded: time-out after wake", {2, 1});
  must_find<Futex<kSplitCas, right>>("  seeded: two winners", {2, 1});
  must_find<Futex<kLostRelease, right>>("  seeded: a lost release", {2, 1});
  must_find<Requeue<kNone, leaves_without_lock>>("  seeded: leaves while a waker reads its node", {2, 1});
  return all_good ? 0 : 1;
}
