// Stacks from what sysmon copied (DESIGN D7): registers and the top of a stack, unwound by libunwind, which is loaded
// when the first stack is needed. Diagnostics thread only.
#pragma once
#include "diag/symbol.h"

namespace vthr {

struct Stack {
  static constexpr size_t kMax = 64;
  static constexpr uint32_t kNowhere = ~0u;
  size_t n = 0;
  bool deeper = false;  // there are more frames than shown
  FrameAddress frame[kMax] = {};
  // Where in the copy the address was found, as an offset from sp; kNowhere: in a register or a signal frame.
  uint32_t found_at[kMax] = {};
};

// frame[0] is r.pc. False: libunwind is not there, only frame[0] is known.
bool unwind(const PinRecord& r, Stack* out);
// Why libunwind cannot be used; nullptr when it can, or was never needed.
const char* unwind_missing();
// True when the copied stack of r surely shows the stack that s was unwound from: same return addresses in the same
// places. Much cheaper than unwinding.
bool same_stack(const PinRecord& r, const Stack& s);

// fork: libunwind and the loader have locks of their own; a child must not be made while this thread holds them.
void unwind_before_fork();  // waits at most 50 ms. The forking thread
void unwind_after_fork(bool in_child);

}  // namespace vthr
