// The io_uring engine (DESIGN D5). Default task work, or COOP_TASKRUN; never DEFER_TASKRUN or SINGLE_ISSUER: a worker
// that takes a carrier over must see the completions of what its predecessor submitted (D3, measured there).
#pragma once
#include "runtime/engine.h"

namespace vthr {

struct RingFeatures {
  bool poll_first = false;
  bool waitid = false;  // kOpWaitid, Linux 6.7
};
const RingFeatures& ring_features();  // probed once by ring_make
void ring_after_fork();               // forked child, after every engine was abandoned

}  // namespace vthr
