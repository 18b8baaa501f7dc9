// The timers of a carrier (runtime/timer.h): a wait ends by its own timer or by a waker, and never by an old timer.
#include "runtime/timer.h"

#include "runtime/wait.h"
#include "tests/model/checker.h"

namespace {
using namespace model;

enum Order { right, ends_whatever_wait, ends_outside_the_lock, leaves_armed };

// A fiber waits with a deadline, then without one; a waker ends both; the worker of the carrier where the timer was armed
// expires what is due. As park_fiber, fire_timers and a lock's waker.
template <Fault F, Order Way>
struct Timers {
  static constexpr int threads = 3;
  using A = Atomics<F>;
  using Heap = vthr::TimerHeapT<A>;
  using Word = vthr::WaitWordT<A>;
  struct Fiber {
    typename Heap::Timer timer;
    Plain<int> expiries;
  };
  Heap heap;
  Fiber fiber;
  Word word;
  Atomic<uint64_t, F> tickets[2] = {};
  Plain<int> wins[2];

  typename Word::State wait(int which, bool timed) {
    uint64_t ticket = word.begin(Word::waiting);
    if (timed) {
      fiber.timer.when = 1;
      fiber.timer.ticket = ticket;
      heap.arm(&fiber.timer);
    }
    tickets[which].store(ticket, std::memory_order_release);
    auto how = word.sleep(ticket, [&] {
      A::wait(word.address(), static_cast<uint32_t>(ticket));
      return Word::waiting;
    });
    if (timed && Way != leaves_armed) Heap::disarm(&fiber.timer);
    return how;
  }
  void end_wait(uint64_t ticket, typename Word::State outcome, Plain<int>* wins) {
    if (!word.end(ticket, outcome)) return;
    if (wins != nullptr) wins->set(1);
    A::wake(word.address());
  }
  void thread(int me) {
    if (me == 0) {
      wait(0, true);
      fiber.expiries.set(fiber.expiries.get() + 1);  // no expiry of it is under way any more
      fiber.timer.ticket = 0;
      check(wait(1, false) == Word::woken, "a wait without a deadline timed out");
    } else if (me == 1) {
      for (int i = 0; i < 2; i++) {
        uint64_t ticket;
        while ((ticket = tickets[i].load(std::memory_order_acquire)) == 0) A::pause();
        end_wait(ticket, Word::woken, &wins[i]);
      }
    } else {
      for (int i = 0; i < 2; i++) {
        uint64_t due = 0;
        heap.expire_one(1, [&](typename Heap::Timer* t) {
          auto* f = reinterpret_cast<Fiber*>(t);
          if (Way == ends_outside_the_lock) return static_cast<void>(due = t->ticket);
          f->expiries.set(f->expiries.get() + 1);
          end_wait(Way == ends_whatever_wait ? word.load() : t->ticket, Word::timed_out, nullptr);
        });
        if (due != 0) end_wait(word.load(), Word::timed_out, nullptr);
      }
    }
  }
  void end() {
    check(machine.is_over(1), "a wait never ends");
    check(heap.size() == 0 && heap.next() == vthr::kNever, "a timer of a wait that is over is still armed");
    check(wins[1].get() == 1, "the second wait had another end");
  }
};

}  // namespace

int main() {
  begin();
  explore<Timers<kNone, right>>("timers", {3, 1});
  must_find<Timers<kNone, ends_outside_the_lock>>("  seeded: time-out after wake", {3, 1});
  must_find<Timers<kNone, leaves_armed>>("  seeded: a woken wait leaves its timer", {2, 1});
  must_find<Timers<kLostRelease, right>>("  seeded: a lost release", {2, 1});
  return all_good ? 0 : 1;
}
