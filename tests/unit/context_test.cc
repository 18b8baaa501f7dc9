// Switching contexts: stacks, registers, migration (context_fp_test has floating point).
#include "runtime/context.h"

#include <xmmintrin.h>

#include "tests/unit/bare_context.h"

// keep_registers(fn, arg, seed): fills the callee-saved registers, calls fn(arg), and returns how many differ then.
__asm__(R"(
  .macro check register, n
  sub $\n, \register
  cmp %rdx, \register
  setne %cl
  add %ecx, %eax
  .endm
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
  check %rbx, 1
  check %rbp, 2
  check %r12, 3
  check %r13, 4
  check %r14, 5
  check %r15, 6
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

// A fiber that migrates: each switch in comes from another thread.
TEST_F(ContextTest, ResumesOnAnotherThread) {
  const int n = rounds(20000);
  const Budget budget(n);
  std::atomic<int> turn{0};
  int moves = 0;
  int64_t total = 0;  // plain: moves with the context
  Bare f([&](Bare* self) {
    while (budget.has(moves)) {
      total += ++moves;
      self->out();
    }
  });
  together(2, [&](int me) {
    Spin spin;
    for (int now; (now = turn.load(std::memory_order_acquire)) >= 0; spin()) {
      if (now % 2 != me) continue;
      f.in();
      turn.store(f.over ? -1 : now + 1, std::memory_order_release);
    }
  });
  EXPECT_GT(moves, 10);
  EXPECT_EQ(total, static_cast<int64_t>(moves) * (moves + 1) / 2);
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
