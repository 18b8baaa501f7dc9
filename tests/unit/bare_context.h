// A context with a stack and nothing else, for the units of context.cc. The FS base stays (tls_test moves it), so that they
// run under ThreadSanitizer too.
#pragma once
#include <memory>

#include "runtime/context.h"
#include "tests/unit/support.h"

namespace vthr {

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

}  // namespace vthr
