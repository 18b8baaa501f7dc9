// One fiber frees what another one still reads, both on stacks and thread pointers of their own: AddressSanitizer must say so,
// else the units that run under it prove nothing.
// run: exit=1 says="ERROR: AddressSanitizer: heap-use-after-free .*\s+READ of size 4 .*\s+#0 .* in seeded_use"
#include "tests/unit/fibers.h"

using namespace vthr;

__attribute__((noinline)) static int seeded_use(const int* p) { return *p; }

int main() {
  options.pin = kPinOff;
  if (const char* why = start_runtime(2)) return fprintf(stderr, "%s\n", why), 2;
  Gate made, freed;
  int* shared = nullptr;
  int read = 0;
  {
    Fibers both;
    both.add([&](Fiber*) {
      made.wait();
      delete shared;
      freed.post();
    });
    both.add([&](Fiber*) {
      shared = new int(42);
      read = seeded_use(shared);
      made.post();
      freed.wait();
      read += seeded_use(shared);
    });
  }
  fprintf(stderr, "not noticed: %d\n", read);
  return 0;
}
