// A bounded checker of interleavings: runs the product's own headers, with the atomics of this file, through all schedules of
// a few threads within its bounds.
//
// A model is a struct with `threads`, thread(i) and end(); an object of it is made, run and destroyed for each schedule. Its
// threads are contexts of runtime/context.h on one kernel thread. Before each operation on an atomic the checker chooses who
// goes on, and at each load which of the written values is read: any that no happens-before hides (release and acquire,
// seq_cst and fences as in C++20; the order of the writes of one location is that of their execution). That contains every
// behaviour of x86's store buffers, and weaker ones: a lost release is seen. Read-modify-writes read the newest value.
// Bounds: a switch away from a thread that could go on costs one preemption, an old value costs one stale read.
// Wrong is: a failed check, a plain variable (Plain) that two threads touch without happens-before, an object used after its
// end, a schedule without an end; and what end() checks when all threads are over or sleep for ever.
#pragma once
#include <sys/auxv.h>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "runtime/base.h"
#include "runtime/context.h"
#include "runtime/tls.h"

namespace model {

constexpr int kThreads = 4, kLocations = 32, kSteps = 3000;
constexpr size_t kStack = 32 << 10;

struct Bounds {
  int preemptions, stale;
};

// What a thread knows: per location the oldest write that it may still read, per thread how far it is ordered after it.
struct Knowledge {
  uint16_t seen[kLocations];
  uint16_t clock[kThreads];
  void join(const Knowledge& k) {
    for (int i = 0; i < kLocations; i++) seen[i] = seen[i] < k.seen[i] ? k.seen[i] : seen[i];
    for (int i = 0; i < kThreads; i++) clock[i] = clock[i] < k.clock[i] ? k.clock[i] : clock[i];
  }
};
struct Write {
  uint64_t value;
  Knowledge carries;  // what an acquire load of it learns
};
struct Thread {
  vthr::Context context;
  enum { over, ready, asleep, asleep_timed } state = over;
  const void* on = nullptr;                     // the word it sleeps on
  Knowledge now{}, at_acquire{}, at_release{};  // at_*: what a later fence learns, what a fence before gives
};

class Machine {
 public:
  // Runs one schedule: the next one of the tree. False with *why when it went wrong.
  template <class Model>
  bool run(const Bounds& bounds, const char** why) {
    left_ = bounds;
    position_ = steps_ = locations_ = 0;
    why_ = nullptr;
    self_ = 0;
    for (Thread& t : all_) t.now = t.at_acquire = t.at_release = sc_ = Knowledge{};
    alignas(Model) static char memory[sizeof(Model)];
    auto* model = new (memory) Model;
    for (int i = 1; i <= Model::threads; i++) {
      all_[i].now = all_[0].now;
      all_[i].state = Thread::ready;
      vthr::context_make(&all_[i].context, stacks_[i] + kStack, kStack, body<Model>, model);
    }
    for (self_ = 0; pick() && why_ == nullptr;)
      vthr::context_switch_in(&all_[self_].context, &scheduler_, vthr::tls_self(), vthr::tls_self());
    for (int i = 1; i <= Model::threads; i++) {
      all_[i].now.clock[i]++;  // what it did after its last operation
      all_[0].now.join(all_[i].now);
    }
    self_ = 0;
    if (why_ == nullptr) {
      model->end();
      model->~Model();
    }
    return (*why = why_) == nullptr;
  }
  void restart() { tree_.clear(); }
  bool next_schedule() {
    while (!tree_.empty() && tree_.back().chosen + 1 == tree_.back().of) tree_.pop_back();
    if (tree_.empty()) return false;
    tree_.back().chosen++;
    return true;
  }

  void wrong(const char* why) {
    if (why_ == nullptr) why_ = why;
    if (self_ != 0) leave();
  }
  bool is_over(int thread) const { return all_[thread].state == Thread::over; }

  // --- what the threads do ---
  int new_location(uint64_t value) {
    if (locations_ == kLocations) return wrong("too many atomics"), 0;
    std::vector<Write>& h = history_[locations_];
    h.clear();
    h.push_back({value, Knowledge{}});
    alive_[locations_] = true;
    for (Thread& t : all_) t.now.seen[locations_] = t.at_acquire.seen[locations_] = 0;
    return locations_++;
  }
  void end_location(int l) { alive_[l] = false; }

