#include "runtime/stack.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <cstring>

#include "runtime/base.h"
#include "runtime/lock.h"
#include "runtime/sys.h"
#include "runtime/tls.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102  // linux 6.13
#endif

namespace vthr {

// A free slot, linked through the lowest word of its record area. The record keeps the rest of its contents.
struct FreeSlot {
  FreeSlot* next;
};

struct SlotClass {
  SlotClass* next;
  size_t stack_bytes, guard_bytes, slot_bytes;
  Lock lock;
  FreeSlot* free_list;
  std::atomic<size_t> free_count;  // changes under the lock
  char* fresh_low;                 // not yet carved part of the newest arena
  char* fresh_high;
};

namespace {

constexpr size_t kArenaBytes = 512ull << 20, kMinSlots = 16, kMaxSlots = 1024;
constexpr size_t kKeepHot = 256;        // free stacks of a class that keep their pages
constexpr size_t kKeepBelowTop = 8192;  // of the others, bytes next to the record that stay

// A page of page-table entries covers this much. Where slots meet in its middle, the top of one and the guard of the next
// share such a page: 6.2 us instead of 7.6 us for guard and first two pages of an 8 MiB slot, and 4 KiB less.
constexpr size_t kTableSpan = 2 << 20;

constexpr size_t kLeastStack = 2048;  // below it nothing runs, not even a signal handler

size_t record_size;
Lock classes_lock;
std::atomic<SlotClass*> classes{nullptr};
std::atomic<bool> one_by_one{false};
std::atomic<uint64_t> slots_made{0};
std::atomic<int> guard_by_madvise{-1};  // -1 unknown, 0 no, 1 yes

bool overcommit_is_strict() {
  char c = 0;
  long fd = sys_call(SYS_openat, AT_FDCWD, sys_arg("/proc/sys/vm/overcommit_memory"), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  sys_call(SYS_read, fd, sys_arg(&c), 1);
  sys_call(SYS_close, fd);
  return c == '2';
}

bool map_arena(SlotClass* c) {
  size_t n = kArenaBytes / c->slot_bytes;
  n = n < kMinSlots ? kMinSlots : n > kMaxSlots ? kMaxSlots : n;
  rlimit as{}, data{};
  getrlimit(RLIMIT_AS, &as);
  getrlimit(RLIMIT_DATA, &data);
  if (one_by_one.load(std::memory_order_relaxed) || as.rlim_cur != RLIM_INFINITY ||
      data.rlim_cur != RLIM_INFINITY)
    n = 1;
  size_t spare = c->slot_bytes % kTableSpan == 0 && n > 1 ? kTableSpan : 0;
  void* p = sys_map(n * c->slot_bytes + spare);
  if (p == nullptr && n > 1) p = sys_map(c->slot_bytes), n = 1, spare = 0;
  if (p == nullptr) return false;
  if (n > 1) {
    // MCL_FUTURE fills a mapping at once: then every arena is one stack
    unsigned char resident = 0;
    sys_call(SYS_mincore, sys_arg(p), kPage, sys_arg(&resident));
    if ((resident & 1) != 0) {
      one_by_one.store(true, std::memory_order_relaxed);
      sys_unmap(static_cast<char*>(p) + c->slot_bytes, (n - 1) * c->slot_bytes + spare);
      n = 1;
      spare = 0;
    }
  }
  sys_call(SYS_madvise, sys_arg(p), n * c->slot_bytes + spare, MADV_NOHUGEPAGE);
  c->fresh_low = static_cast<char*>(p);
  if (spare != 0) {
    uintptr_t first = round_up(reinterpret_cast<uintptr_t>(p) + kTableSpan / 2, kTableSpan) - kTableSpan / 2;
    c->fresh_low = reinterpret_cast<char*>(first);
  }
  c->fresh_high = c->fresh_low + n * c->slot_bytes;
  return true;
}

// A guard that costs no mapping where the kernel has it, else one by mprotect.
bool install_guard(char* low, size_t bytes) {
  if (bytes == 0) return true;
  if (guard_by_madvise.load(std::memory_order_relaxed) != 0) {
    if (sys_call(SYS_madvise, sys_arg(low), bytes, MADV_GUARD_INSTALL) == 0) {
      guard_by_madvise.store(1, std::memory_order_relaxed);
      return true;
    }
    // locked memory refuses it too, so it is tried again for the next slot unless it never worked
    if (guard_by_madvise.load(std::memory_order_relaxed) < 0)
      guard_by_madvise.store(0, std::memory_order_relaxed);
  }
  return sys_call(SYS_mprotect, sys_arg(low), bytes, PROT_NONE) == 0;
}

SlotClass* find_class(size_t stack_bytes, size_t guard_bytes) {
  for (SlotClass* c = classes.load(std::memory_order_acquire); c != nullptr; c = c->next) {
    if (c->stack_bytes == stack_bytes && c->guard_bytes == guard_bytes) return c;
  }
  return nullptr;
}

SlotClass* class_of(size_t stack_bytes, size_t guard_bytes) {
  SlotClass* c = find_class(stack_bytes, guard_bytes);
  if (VTHR_LIKELY(c != nullptr)) return c;
  Locked hold(classes_lock);
  c = find_class(stack_bytes, guard_bytes);
  if (c != nullptr) return c;
  c = static_cast<SlotClass*>(sys_map(kPage));
  if (c == nullptr) return nullptr;
  c->stack_bytes = stack_bytes;
  c->guard_bytes = guard_bytes;
  // As in glibc, record and TLS block lie inside the size that was asked for: the guard is right below, the end right
  // above what pthread_getattr_np says.
  c->slot_bytes = stack_bytes != 0 ? stack_bytes : round_up(record_size + tls_block_size(), kPage);
  c->next = classes.load(std::memory_order_relaxed);
  classes.store(c, std::memory_order_release);
  return c;
}

// From the top: TLS block, record, stack; a small fiber touches two pages.
Slot slot_at(char* low, SlotClass* c) {
  Slot s;
  s.low = low;
  s.stack_bytes = c->stack_bytes;
  s.guard_bytes = c->guard_bytes;
  s.tls_block = low + c->slot_bytes - tls_block_size();
  s.record = static_cast<char*>(s.tls_block) - record_size;
  s.cls = c;
  return s;
}

}  // namespace

void stack_init(size_t record_bytes) {
  record_size = round_up(record_bytes, kCacheLine);
  if (overcommit_is_strict()) one_by_one.store(true, std::memory_order_relaxed);
}

bool stack_take(size_t stack_bytes, size_t guard_bytes, Slot* slot) {
  stack_bytes = round_up(stack_bytes, kPage);
  guard_bytes = round_up(guard_bytes, kPage);
  if (stack_bytes != 0 && stack_bytes < guard_bytes + record_size + tls_block_size() + kLeastStack)
    return false;
  SlotClass* c = class_of(stack_bytes, guard_bytes);
  if (c == nullptr) return false;
  Locked hold(c->lock);
  if (c->free_list != nullptr) {
    FreeSlot* f = c->free_list;
    c->free_list = f->next;
    c->free_count--;
    auto* tls = reinterpret_cast<char*>(f) + record_size;
    *slot = slot_at(tls + tls_block_size() - c->slot_bytes, c);
    slot->fresh = false;
    return true;
  }
  if (c->fresh_low == c->fresh_high && !map_arena(c)) return false;
  if (!install_guard(c->fresh_low, guard_bytes)) return false;
  *slot = slot_at(c->fresh_low, c);
  slot->fresh = true;
  c->fresh_low += c->slot_bytes;
  slots_made.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void stack_give(const Slot& slot) {
  SlotClass* c = slot.cls;
  if (c->free_count.load(std::memory_order_relaxed) >= kKeepHot && c->stack_bytes != 0) {
    char* low = slot.low + c->guard_bytes;
    char* high =
        reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(slot.record) - kKeepBelowTop) & ~(kPage - 1));
    if (high > low) sys_call(SYS_madvise, sys_arg(low), high - low, MADV_DONTNEED);
  }
  auto* f = static_cast<FreeSlot*>(slot.record);
  Locked hold(c->lock);
  f->next = c->free_list;
  c->free_list = f;
  c->free_count++;
}

StackStats stack_stats() {
  StackStats s{slots_made.load(std::memory_order_relaxed), 0};
  for (SlotClass* c = classes.load(std::memory_order_acquire); c != nullptr; c = c->next)
    s.free_now += c->free_count;
  return s;
}

void stack_after_fork() {
  classes_lock.reset();
  classes.store(nullptr, std::memory_order_relaxed);
}

}  // namespace vthr
