// Slots of fibers: apart from each other, recycled newest first, with a guard that faults, refused cleanly.
#include "runtime/stack.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <set>

#include "runtime/fiber.h"
#include "tests/unit/support.h"

namespace vthr {
namespace {

constexpr size_t kRecord = 1000;  // not a multiple of anything

// A size with `room` bytes for guard and stack (ThreadSanitizer's TLS alone is larger than a small stack).
size_t with_room(size_t room) { return room + round_up(tls_block_size() + kRecord, kPage); }
size_t small() { return with_room(64 << 10); }

class StackTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_EQ(start_tls(), nullptr);
    stack_init(kRecord);
  }
};

uintptr_t num(const void* p) { return reinterpret_cast<uintptr_t>(p); }

TEST_F(StackTest, LayoutOfASlot) {
  for (size_t bytes : {with_room(8192), small(), with_room(100001), size_t{8} << 20}) {
    Slot s;
    ASSERT_TRUE(stack_take(bytes, 4096, &s));
    EXPECT_TRUE(s.fresh);
    EXPECT_EQ(s.stack_bytes, round_up(bytes, kPage));
    EXPECT_EQ(s.guard_bytes, 4096u);
    EXPECT_EQ(num(s.low) % kPage, 0u);
    EXPECT_EQ(num(s.record) % kCacheLine, 0u);
    EXPECT_EQ(num(s.tls_block) % kCacheLine, 0u);
    // guard, stack, record and TLS block, upwards, in the size that was asked for
    EXPECT_GE(num(s.record), num(s.low) + s.guard_bytes + 4096);
    EXPECT_GE(num(s.tls_block), num(s.record) + kRecord);
    EXPECT_EQ(num(s.tls_block) + tls_block_size(), num(s.low) + s.stack_bytes);
    // the TCB is inside the block, aligned as the TLS ABI wants it
    auto tcb = num(tls_tcb_of_block(s.tls_block));
    EXPECT_EQ(tcb % kCacheLine, 0u);
    EXPECT_GT(tcb, num(s.tls_block));
    EXPECT_LT(tcb, num(s.tls_block) + tls_block_size());
    // every byte of it can be written, and fresh memory is zero
    auto* first = s.low + s.guard_bytes;
    auto* end = static_cast<char*>(s.tls_block) + tls_block_size();
    for (char* p = first; p < end; p += 512) ASSERT_EQ(*p, 0);
    memset(first, 0x5a, static_cast<size_t>(end - first));
    stack_give(s);
  }
}

// As natively, where record and TLS block do not fit into what was asked for.
TEST_F(StackTest, RefusesAStackWithoutRoomForRecordAndTls) {
  Slot s;
  EXPECT_FALSE(stack_take(4096, 0, &s));
  EXPECT_FALSE(stack_take(8192, 4096, &s));
  ASSERT_TRUE(stack_take(0, 0, &s)) << "the program's own stack: a slot only for record and TLS block";
  EXPECT_GE(num(s.record), num(s.low));
  EXPECT_GE(num(s.tls_block), num(s.record) + kRecord);
  stack_give(s);
}

TEST_F(StackTest, SlotsAreDistinct) {
  struct Range {
    uintptr_t low, high;
    bool operator<(const Range& o) const { return low < o.low; }
  };
  std::set<Range> ranges;
  std::vector<Slot> slots;
  for (int i = 0; i < 3000; i++) {
    Slot s;
    ASSERT_TRUE(stack_take(i % 3 == 0 ? small() : with_room(32 << 10), i % 2 * 4096, &s));
    slots.push_back(s);
    ASSERT_TRUE(ranges.insert({num(s.low), num(s.tls_block) + tls_block_size()}).second);
  }
  uintptr_t end = 0;
  for (auto& r : ranges) {
    ASSERT_GE(r.low, end) << "two slots overlap";
    end = r.high;
  }
  for (auto& s : slots) stack_give(s);
}