  uint64_t load(int l, std::memory_order order) {
    step(l, "load");
    Thread& t = all_[self_];
    std::vector<Write>& h = history_[l];
    if (order == std::memory_order_seq_cst) raise(&t.now.seen[l], sc_.seen[l]);
    int newest = static_cast<int>(h.size()) - 1, old = newest - t.now.seen[l];
    int back = left_.stale > 0 && old > 0 ? choose(old + 1) : 0;
    if (back != 0) left_.stale--;
    return read(l, newest - back, order);
  }
  void store(int l, uint64_t value, std::memory_order order) {
    step(l, "store");
    write(l, value, order, nullptr);
  }
  // Reads the newest value; f(old, &replacement) says whether it is replaced.
  template <class F>
  uint64_t update(int l, std::memory_order order, std::memory_order if_not, F f) {
    step(l, "update");
    std::vector<Write>& h = history_[l];
    uint64_t replacement;
    if (!f(h.back().value, &replacement)) return read(l, static_cast<int>(h.size()) - 1, if_not);
    uint64_t old = read(l, static_cast<int>(h.size()) - 1, order);
    Knowledge inherited = h.back().carries;  // a release sequence goes on through it
    write(l, replacement, order, &inherited);
    return old;
  }
  void fence() {  // seq_cst
    step(-1, "fence");
    Thread& t = all_[self_];
    t.now.join(t.at_acquire);
    for (int i = 0; i < kLocations; i++) raise(&t.now.seen[i], sc_.seen[i]), sc_.seen[i] = t.now.seen[i];
    t.at_release = t.now;
  }
  // The other threads go first, if there are any that can.
  void pause() {
    step(-1, "pause");
    yielding_ = true;
    reschedule();
  }
  // Sleeps while the newest value is `value`. True when woken; false at once, or, if timed, at any later time.
  bool sleep(int l, const void* word, uint32_t value, bool timed) {
    step(l, "sleep");
    if (static_cast<uint32_t>(history_[l].back().value) != value) return false;
    Thread& t = all_[self_];
    t.on = word;
    t.state = timed ? Thread::asleep_timed : Thread::asleep;
    reschedule();
    bool woken = t.on == nullptr;
    t.on = nullptr;
    return woken;
  }
  void wake(const void* word) {
    step(-1, "wake");
    Thread* sleepers[kThreads];
    int n = 0;
    for (Thread& t : all_) {
      if (t.on == word && t.state != Thread::over) sleepers[n++] = &t;
    }
    if (n == 0) return;
    Thread* t = sleepers[n == 1 ? 0 : choose(n)];
    t->on = nullptr;
    t->state = Thread::ready;
  }
  // 0 .. n-1, each in some schedule.
  int choose(int n) {
    if (position_ == tree_.size()) tree_.push_back({0, n});
    return tree_[position_++].chosen;
  }
  // A plain access: ordered after that one of `thread`? And what a later one must be ordered after.
  bool ordered(int thread, uint16_t stamp) const {
    return thread == self_ || all_[self_].now.clock[thread] >= stamp;
  }
  uint16_t stamp() const { return static_cast<uint16_t>(all_[self_].now.clock[self_] + 1); }
  int self() const { return self_; }

  void print_trace() const {
    for (int i = 0; i < steps_ && i < kSteps; i++) {
      std::printf("    thread %d %s", trace_[i].thread, trace_[i].what);
      trace_[i].location < 0 ? std::printf("\n")
                             : std::printf(" #%d -> %llx\n", trace_[i].location, trace_[i].value);
    }
  }

 private:
  template <class Model>
  static void body(void* model);

  static void raise(uint16_t* to, uint16_t at_least) { *to = *to < at_least ? at_least : *to; }

  uint64_t read(int l, int which, std::memory_order order) {
    Thread& t = all_[self_];
    const Write& w = history_[l][static_cast<size_t>(which)];
    raise(&t.now.seen[l], static_cast<uint16_t>(which));
    bool acquires = order != std::memory_order_relaxed && order != std::memory_order_release;
    (acquires ? t.now : t.at_acquire).join(w.carries);
    trace_[steps_ - 1].value = w.value;
    return w.value;
  }
  void write(int l, uint64_t value, std::memory_order order, const Knowledge* inherited) {
    Thread& t = all_[self_];
    auto at = static_cast<uint16_t>(history_[l].size());
    t.now.seen[l] = at;
    bool releases = order != std::memory_order_relaxed && order != std::memory_order_acquire;
    Write w{value, releases ? t.now : t.at_release};
    if (inherited != nullptr) w.carries.join(*inherited);
    w.carries.seen[l] = at;
    history_[l].push_back(w);
    if (order == std::memory_order_seq_cst) sc_.seen[l] = at;
    trace_[steps_ - 1].value = value;
  }

