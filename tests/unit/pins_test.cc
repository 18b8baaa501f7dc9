// What sysmon saw: records of pins over the threshold, their totals, hogs, and the blocks that nobody saw begin.
#include "runtime/pins.h"

#include <sys/syscall.h>
#include <ucontext.h>

#include "tests/unit/fibers.h"

// The kernel's signal frame is left by rt_sigreturn; libc's sigaction refuses the runtime's signal.
__asm__(R"(
  .text
  .type return_from_signal, @function
return_from_signal:
  mov $15, %eax
  syscall
)");
extern "C" void return_from_signal();

namespace vthr {
namespace {

void on_sample(int, siginfo_t* info, void* context) {
  if (reinterpret_cast<uintptr_t>(info->si_value.sival_ptr) != kAskSample) return;
  auto* r = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Fiber* f = current;
  if (f == nullptr || f->in_runtime.load() != 0) return;
  sysmon_sampled(static_cast<uint64_t>(r[REG_RIP]), static_cast<uint64_t>(r[REG_RSP]),
                 static_cast<uint64_t>(r[REG_RBP]));
}

class Pins : public RuntimeTest<2> {
 protected:
  void SetUp() override {
    RuntimeTest<2>::SetUp();
    if (IsSkipped()) return;
    struct {
      void (*handler)(int, siginfo_t*, void*);
      unsigned long flags;
      void (*restorer)();
      uint64_t mask;
    } action = {on_sample, SA_SIGINFO | SA_RESTART | 0x04000000, return_from_signal, 0};
    ASSERT_EQ(sys_call(SYS_rt_sigaction, kSigRuntime, sys_arg(&action), 0, 8), 0);
    options.pin = kPinReport;
    options.pin_threshold = 20 * kMilli;
    quiet();
  }
  void TearDown() override { options.pin = kPinOff; }
  // Drops what is left of earlier tests.
  static void quiet() {
    usleep(30000);
    while (PinRecord* r = pins_wait(now_ns() + 5 * kMilli)) pins_release(r);
    char line[512];
    while (alarm_next(line, sizeof line)) {
    }
  }
  // The next record that belongs to `id`.
  static PinRecord* record_of(uint64_t id) {
    for (int64_t end = now_ns() + 5 * kSecond; now_ns() < end;) {
      PinRecord* r = pins_wait(end);
      if (r == nullptr) continue;
      if (r->fiber_id == id) return r;
      pins_release(r);
    }
    return nullptr;
  }
};

TEST_F(Pins, ABlockedFiberIsRecorded) {
  PinTotals before = pin_totals();
  int64_t began = now_ns();
  uint64_t frame = 0;
  Fiber* f = spawn([&](Fiber* self) {
    memcpy(self->name, "conn", 5);
    frame = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
    block_raw(150 * kMilli);
  });
  uint64_t id = f->id;
  int tid = f->tid;
  join(f);
  int64_t ended = now_ns();
  PinRecord* r = record_of(id);
  ASSERT_NE(r, nullptr);
  EXPECT_EQ(r->kind, PinRecord::native);
  EXPECT_EQ(r->fiber_tid, tid);
  EXPECT_STREQ(r->fiber_name, "conn");
  EXPECT_TRUE(r->handed_off);
  EXPECT_FALSE(r->ongoing);
  EXPECT_TRUE(r->call_known);
  EXPECT_EQ(r->call, SYS_nanosleep);
  EXPECT_TRUE(r->has_stack);
  EXPECT_GT(r->stack_bytes, 0u);
  EXPECT_LE(r->sp, frame);
  EXPECT_GT(r->sp, frame - 4096);
  EXPECT_GE(r->started, began);
  EXPECT_LE(r->ended, ended);
  EXPECT_GE(r->ended - r->started, 40 * kMilli) << "a lower bound, not far off";
  pins_release(r);
  ASSERT_TRUE(eventually([&] { return pin_totals().count > before.count; }));
  PinTotals after = pin_totals();
  EXPECT_EQ(after.count, before.count + 1);
  EXPECT_GE(after.total_ns - before.total_ns, 40u * kMilli);
  EXPECT_LE(after.total_ns - before.total_ns, static_cast<uint64_t>(ended - began));
  EXPECT_GE(after.longest_ns, 40u * kMilli);
}

// Shorter ones are counted, not recorded; none is recorded with VTHR_PIN=off.
TEST_F(Pins, ShortOnesAreOnlyCounted) {
  for (bool off : {false, true}) {
    options.pin = off ? kPinOff : kPinReport;
    options.pin_threshold = off ? kMilli : 500 * kMilli;
    PinTotals before = pin_totals();
    Fiber* f = spawn([&](Fiber*) { block_raw(60 * kMilli); });
    uint64_t id = f->id;
    join(f);
    ASSERT_TRUE(eventually([&] { return pin_totals().count > before.count; }));
    for (PinRecord* r; (r = pins_wait(now_ns() + 30 * kMilli)) != nullptr; pins_release(r))
      EXPECT_NE(r->fiber_id, id);
  }
}

// Blocks in a row without a switch between them are as many pins, not a long one.
TEST_F(Pins, EachBlockIsAPinOfItsOwn) {
  PinTotals before = pin_totals();
  Fiber* f = spawn([&](Fiber*) {
    for (int i = 0; i < 4; i++) block_raw(100 * kMilli);
  });
  uint64_t id = f->id;
  join(f);
  eventually([&] { return pin_totals().count >= before.count + 4; }, 300 * kMilli);
  uint64_t seen = pin_totals().count - before.count;
  // on a loaded machine sysmon may come too late for one of them
  EXPECT_GE(seen, 2u);
  EXPECT_LE(seen, 4u);
  while (PinRecord* r = pins_wait(now_ns() + 100 * kMilli)) {
    if (r->fiber_id == id) {
      EXPECT_LT(r->ended - r->started, 300 * kMilli);
    }
    pins_release(r);
  }
}

// One that lasts is told while it lasts, and once more when it has ended.
TEST_F(Pins, ALongOneIsToldWhileItLasts) {
  std::atomic<uint32_t> word{0};
  Fiber* f = spawn([&](Fiber*) {
    while (word.load() == 0) sys_futex_wait(&word, 0);
  });
  PinRecord* r = record_of(f->id);
  ASSERT_NE(r, nullptr);
  EXPECT_TRUE(r->ongoing);
  EXPECT_EQ(r->call, SYS_futex);
  EXPECT_EQ(r->args[0], reinterpret_cast<uint64_t>(&word));
  pins_release(r);
  uint64_t id = f->id;
  word.store(1);
  sys_futex_wake(&word);
  join(f);
  r = record_of(id);
  ASSERT_NE(r, nullptr);
  EXPECT_FALSE(r->ongoing);
  pins_release(r);
}

TEST_F(Pins, AHogIsRecordedWithItsRegisters) {
  std::atomic<bool> stop{false};
  std::vector<Fiber*> hogs;
  for (int i = 0; i < 2; i++) {
    hogs.push_back(spawn([&](Fiber*) {
      while (!stop.load(std::memory_order_relaxed)) __builtin_ia32_pause();
    }));
  }
  // somebody must wait for a carrier, else nobody is a hog
  std::atomic<int> late{0};
  Fibers others;
  for (int i = 0; i < 20; i++) {
    others.add([&](Fiber* f) {
      burn(kMilli);
      sleep_for(f, kMilli);
      late.fetch_add(1);
    });
  }
  EXPECT_TRUE(eventually([&] { return late.load() == 20; }));
  usleep(50000);
  stop.store(true);
  uint64_t ids[2] = {hogs[0]->id, hogs[1]->id};
  for (Fiber* f : hogs) join(f);
  PinRecord* found = nullptr;
  for (int64_t end = now_ns() + 3 * kSecond; found == nullptr && now_ns() < end;) {
    PinRecord* r = pins_wait(end);
    if (r != nullptr && (r->fiber_id == ids[0] || r->fiber_id == ids[1])) found = r;
  }
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->kind, PinRecord::cpu);
  EXPECT_TRUE(found->has_fp);
  EXPECT_TRUE(found->has_stack);
  Dl_info code, self;
  ASSERT_NE(dladdr(reinterpret_cast<void*>(found->pc), &code), 0);
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&pin_totals), &self), 0);
  EXPECT_EQ(code.dli_fbase, self.dli_fbase) << "it spins in the program's own text";
  pins_release(found);
}