TEST_F(StackTest, RecycledNewestFirstWithinTheirClass) {
  const size_t kBytes = with_room(48 << 10);
  Slot a, b, other;
  ASSERT_TRUE(stack_take(kBytes, 4096, &a));
  ASSERT_TRUE(stack_take(kBytes, 4096, &b));
  ASSERT_TRUE(stack_take(kBytes, 8192, &other));  // another guard: another class
  // what record and TLS block hold stays, but for the record's first word
  memset(static_cast<char*>(a.record) + 8, 0x77, kRecord - 8);
  memset(a.tls_block, 0x66, tls_block_size());
  uint64_t made = stack_stats().made, free_before = stack_stats().free_now;
  stack_give(other);
  stack_give(b);
  stack_give(a);
  EXPECT_EQ(stack_stats().free_now, free_before + 3);
  Slot s;
  ASSERT_TRUE(stack_take(kBytes, 4096, &s));
  EXPECT_EQ(s.low, a.low);
  EXPECT_EQ(s.record, a.record);
  EXPECT_EQ(s.tls_block, a.tls_block);
  EXPECT_FALSE(s.fresh);
  for (size_t i = 8; i < kRecord; i++) ASSERT_EQ(static_cast<char*>(s.record)[i], 0x77);
  for (size_t i = 0; i < tls_block_size(); i++) ASSERT_EQ(static_cast<char*>(s.tls_block)[i], 0x66);
  ASSERT_TRUE(stack_take(kBytes, 4096, &s));
  EXPECT_EQ(s.low, b.low);
  ASSERT_TRUE(stack_take(kBytes, 4096, &s));
  EXPECT_TRUE(s.fresh) << "the class is empty: a new one";
  EXPECT_NE(s.low, other.low);
  EXPECT_EQ(stack_stats().made, made + 1);
}

bool faulted(int status) { return killed_by(status, SIGSEGV); }

// Guards of one page and of several, also of a recycled slot; the first byte above them is usable.
TEST_F(StackTest, TheGuardFaults) {
  for (size_t guard : {size_t{4096}, size_t{16384}}) {
    for (bool recycled : {false, true}) {
      Slot s;
      ASSERT_TRUE(stack_take(small(), guard, &s));
      if (recycled) {
        stack_give(s);
        ASSERT_TRUE(stack_take(small(), guard, &s));
        ASSERT_FALSE(s.fresh);
      }
      for (size_t at = 0; at < guard; at += guard / 4) {
        ASSERT_TRUE(faulted(in_child([&] { return static_cast<volatile char*>(s.low)[at] = 1; }))) << at;
        ASSERT_TRUE(faulted(in_child([&] { return static_cast<volatile char*>(s.low)[at] & 0; }))) << at;
      }
      EXPECT_TRUE(faulted(in_child([&] { return static_cast<volatile char*>(s.low)[guard - 1] = 1; })));
      EXPECT_TRUE(exited(in_child([&] { return (static_cast<volatile char*>(s.low)[guard] = 7) - 7; }), 0));
    }
  }
  Slot s;
  ASSERT_TRUE(stack_take(small(), 0, &s));
  EXPECT_TRUE(exited(in_child([&] { return (*static_cast<volatile char*>(s.low) = 7) - 7; }), 0))
      << "no guard wanted";
}

size_t resident_pages(char* low, size_t bytes) {
  std::vector<unsigned char> pages(bytes / kPage);
  mincore(low, bytes, pages.data());
  size_t n = 0;
  for (auto p : pages) n += p & 1;
  return n;
}

// Thousands of free stacks that were used deeply do not keep their memory; the record's pages stay.
TEST_F(StackTest, FreeStacksGiveTheirMemoryBack) {
  const size_t kBytes = with_room(80 << 10);
  constexpr int kCount = 1000;
  std::vector<Slot> slots(kCount);
  for (auto& s : slots) {
    ASSERT_TRUE(stack_take(kBytes, 4096, &s));
    memset(s.low + s.guard_bytes, 1,
           static_cast<size_t>(static_cast<char*>(s.record) - s.low) - s.guard_bytes);
    memset(static_cast<char*>(s.record) + 8, 0x77, kRecord - 8);
  }
  for (auto& s : slots) stack_give(s);
  size_t pages = 0;
  for (auto& s : slots) {
    pages += resident_pages(s.low + s.guard_bytes, 72 << 10);
    ASSERT_EQ(static_cast<char*>(s.record)[kRecord - 1], 0x77);
  }
  size_t all = kCount * ((72 << 10) / kPage);
  EXPECT_LT(pages, all / 2) << "of " << all;
}

