// Memory of fibers (DESIGN D9): one slot is guard, stack, record and TLS block, in that order upwards, so that a small
// fiber touches two pages. Slots are recycled per size class and never unmapped: their TCB stays on glibc's list.
#pragma once
#include <cstddef>
#include <cstdint>

namespace vthr {

struct SlotClass;

struct Slot {
  char* low = nullptr;     // lowest address, guard included
  size_t stack_bytes = 0;  // guard included; 0: the program's own stack is used
  size_t guard_bytes = 0;
  void* record = nullptr;  // where the fiber's record is
  void* tls_block = nullptr;
  SlotClass* cls = nullptr;
  bool fresh = false;  // memory is untouched: record and TLS must be made
};

// record_bytes: of the record above each stack. Start only.
void stack_init(size_t record_bytes);
// A recycled or a new slot; false when memory is refused (EAGAIN to the program), nothing half-made stays.
// Fiber or foreign thread.
bool stack_take(size_t stack_bytes, size_t guard_bytes, Slot* slot);
// Gives a slot back whose stack nobody runs on. Any thread.
void stack_give(const Slot& slot);
// Process-wide figures for stats.
struct StackStats {
  uint64_t made, free_now;
};
StackStats stack_stats();
// Forked child: forget all pools, leaking them.
void stack_after_fork();

}  // namespace vthr
