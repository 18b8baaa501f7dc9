// Stacks unwound from copies, names of functions and system calls. Without the runtime.
#include <gtest/gtest.h>
#include <vector>

#include "diag/calls.h"
#include "diag/symbol.h"
#include "diag/unwind.h"
#include "tests/unit/blocked.h"

using namespace vthr;

namespace {

std::string name_of(const Symbol* s) { return s != nullptr && s->name != nullptr ? s->name : ""; }

std::vector<std::string> names(const PinRecord& r) {
  Stack stack;
  EXPECT_TRUE(unwind(r, &stack)) << unwind_missing();
  const Symbol* symbols[Stack::kMax];
  symbols_find(stack.frame, stack.n, symbols);
  std::vector<std::string> out;
  for (size_t i = 0; i < stack.n; i++) out.push_back(name_of(symbols[i]));
  return out;
}

size_t place_of(const std::vector<std::string>& all, const char* part) {
  for (size_t i = 0; i < all.size(); i++) {
    if (all[i].find(part) != std::string::npos) return i;
  }
  return 1000;
}

std::string joined(const std::vector<std::string>& all) {
  std::string out;
  for (const auto& s : all) out += s + "\n";
  return out;
}

}  // namespace

TEST(Unwind, InlineCallInStaticFunctions) {
  PinRecord* r = record_of([] { outer_function(3); }, SYS_futex);
  auto n = names(*r);
  EXPECT_EQ(place_of(n, "leaf_with_inline_call"), 0u) << joined(n);
  EXPECT_EQ(place_of(n, "middle_function"), 1u) << joined(n);
  EXPECT_EQ(place_of(n, "outer_function"), 2u) << joined(n);
  EXPECT_LT(place_of(n, "blocked_main"), 5u) << joined(n);
}

TEST(Unwind, InlineCallWithUnknownFramePointer) {
  PinRecord* r = record_of(caller_with_frame_pointer, SYS_futex);
  ASSERT_FALSE(r->has_fp);
  auto n = names(*r);
  EXPECT_EQ(place_of(n, "leaf_with_frame_pointer"), 0u) << joined(n);
  EXPECT_EQ(place_of(n, "caller_with_frame_pointer"), 1u) << joined(n);
  EXPECT_EQ(place_of(n, "blocked_main"), 2u) << joined(n);
}

TEST(Unwind, ThroughLibcToUnoptimisedFunction) {
  ASSERT_EQ(pipe(pipe_fds), 0);
  PinRecord* r = record_of(read_many_lines, SYS_read);
  auto n = names(*r);
  EXPECT_LT(place_of(n, "fgets"), 8u) << joined(n);
  EXPECT_EQ(place_of(n, "read_a_line"), place_of(n, "fgets") + 1) << joined(n);
  EXPECT_EQ(place_of(n, "read_many_lines"), place_of(n, "fgets") + 2) << joined(n);
}

TEST(Unwind, SameStackIsRecognisedWithoutUnwinding) {
  PinRecord* a = record_of([] { outer_function(3); }, SYS_futex);
  PinRecord* b = record_of([] { other_outer_function(3); }, SYS_futex);
  PinRecord* c = record_of([] { middle_function(4); }, SYS_futex);
  Stack stack;
  ASSERT_TRUE(unwind(*a, &stack));
  EXPECT_TRUE(same_stack(*a, stack));
  EXPECT_FALSE(same_stack(*b, stack));
  EXPECT_FALSE(same_stack(*c, stack));
}

TEST(Unwind, EndsOnGarbage) {
  PinRecord* r = record_of([] { outer_function(3); }, SYS_futex);
  unsigned seed = 1;
  uint64_t pc = r->pc;
  for (int round = 0; round < 300; round++) {
    for (size_t i = 0; i < r->stack_bytes; i += 8) {
      uint64_t value = static_cast<uint64_t>(rand_r(&seed)) << 32 | static_cast<unsigned>(rand_r(&seed));
      // Among noise, words that look like return addresses and like frame pointers.
      if (value % 5 == 0) value = pc + value % 4096;
      if (value % 7 == 0) value = r->sp + (value % r->stack_bytes & ~7ull);
      memcpy(r->stack + i, &value, 8);
    }
    r->pc = round % 3 == 0 ? static_cast<uint64_t>(rand_r(&seed))
                           : pc + static_cast<unsigned>(rand_r(&seed)) % 100000;
    Stack stack;
    unwind(*r, &stack);
    EXPECT_LE(stack.n, Stack::kMax);
    EXPECT_GE(stack.n, 1u);
  }
}

TEST(Symbols, PastTheEndOfASymbolIsNoName) {
  modules_refresh();
  auto* libc = reinterpret_cast<const char*>(&gettid);
  const Symbol* s = nullptr;
  FrameAddress f{reinterpret_cast<uint64_t>(libc), false};
  symbols_find(&f, 1, &s);
  ASSERT_NE(s, nullptr);
  ASSERT_NE(s->module, nullptr);
  EXPECT_STREQ(s->module->name, "libc.so.6");
  EXPECT_EQ(name_of(s), "gettid");
  EXPECT_EQ(s->start, f.pc);
  // Bytes between functions belong to none.
  f.pc = s->module->code[0].low;
  symbols_find(&f, 1, &s);
  ASSERT_NE(s, nullptr);
  EXPECT_EQ(s->offset, f.pc - s->module->bias);
}

TEST(Symbols, Demangles) {
  char out[100];
  EXPECT_TRUE(demangle("_ZN4vthr5parseEPKc", out, sizeof out));
  EXPECT_STREQ(out, "vthr::parse(char const*)");
  EXPECT_TRUE(demangle("_ZN4core3fmt5write17h0123456789abcdefE", out, sizeof out));
  EXPECT_STREQ(out, "core::fmt::write");
  EXPECT_FALSE(demangle("main", out, sizeof out));
  EXPECT_FALSE(demangle("_ZNnonsense", out, sizeof out));
  char small[8];
  EXPECT_TRUE(demangle("_ZN4vthr5parseEPKc", small, sizeof small));
  EXPECT_STREQ(small, "vthr::p");
}

TEST(Calls, NamesAndDescriptors) {
  EXPECT_STREQ(call_name(0), "read");
  EXPECT_STREQ(call_name(202), "futex");
  EXPECT_EQ(call_name(100000), nullptr);
  EXPECT_EQ(call_number("read"), 0);
  EXPECT_EQ(call_number("recv"), -1);
  EXPECT_TRUE(call_takes_fd(SYS_read));
  EXPECT_TRUE(call_takes_fd(SYS_recvfrom));
  EXPECT_FALSE(call_takes_fd(SYS_futex));
  EXPECT_TRUE(call_is_file_io(SYS_fsync));
  EXPECT_FALSE(call_is_file_io(SYS_connect));
}