  // Before each operation: somebody else may go first.
  void step(int l, const char* what) {
    if (self_ != 0) {
      if (left_.preemptions > 0) reschedule();
      if (steps_ >= kSteps) wrong("a schedule without an end");
    }
    if (l >= 0 && !alive_[l]) wrong("an object is used after its end");
    all_[self_].now.clock[self_]++;
    if (steps_ < kSteps) trace_[steps_++] = {self_, l, what, 0};
  }
  void leave() { vthr::context_switch_out(&all_[self_].context, &scheduler_); }
  void reschedule() {
    int before = self_;
    if (!pick() || self_ != before) {
      int after = self_;
      self_ = before;
      next_ = after;
      leave();
    }
  }
  // Chooses who goes on; false when nobody can.
  bool pick() {
    if (next_ != 0) {
      self_ = next_;
      next_ = 0;
      return true;
    }
    int can[kThreads], n = 0;
    bool goes_on = self_ != 0 && all_[self_].state == Thread::ready && !yielding_;
    if (goes_on) can[n++] = self_;
    if (!goes_on || left_.preemptions > 0) {
      for (int i = 1; i < kThreads; i++) {
        if (i != self_ && (all_[i].state == Thread::ready || all_[i].state == Thread::asleep_timed))
          can[n++] = i;
      }
      if (self_ != 0 && all_[self_].state == Thread::asleep_timed) can[n++] = self_;
      if (n == 0 && yielding_) can[n++] = self_;
    }
    yielding_ = false;
    if (n == 0) return self_ = 0, false;
    int chosen = can[n == 1 ? 0 : choose(n)];
    if (goes_on && chosen != self_) left_.preemptions--;
    self_ = chosen;
    if (all_[self_].state == Thread::asleep_timed) all_[self_].state = Thread::ready;  // its time is over
    return true;
  }

  struct Choice {
    int chosen, of;
  };
  struct Event {
    int thread, location;
    const char* what;
    unsigned long long value;
  };
  std::vector<Choice> tree_;
  size_t position_ = 0;
  Bounds left_{};
  Thread all_[kThreads];
  vthr::Context scheduler_;
  int self_ = 0, next_ = 0, steps_ = 0, locations_ = 0;
  bool yielding_ = false;
  const char* why_ = nullptr;
  Knowledge sc_{};  // what seq_cst operations and fences agree on
  std::vector<Write> history_[kLocations];
  bool alive_[kLocations] = {};
  Event trace_[kSteps] = {};
  alignas(64) char stacks_[kThreads][kStack];
};

inline Machine machine;

template <class Model>
void Machine::body(void* model) {
  int me = machine.self_;
  static_cast<Model*>(model)->thread(me - 1);
  machine.all_[me].state = Thread::over;
  machine.leave();
}

inline void check(bool good, const char* what) {
  if (!good) machine.wrong(what);
}

// A plain variable: two accesses, one of them a write, must be ordered by happens-before.
template <class T>
class Plain {
 public:
  T get() {
    check(machine.ordered(writer_, written_), "a data race: read of what another thread writes");
    read_[machine.self()] = machine.stamp();
    return value_;
  }
  void set(T value) {
    bool good = machine.ordered(writer_, written_);
    for (int i = 0; i < kThreads; i++) good = good && machine.ordered(i, read_[i]);
    check(good, "a data race: write of what another thread uses");
    writer_ = machine.self();
    written_ = machine.stamp();
    value_ = value;
  }