TEST_F(Pins, BlocksNobodySawAreInTheSwitches) {
  auto unseen = [] {
    uint64_t all = 0, own = 0;
    EXPECT_TRUE(voluntary_switches_of_workers(&all, &own));
    return static_cast<int64_t>(all - own) - static_cast<int64_t>(pin_totals().count);
  };
  int64_t before = unseen();
  uint64_t seen = pin_totals().count;
  constexpr int kBlocks = 400;
  Fibers all;
  all.add([](Fiber*) {
    for (int i = 0; i < kBlocks; i++) block_raw(kMilli);
  });
  all.join_all();
  usleep(30000);
  int64_t counted = unseen() - before + static_cast<int64_t>(pin_totals().count - seen);
  EXPECT_NEAR(static_cast<double>(counted), kBlocks, kBlocks / 20) << "(a) + (b) of the report";
  // and a program that parks has none
  before = unseen();
  seen = pin_totals().count;
  for (int i = 0; i < 100; i++) {
    all.add([](Fiber* f) {
      for (int k = 0; k < 20; k++) sleep_for(f, kMilli);
    });
  }
  all.join_all();
  usleep(30000);
  counted = unseen() - before + static_cast<int64_t>(pin_totals().count - seen);
  EXPECT_NEAR(static_cast<double>(counted), 0, 5);
}

