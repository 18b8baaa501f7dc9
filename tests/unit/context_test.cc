// Switching contexts: stacks, registers, floating-point control words. The FS base stays (tls_test moves it), so that
// the same tests run under ThreadSanitizer.
#include "runtime/context.h"

#include <fenv.h>
#include <math.h>
#include <xmmintrin.h>

#include <memory>

#include "tests/unit/support.h"

// keep_registers(fn, arg, seed): fills the callee-saved registers, calls fn(arg), and returns how many differ then.
__asm__(R"(
  .text
  .type keep_registers, @function
keep_registers:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  sub $24, %rsp
  mov %rdx, (%rsp)
  lea 1(%rdx), %rbx
  lea 2(%rdx), %rbp
  lea 3(%rdx), %r12
  lea 4(%rdx), %r13
  lea 5(%rdx), %r14
  lea 6(%rdx), %r15
  mov %rdi, %rax
  mov %rsi, %rdi
  call *%rax
  mov (%rsp), %rdx
  xor %eax, %eax
  xor %ecx, %ecx
  sub $1, %rbx
  cmp %rdx, %rbx
  setne %cl
  add %ecx, %eax
  sub $2, %rbp
  cmp %rdx, %rbp
  setne %cl
  add %ecx, %eax
  sub $3, %r12
  cmp %rdx, %r12
  setne %cl
  add %ecx, %eax
  sub $4, %r13
  cmp %rdx, %r13
  setne %cl
  add %ecx, %eax
  sub $5, %r14
  cmp %rdx, %r14
  setne %cl
  add %ecx, %eax
  sub $6, %r15
  cmp %rdx, %r15
  setne %cl
  add %ecx, %eax
  add $24, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
  .size keep_registers, .-keep_registers
)");
extern "C" int keep_registers(void (*fn)(void*), void* arg, uint64_t seed);

namespace vthr {
namespace {

constexpr size_t kStack = 256 << 10;

class ContextTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_EQ(start_tls(), nullptr); }  // chooses how FS is switched
};

// A context with a stack, which runs body() and then switches out for ever.
class Bare {
 public:
  explicit Bare(std::function<void(Bare*)> body) : body_(std::move(body)) {
    context_make(&fiber, stack.get() + kStack, kStack, enter, this);
  }
  void in() { context_switch_in(&fiber, &thread, tls_self(), tls_self()); }
  void out() { context_switch_out(&fiber, &thread); }
  bool over = false;
  Context fiber, thread;
  std::unique_ptr<char[]> stack{new char[kStack]};

 private:
  static void enter(void* p) {
    auto* self = static_cast<Bare*>(p);
    self->body_(self);
    self->over = true;
    for (;;) self->out();
  }
  std::function<void(Bare*)> body_;
};

TEST_F(ContextTest, RunsOnItsOwnStack) {
  uintptr_t low = 0, frame = 0;
  alignas(16) static char here;
  bool aligned = false;
  Bare f([&](Bare* self) {
    low = reinterpret_cast<uintptr_t>(self->stack.get());
    frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    alignas(64) volatile char local = here;
    aligned = reinterpret_cast<uintptr_t>(&local) % 64 == 0;
    float four[4] = {1, 2, 3, 4};
    __m128 spilled = _mm_loadu_ps(four);  // the compiler keeps it in an aligned place over the call
    self->out();
    _mm_storeu_ps(four, _mm_add_ps(spilled, spilled));
    aligned = aligned && four[3] == 8;
  });
  EXPECT_EQ(frame, 0u) << "context_make runs nothing";
  f.in();
  EXPECT_GE(frame, low);
  EXPECT_LT(frame, low + kStack);
  EXPECT_FALSE(f.over);
  f.in();
  EXPECT_TRUE(f.over);
  EXPECT_TRUE(aligned);
}