// Address space runs out: refused, then as before once there is some. In a child, which must not need more memory itself.
TEST_F(StackTest, RefusedUnderATightAddressSpace) {
  int status = in_child([] {
    static Slot slots[64];
    rlimit old{}, tight{};
    getrlimit(RLIMIT_AS, &old);
    long pages = 0;
    FILE* f = fopen("/proc/self/statm", "r");
    if (f == nullptr || fscanf(f, "%ld", &pages) != 1) return 2;
    fclose(f);
    constexpr size_t kBytes = 9 << 20;  // a class of its own: nothing is mapped yet
    tight = old;
    tight.rlim_cur = static_cast<rlim_t>(pages) * kPage + 5 * kBytes;
    if (setrlimit(RLIMIT_AS, &tight) != 0) return 3;
    int n = 0;
    while (n < 64 && stack_take(kBytes, 4096, &slots[n])) n++;
    if (n < 3 || n > 5) return 4;
    uint64_t made = stack_stats().made;
    if (stack_take(kBytes, 4096, &slots[n]) || stack_stats().made != made) return 5;
    // what was given back can be taken again
    stack_give(slots[--n]);
    if (!stack_take(kBytes, 4096, &slots[n])) return 6;
    n++;
    if (stack_take(kBytes, 4096, &slots[n])) return 7;
    if (setrlimit(RLIMIT_AS, &old) != 0) return 8;
    if (!stack_take(kBytes, 4096, &slots[n])) return 9;
    memset(slots[n].low + 4096, 1, kBytes - 4096);
    return 0;
  });
  EXPECT_TRUE(exited(status, 0)) << WEXITSTATUS(status);
}

// The same through fiber_make, which makes a TCB with the program's malloc: EAGAIN, nothing counted as alive.
TEST_F(StackTest, FiberMakeSaysEagain) {
  int status = in_child([] {
    stack_after_fork();
    stack_init(sizeof(Fiber));
    FiberAttr attr;
    attr.stack_bytes = 8 << 20;
    attr.guard_bytes = 4096;
    auto main = [](Fiber*) {};
    Fiber* first;
    if (fiber_make(attr, main, &first) != 0) return 1;
    rlimit old{}, tight{};
    getrlimit(RLIMIT_AS, &old);
    tight = old;
    tight.rlim_cur = 1 << 20;
    uint64_t live = fiber_live_count();
    setrlimit(RLIMIT_AS, &tight);
    Fiber* f = nullptr;
    for (int i = 0; i < 100; i++) {
      // the arena of `first` may hold more places
      int err = fiber_make(attr, main, &f);
      if (err == EAGAIN) break;
      if (err != 0 || i == 99) return 2;
      live++;
    }
    if (fiber_live_count() != live) return 3;
    fiber_free(first);
    if (fiber_make(attr, main, &f) != 0 || f != first) return 4;
    if (fiber_make(attr, main, &f) != EAGAIN) return 5;
    setrlimit(RLIMIT_AS, &old);
    if (fiber_make(attr, main, &f) != 0 || f->tcb == nullptr || tls_tid(f->tcb) != f->tid) return 6;
    return 0;
  });
  EXPECT_TRUE(exited(status, 0)) << WEXITSTATUS(status);
}

TEST_F(StackTest, ManyThreadsTakeAndGive) {
  const size_t kBytes = with_room(28 << 10);
  std::atomic<int> shared{0};
  together(4, [&](int me) {
    std::vector<Slot> mine;
    for (int i = 0; i < rounds(20000); i++) {
      if (i % 3 != 2 || mine.empty()) {
        Slot s;
        ASSERT_TRUE(stack_take(kBytes, 4096, &s));
        auto* owner = reinterpret_cast<std::atomic<int>*>(static_cast<char*>(s.record) + 8);
        if (owner->exchange(me + 1) != 0) shared.fetch_add(1);
        mine.push_back(s);
      }
      if (mine.size() > 20 || i % 3 == 2) {
        Slot s = mine.back();
        mine.pop_back();
        reinterpret_cast<std::atomic<int>*>(static_cast<char*>(s.record) + 8)->store(0);
        stack_give(s);
      }
    }
    for (auto& s : mine) {
      reinterpret_cast<std::atomic<int>*>(static_cast<char*>(s.record) + 8)->store(0);
      stack_give(s);
    }
  });
  EXPECT_EQ(shared.load(), 0) << "one slot with two owners";
}

}  // namespace
}  // namespace vthr