TEST_F(Pins, RecordsAreRecycledAndNeverRunOver) {
  std::vector<PinRecord*> all;
  uint64_t dropped = value(counters.events_dropped);
  while (PinRecord* r = pin_take()) all.push_back(r);
  EXPECT_GE(all.size(), 64u);
  EXPECT_GT(value(counters.events_dropped), dropped) << "an event that is lost is counted";
  for (auto* r : all) memset(r->stack, 1, kStackCopy);
  for (size_t i = 0; i < all.size(); i++) {
    all[i]->fiber_id = 1000 + i;
    pin_post(all[i]);
  }
  for (size_t i = 0; i < all.size(); i++) {
    PinRecord* r = nullptr;
    while (r == nullptr) r = pins_wait(now_ns() + kSecond);
    ASSERT_EQ(r->fiber_id, 1000 + i) << "in the order of their ends";
    pins_release(r);
  }
  PinRecord* again = pin_take();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->fiber_id, 0u) << "a record starts empty";
  EXPECT_NE(again->stack, nullptr);
  pins_release(again);
}

TEST_F(Pins, WaitEndsAtItsDeadlineOrByAWake) {
  int64_t begun = now_ns();
  while (now_ns() < begun + 30 * kMilli) EXPECT_EQ(pins_wait(begun + 30 * kMilli), nullptr);
  EXPECT_LT(now_ns() - begun, kSecond);
  std::thread waker([] {
    usleep(20000);
    pins_wake();
  });
  begun = now_ns();
  EXPECT_EQ(pins_wait(begun + 5 * kSecond), nullptr);
  EXPECT_LT(now_ns() - begun, 3 * kSecond);
  waker.join();
  char line[512];
  EXPECT_FALSE(alarm_next(line, sizeof line));
  alarm_post("alarm one");
  alarm_post("alarm two");
  EXPECT_TRUE(alarm_next(line, sizeof line));
  EXPECT_STREQ(line, "alarm one");
  EXPECT_TRUE(alarm_next(line, sizeof line));
  EXPECT_STREQ(line, "alarm two");
  EXPECT_FALSE(alarm_next(line, sizeof line));
}

}  // namespace
}  // namespace vthr
