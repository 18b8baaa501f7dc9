// Two fibers on two carriers write the same plain variable: ThreadSanitizer must say so, else the units that run under it
// prove nothing. What they did before, one after the other and handed on through the parking lot, it must not complain of.
// run: exit=66 says="WARNING: ThreadSanitizer: data race .*\s+(Read|Write) of size 4 .*\s+#0 seeded_race"
#include "tests/unit/fibers.h"

using namespace vthr;

__attribute__((noinline)) static void seeded_race(int* plain) { (*plain)++; }

int main() {
  options.pin = kPinOff;
  if (const char* why = start_runtime(2)) return fprintf(stderr, "%s\n", why), 1;
  static int ordered, racy;
  static std::atomic<int> here{0};
  Gate turn[2];
  auto body = [&](Fiber*, int me) {
    for (int i = 0; i < 100; i++) {
      turn[me].wait();
      ordered++;
      turn[1 - me].post();
    }
    here.fetch_add(1, std::memory_order_relaxed);  // orders nothing, but both run now
    while (here.load(std::memory_order_relaxed) < 2) __builtin_ia32_pause();
    seeded_race(&racy);
  };
  {
    Fibers both;
    for (int me = 0; me < 2; me++) both.add([&body, me](Fiber* f) { body(f, me); });
    turn[0].post();
  }
  fprintf(stderr, "ordered %d racy %d\n", ordered, racy);
  return ordered == 200 ? 0 : 1;
}