 private:
  T value_{};
  int writer_ = 0;
  uint16_t written_ = 0, read_[kThreads] = {};
};

// Faults that are seeded through the policy: the product's code with weaker atomics.
enum Fault { kNone, kLostRelease, kSplitCas, kSplitWeakCas, kNoFence };

// std::atomic<T>, checked.
template <class T, Fault F>
class Atomic {
 public:
  Atomic(T value = T{}) : location_(machine.new_location(word(value))) {}
  ~Atomic() { machine.end_location(location_); }
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load(std::memory_order order = std::memory_order_seq_cst) const {
    return value(machine.load(location_, order));
  }
  void store(T v, std::memory_order order = std::memory_order_seq_cst) {
    machine.store(location_, word(v), weak(order));
  }
  T exchange(T v, std::memory_order order = std::memory_order_seq_cst) {
    return change(order, [v](T) { return v; });
  }
  T fetch_add(T n, std::memory_order order = std::memory_order_seq_cst) {
    return change(order, [n](T old) { return static_cast<T>(old + n); });
  }
  bool compare_exchange_strong(T& expected, T v, std::memory_order order, std::memory_order if_not) {
    return compare(expected, v, order, if_not, F == kSplitCas);
  }
  bool compare_exchange_strong(T& expected, T v, std::memory_order order = std::memory_order_seq_cst) {
    return compare(expected, v, order, failing(order), F == kSplitCas);
  }
  bool compare_exchange_weak(T& expected, T v, std::memory_order order, std::memory_order if_not) {
    return compare(expected, v, order, if_not, F == kSplitWeakCas);
  }
  int location() const { return location_; }

 private:
  static uint64_t word(T v) {
    uint64_t w = 0;
    memcpy(&w, &v, sizeof v);
    return w;
  }
  static T value(uint64_t w) {
    T v;
    memcpy(&v, &w, sizeof v);
    return v;
  }
  static std::memory_order failing(std::memory_order order) {
    return order == std::memory_order_acq_rel   ? std::memory_order_acquire
           : order == std::memory_order_release ? std::memory_order_relaxed
                                                : order;
  }
  static std::memory_order weak(std::memory_order order) {
    if (F != kLostRelease) return order;
    return order == std::memory_order_acq_rel ? std::memory_order_acquire : failing(order);
  }
  template <class G>
  T change(std::memory_order order, G g) {
    return value(machine.update(location_, weak(order), order, [&](uint64_t old, uint64_t* v) {
      *v = word(g(value(old)));
      return true;
    }));
  }
  bool compare(T& expected, T v, std::memory_order order, std::memory_order if_not, bool split) {
    if (split) {  // the fault: look, then store
      T old = load(order);
      if (old != expected) return expected = old, false;
      store(v, order);
      return true;
    }
    bool same = false;
    T old = value(machine.update(location_, weak(order), if_not, [&](uint64_t o, uint64_t* w) {
      *w = word(v);
      return same = o == word(expected);
    }));
    if (!same) expected = old;
    return same;
  }

  int location_;
};

// The policy for the product's templates, in place of RealAtomics.
template <Fault F = kNone>
struct Atomics {
  template <class T>
  using atomic = Atomic<T, F>;
  static void pause() { machine.pause(); }
  static void fence() {
    if (F != kNoFence) machine.fence();
  }
  static void wait(const void* word, uint32_t value) { sleep(word, value, false); }
  static bool sleep(const void* word, uint32_t value, bool timed) {
    return machine.sleep(static_cast<const Atomic<uint32_t, F>*>(word)->location(), word, value, timed);
  }
  static void wake(const void* word) { machine.wake(word); }
  static void* map(size_t bytes) {  // one block at a time, for the only heap of a model
    static void* memory[512];
    return bytes <= sizeof memory ? memory : nullptr;
  }
  static void unmap(void*, size_t) {}
  static constexpr int kSpins = 1;
};

inline bool all_good = true;

// All schedules within the bounds. `seeded`: one of them must go wrong, else none may.
template <class Model>
void explore(const char* name, Bounds bounds, bool seeded = false) {
  long n = 0;
  const char* why = nullptr;
  int64_t begun = vthr::now_ns();
  machine.restart();
  do {
    n++;
  } while (machine.run<Model>(bounds, &why) && machine.next_schedule());
  bool good = (why != nullptr) == seeded;
  std::printf("%-44s %9ld schedules, preemptions <= %d, stale reads <= %d, %.1f s: %s%s\n", name, n,
              bounds.preemptions, bounds.stale, static_cast<double>(vthr::now_ns() - begun) / 1e9,
              why == nullptr ? "holds"
              : seeded       ? "found: "
                             : "FAULT: ",
              why == nullptr ? "" : why);
  if (!good && !seeded) machine.print_trace();
  if (!good && seeded) std::printf("  the seeded fault was NOT found\n");
  all_good = all_good && good;
}
template <class Model>
void must_find(const char* name, Bounds bounds) {
  explore<Model>(name, bounds, true);
}

inline void begin() { vthr::tls_fast_fs = (getauxval(AT_HWCAP2) & 2) != 0; }

}  // namespace model
