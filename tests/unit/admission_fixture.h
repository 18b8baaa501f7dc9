// The fixture of the admission units: scheduler and parking lot are small fakes, and time is what the test says.
#pragma once
#include <deque>
#include <functional>
#include <set>

#include "runtime/admission.h"
#include "runtime/options.h"
#include "runtime/parking.h"
#include "runtime/sched.h"
#include "tests/unit/support.h"

namespace vthr {

// --- the fakes, in place of sched.cc, worker.cc and parking.cc -----------------------------------------
__thread Fiber* current __attribute__((tls_model("initial-exec"))) = nullptr;
static std::atomic<uint32_t> alive{1};
std::atomic<uint32_t>* alive_word = &alive;
static std::deque<Fiber*> readied;
static std::function<Wake(const void*, const ParkArgs&)> on_park;
static std::function<void()> while_parked;
static std::multiset<const void*> unparked;

void ready(Fiber* f) { readied.push_back(f); }
void enter(Fiber* f) { f->in_runtime.store(1); }
void leave(Fiber* f) { f->in_runtime.store(0); }
void park(Fiber* f, Reason r, const void*) {
  f->reason.store(r);
  if (f->park.commit()) while_parked();
  f->reason.store(Reason::none);
}
Wake park_on(const void* key, const ParkArgs& args) { return on_park(key, args); }
size_t unpark_some(const void* key, size_t, uint32_t) {
  unparked.insert(key);
  return 0;
}

class AdmissionTest : public testing::Test {
 protected:
  void SetUp() override {
    admission_after_fork();
    readied.clear();
    on_park = nullptr;
    unparked.clear();
    options.admission = kAdmitQueue;
    options.max_concurrency = 2;
    current = nullptr;
  }
  // Parked as the scheduler leaves it.
  static void parks(Fiber* f, Reason r, int64_t since) {
    f->reason.store(r);
    f->since.store(since);
    if (!reason_is_own_request(r) && f->hold_since == 0) f->hold_since = since;
    if (reason_is_own_request(r)) f->hold_since = 0;
    ASSERT_TRUE(f->park.commit());
  }
  // unpark() of sched.cc.
  static void unparks(Fiber* f) {
    if (f->park.unpark() && admission_gate(f)) ready(f);
  }
  static Fiber* next_ready() {
    if (readied.empty()) return nullptr;
    Fiber* f = readied.front();
    readied.pop_front();
    return f;
  }
  Fiber a, b, c, d, e;
};

}  // namespace vthr