// 100,000 switches in and out among several contexts, in an order that is not round robin; each has calls under way at
// several depths.
int deep(Bare* self, int depth, int* count) {
  volatile int local = depth;
  if (depth > 0) {
    int r = deep(self, depth - 1, count);
    return r + (local == depth);
  }
  for (int i = 0; i < 10; i++) {
    ++*count;
    self->out();
  }
  return 1;
}

TEST_F(ContextTest, ManySwitchesAmongSeveral) {
  constexpr int kContexts = 7;
  const int n = rounds(100000);
  int counts[kContexts] = {}, ins[kContexts] = {};
  std::atomic<int> wrong{0};
  std::vector<std::unique_ptr<Bare>> all;
  for (int c = 0; c < kContexts; c++) {
    all.push_back(std::make_unique<Bare>([&, c](Bare* self) {
      for (int d = 0;; d = (d + 1) % 20) {
        if (deep(self, d, &counts[c]) != d + 1) wrong.fetch_add(1);
      }
    }));
  }
  uint32_t random = 1;
  for (int i = 0; i < n; i++) {
    random = random * 1664525 + 1013904223;
    int c = static_cast<int>((random >> 16) % kContexts);
    ins[c]++;
    all[c]->in();
    if (counts[c] != ins[c]) wrong.fetch_add(1);
  }
  EXPECT_EQ(wrong.load(), 0);
  for (int c = 0; c < kContexts; c++) EXPECT_EQ(counts[c], ins[c]);
}

TEST_F(ContextTest, CalleeSavedRegisters) {
  int changed = 0;
  Bare f([&](Bare* self) {
    for (uint64_t i = 0; i < 100; i++) {
      changed += keep_registers([](void* p) { static_cast<Bare*>(p)->out(); }, self, 0x1111111111111111 * i);
    }
  });
  for (uint64_t i = 0; i < 101; i++) {
    changed += keep_registers([](void* p) { static_cast<Bare*>(p)->in(); }, &f, ~0x0123456789abcdef * i);
  }
  EXPECT_TRUE(f.over);
  EXPECT_EQ(changed, 0);
}

uint32_t mxcsr() { return _mm_getcsr() & ~0x3fu; }  // without the sticky flags
uint16_t x87() {
  uint16_t w;
  __asm__ volatile("fnstcw %0" : "=m"(w));
  return w;
}
void set_x87(uint16_t w) { __asm__ volatile("fldcw %0" : : "m"(w)); }

// Rounding by SSE and by the x87 unit, with values that the compiler cannot fold.
double third(volatile double one) { return one / 3; }
long double long_third(volatile long double one) { return one / 3; }

TEST_F(ContextTest, EachKeepsItsFloatingPointControlWords) {
  const uint32_t csr = mxcsr();
  const uint16_t cw = x87();
  const double near = third(1);
  const long double near_long = long_third(1);
  int wrong = 0;
  auto with = [&](uint32_t my_csr, uint16_t my_cw) {
    return [&wrong, my_csr, my_cw](Bare* self) {
      _mm_setcsr(my_csr);
      set_x87(my_cw);
      for (int i = 0; i < 100; i++) {
        self->out();
        if (mxcsr() != my_csr || x87() != my_cw) wrong++;
      }
    };
  };
  Bare up(with((csr & ~0x6000u) | 0x4000, static_cast<uint16_t>((cw & ~0xc00) | 0x800)));
  Bare flush(with(csr | 0x8040, static_cast<uint16_t>(cw & ~0x300)));  // flush to zero; single precision
  for (int i = 0; i < 101; i++) {
    up.in();
    if (mxcsr() != csr || x87() != cw) wrong++;
    flush.in();
    if (mxcsr() != csr || x87() != cw) wrong++;
    if (third(1) != near || long_third(1) != near_long) wrong++;
  }
  EXPECT_TRUE(up.over);
  EXPECT_TRUE(flush.over);
  EXPECT_EQ(wrong, 0);
}

