// What the fibers do now: the line of VTHR_STATS, and a part of the report.
#pragma once
#include "diag/log.h"

namespace vthr {

constexpr size_t kReasons = 64;  // room for the rows of wait_reasons.def
static_assert(static_cast<size_t>(Reason::signal) < kReasons, "more reasons than room");

// Fibers by state. The parts are counted one after the other while fibers run on, so they are near the truth, not
// exact to the fiber.
struct Census {
  uint64_t made = 0, alive = 0, running = 0, runnable = 0, parked = 0, queued = 0;
  int64_t oldest_queued = 0;  // ns
  uint64_t by_reason[kReasons] = {};
  uint64_t pinned = 0, in_flight = 0;
  int workers = 0;
};
// Looks at every fiber: some ms per 100,000. Any thread.
Census census_take(int64_t now);
// "recv=900, cond=80", the largest first.
void put_reasons(Text* out, const Census& c, const char* between);
void put_census(Json* j, const Census& c);

// The line of VTHR_STATS. Diagnostics thread.
void stats_start(int64_t now);
void stats_print(int64_t now);

}  // namespace vthr
