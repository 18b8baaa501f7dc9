// The wait word and the park word (runtime/wait.h): one winner per wait, one owner per park.
#include "runtime/wait.h"

#include "tests/model/checker.h"

namespace {
using namespace model;
using vthr::ParkWordT;
using vthr::WaitWordT;

// A foreign thread waits twice; a waker and a timer want to end its first wait, and one of them its second one too.
template <Fault F>
struct Waits {
  static constexpr int threads = 3;
  using Word = WaitWordT<Atomics<F>>;
  Word word;
  uint64_t first = word.begin(Word::waiting);
  Atomic<uint64_t, F> second{0};
  Plain<int> said[3];  // by outcome; the winner's is read by the waiter
  Plain<int> wins[2];

  void wait(uint64_t ticket) {
    auto how = word.sleep(ticket, [&] {
      Atomics<F>::wait(word.address(), static_cast<uint32_t>(ticket));
      return Word::waiting;
    });
    check(how == Word::woken || how == Word::timed_out, "an outcome that nobody asked for");
    check(said[how == Word::woken ? 0 : 1].get() != 0, "the outcome is not the winner's");
  }
  void want(int me, uint64_t ticket, typename Word::State outcome) {
    said[me].set(said[me].get() + 1);
    if (!word.end(ticket, outcome)) return;
    wins[me].set(wins[me].get() + 1);
    Atomics<F>::wake(word.address());
  }
  void thread(int me) {
    if (me == 0) {
      wait(first);
      second.store(word.begin(Word::waiting_deaf), std::memory_order_release);
      wait(second.load(std::memory_order_relaxed));
      return;
    }
    want(me - 1, first, me == 1 ? Word::woken : Word::timed_out);
    if (me == 1) return;
    while (second.load(std::memory_order_acquire) == 0) Atomics<F>::pause();
    want(1, second.load(std::memory_order_relaxed), Word::timed_out);
  }
  void end() {
    check(wins[0].get() + wins[1].get() == 2, "a wait has one winner");
    check(machine.is_over(1), "a wait never ends");
  }
};

// A fiber parks while two want to unpark it: whoever owns it afterwards touches its state.
template <Fault F>
struct Parks {
  static constexpr int threads = 3;
  using Word = WaitWordT<Atomics<F>>;
  Word word;
  ParkWordT<Atomics<F>> park;
  uint64_t ticket = word.begin(Word::waiting);
  Plain<int> fiber, owners[3];

  void thread(int me) {
    bool mine;
    if (me == 0) {
      fiber.set(1);
      mine = !park.commit();
    } else {
      mine = word.end(ticket, me == 1 ? Word::woken : Word::timed_out) && park.unpark();
    }
    if (!mine) return;
    owners[me].set(1);
    fiber.set(fiber.get() + 1);
    check(word.load() != ticket, "runs although its wait goes on");
    word.finish();
  }
  void end() {
    check(owners[0].get() + owners[1].get() + owners[2].get() == 1, "not one owner");
    check(fiber.get() == 2, "the fiber's state was lost");
  }
};

}  // namespace

int main() {
  begin();
  explore<Waits<kNone>>("wait word", {4, 2});
  explore<Parks<kNone>>("park word", {6, 3});
  must_find<Waits<kLostRelease>>("  seeded: a lost release", {2, 1});
  must_find<Waits<kSplitCas>>("  seeded: two winners", {2, 1});
  must_find<Parks<kLostRelease>>("  seeded: a lost release (park word)", {2, 1});
  must_find<Parks<kSplitCas>>("  seeded: two owners", {2, 1});
  return all_good ? 0 : 1;
}
