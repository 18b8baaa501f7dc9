// Floating point over a switch: control words belong to the context, values survive.
#include <math.h>
#include <xmmintrin.h>

#include "tests/unit/bare_context.h"

namespace vthr {
namespace {

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

}  // namespace
}  // namespace vthr