TEST_F(ContextTest, StartsWithTheControlWordsOfItsMaker) {
  const uint32_t csr = mxcsr();
  const uint16_t cw = x87();
  const uint32_t made_csr = csr | 0x8000 | 0x2000;
  const auto made_cw = static_cast<uint16_t>((cw & ~0xf00) | 0x400);
  uint32_t seen_csr = 0;
  uint16_t seen_cw = 0;
  _mm_setcsr(made_csr);
  set_x87(made_cw);
  Bare f([&](Bare*) {
    seen_csr = mxcsr();
    seen_cw = x87();
  });
  _mm_setcsr(csr);
  set_x87(cw);
  f.in();
  EXPECT_EQ(seen_csr, made_csr);
  EXPECT_EQ(seen_cw, made_cw);
  EXPECT_EQ(mxcsr(), csr) << "the thread has its own again";
  EXPECT_EQ(x87(), cw);
}

TEST_F(ContextTest, FloatingPointValuesSurvive) {
  const int n = rounds(20000);
  auto sum = [](int from, int steps, const std::function<void()>& between) {
    double a = from, b = 1;
    long double c = from;
    float d = 0.5f;
    for (int i = 1; i <= steps; i++) {
      a += 1.0 / i;
      b = b * 1.0001 + a;
      c += sqrtl(static_cast<long double>(i));
      d = d * 0.99f + static_cast<float>(i);
      between();
    }
    return static_cast<long double>(a) + b / 1e6 + c + d;
  };
  std::vector<std::unique_ptr<Bare>> all;
  long double got[3] = {};
  for (int c = 0; c < 3; c++) {
    all.push_back(std::make_unique<Bare>([&, c](Bare* self) { got[c] = sum(c, n, [&] { self->out(); }); }));
  }
  long double mine = sum(9, n, [&] {
    for (auto& f : all) f->in();
  });
  for (auto& f : all) f->in();
  for (int c = 0; c < 3; c++) {
    EXPECT_TRUE(all[c]->over);
    EXPECT_EQ(got[c], sum(c, n, [] {}));
  }
  EXPECT_EQ(mine, sum(9, n, [] {}));
}

// A fiber that migrates: each switch in comes from another thread.
TEST_F(ContextTest, ResumesOnAnotherThread) {
  const int n = rounds(20000);
  std::atomic<int> turn{0};
  int64_t total = 0;  // plain: moves with the context
  Bare f([&](Bare* self) {
    for (int i = 1; i <= n; i++) {
      total += i;
      self->out();
    }
  });
  together(2, [&](int me) {
    Spin spin;
    for (int i = 0; i <= n; spin()) {
      int now = turn.load(std::memory_order_acquire);
      if (now > n) return;
      if (now % 2 != me) continue;
      f.in();
      turn.store(now + 1, std::memory_order_release);
    }
  });
  EXPECT_TRUE(f.over);
  EXPECT_EQ(total, static_cast<int64_t>(n) * (n + 1) / 2);
}

// What an unwinder gets of a context that is switched out.
VTHR_NOINLINE void leave_here(Bare* self, uintptr_t* frame) {
  *frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  self->out();
  __asm__ volatile("");
}

TEST_F(ContextTest, PeekFindsStackAndCode) {
  uintptr_t frame = 0;
  Bare f([&](Bare* self) { leave_here(self, &frame); });
  f.in();
  void *sp = nullptr, *pc = nullptr, *fp = nullptr;
  context_peek(&f.fiber, &sp, &pc, &fp);
  EXPECT_LT(reinterpret_cast<uintptr_t>(sp), frame);
  EXPECT_GT(reinterpret_cast<uintptr_t>(sp), frame - 1024) << "a few frames below the one that left";
  Dl_info code, self;
  ASSERT_NE(dladdr(pc, &code), 0);
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&context_make), &self), 0);
  EXPECT_EQ(code.dli_fbase, self.dli_fbase) << "the program counter is in our text";
}

}  // namespace
}  // namespace vthr
