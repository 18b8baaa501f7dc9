// Pins from sysmon to the diagnostics thread: a fixed pool of records, a queue, and the totals.
#include <fcntl.h>
#include <cstdio>
#include <cstring>
#include <new>

#include "runtime/pins.h"
#include "runtime/sched.h"
#include "runtime/sys.h"

namespace vthr {

namespace {

constexpr int kRecords = 512, kAlarms = 16;  // untouched ones cost address space only
constexpr size_t kAlarmBytes = 512;

Lock lock;  // guards the lists; held for a few instructions
PinRecord *free_records, *queue_head, *queue_tail;
bool pool_made;
char alarms[kAlarms][kAlarmBytes];
int alarm_first, alarm_count;
std::atomic<uint32_t> bell{0};

void make_pool() {
  pool_made = true;
  auto* stacks = static_cast<char*>(sys_map(kRecords * kStackCopy));
  auto* records = static_cast<PinRecord*>(sys_map(round_up(kRecords * sizeof(PinRecord), kPage)));
  if (stacks == nullptr || records == nullptr) return;
  for (int i = 0; i < kRecords; i++) {
    auto* r = new (&records[i]) PinRecord;
    r->stack = stacks + static_cast<size_t>(i) * kStackCopy;
    r->next = free_records;
    free_records = r;
  }
}

}  // namespace

PinRecord* pin_take() {
  Locked hold(lock);
  if (!pool_made) make_pool();
  PinRecord* r = free_records;
  if (r == nullptr) {
    count(counters.events_dropped);
    return nullptr;
  }
  free_records = r->next;
  char* stack = r->stack;
  new (r) PinRecord;
  r->stack = stack;
  return r;
}

PinRecord* pin_copy(const PinRecord* r) {
  PinRecord* copy = pin_take();
  if (copy == nullptr) return nullptr;
  char* stack = copy->stack;
  *copy = *r;
  copy->stack = stack;
  copy->next = nullptr;
  memcpy(stack, r->stack, r->stack_bytes);
  return copy;
}

void pin_post(PinRecord* r) {
  {
    Locked hold(lock);
    r->next = nullptr;
    (queue_tail != nullptr ? queue_tail->next : queue_head) = r;
    queue_tail = r;
  }
  pins_wake();
}

void pins_release(PinRecord* r) {
  Locked hold(lock);
  r->next = free_records;
  free_records = r;
}

PinRecord* pins_wait(int64_t deadline) {
  static uint32_t
      served;  // the diagnostics thread is the only caller: a wake that came before the call counts
  for (;;) {
    uint32_t seen = bell.load(std::memory_order_acquire);
    bool rung = seen != served;
    served = seen;
    {
      Locked hold(lock);
      PinRecord* r = queue_head;
      if (r != nullptr) {
        queue_head = r->next;
        if (queue_head == nullptr) queue_tail = nullptr;
        return r;
      }
    }
    if (rung) return nullptr;
    int64_t left = deadline == kNever ? -1 : deadline - now_ns();
    if (deadline != kNever && left <= 0) return nullptr;
    sys_futex_wait(&bell, seen, left);
  }
}

void pins_wake() {
  bell.fetch_add(1, std::memory_order_release);
  sys_futex_wake(&bell);
}

void alarm_post(const char* line) {
  {
    Locked hold(lock);
    if (alarm_count == kAlarms) {
      count(counters.events_dropped);
      return;
    }
    snprintf(alarms[(alarm_first + alarm_count++) % kAlarms], kAlarmBytes, "%s", line);
  }
  pins_wake();
}

bool alarm_next(char* out, size_t size) {
  Locked hold(lock);
  if (alarm_count == 0) return false;
  snprintf(out, size, "%s", alarms[alarm_first]);
  alarm_first = (alarm_first + 1) % kAlarms;
  alarm_count--;
  return true;
}

void pins_after_fork() {
  lock.reset();
  free_records = queue_head = queue_tail = nullptr;
  pool_made = false;
  alarm_count = 0;
}

bool voluntary_switches_of_workers(uint64_t* all, uint64_t* own) {
  *all = counters.voluntary_retired.load(std::memory_order_relaxed);
  *own = counters.own_waits_retired.load(std::memory_order_relaxed);
  for (Worker* w = all_workers(); w != nullptr; w = w->all_next) {
    if (w->bound || w->state.load(std::memory_order_acquire) == kRetired || w->tid == 0) continue;
    char path[64], text[4096];
    // own waits first: a wait that ends in between then counts as unseen for a moment rather than as negative
    uint64_t mine = w->own_waits.load(std::memory_order_relaxed);
    snprintf(path, sizeof path, "/proc/self/task/%d/status", w->tid);
    long fd = sys_call(SYS_openat, AT_FDCWD, sys_arg(path), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    long n = sys_call(SYS_read, fd, sys_arg(text), sizeof text - 1);
    sys_call(SYS_close, fd);
    if (n <= 0) return false;
    text[n] = 0;
    const char* p = strstr(text, "\nvoluntary_ctxt_switches:");
    unsigned long long v = 0;
    if (p == nullptr || sscanf(p + 25, "%llu", &v) != 1) return false;
    // the sleep under way in an idle wait is counted by the kernel when it begins, by us when it ends
    bool idle = w->sleeps.load(std::memory_order_relaxed);
    *all += v - w->voluntary_at_birth;
    *own += mine + (idle ? 1 : 0);
  }
  return true;
}

}  // namespace vthr
