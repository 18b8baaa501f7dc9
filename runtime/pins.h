// Pins on their way from sysmon to the diagnostics thread.
#pragma once
#include <cstddef>
#include <cstdint>

namespace vthr {

constexpr size_t kStackCopy = 64 << 10;

// A pin over the threshold, as sysmon caught it. Records come from a fixed pool; diag gives them back.
struct PinRecord {
  enum Kind : uint8_t { native, cpu } kind = native;
  bool handed_off = false;
  bool ongoing = false;     // it lasts for a second and has not ended: the end is posted by another record
  bool has_stack = false;   // sp, pc and stack are from one moment
  bool call_known = false;  // call and args are
  uint64_t fiber_id = 0;
  int fiber_tid = 0;
  char fiber_name[16] = {};
  uint32_t worker_id = 0;
  int worker_tid = 0;
  int64_t started = 0, ended = 0;  // CLOCK_MONOTONIC ns, sampled: ended - started is a lower bound
  int64_t wall_started = 0;        // CLOCK_REALTIME ns
  long call = -1;                  // system call number
  uint64_t args[6] = {};
  const char* hook = nullptr;       // the hook that ran it natively, if one did
  uint64_t pc = 0, sp = 0, fp = 0;  // fp: only for cpu pins (has_fp)
  bool has_fp = false;
  size_t stack_bytes = 0;  // copied from sp upwards
  char* stack = nullptr;   // kStackCopy bytes of room
  PinRecord* next = nullptr;
};

// diag's side: the next closed record, or nullptr when `deadline` (CLOCK_MONOTONIC ns) came first or pins_wake() was
// called. Diagnostics thread.
PinRecord* pins_wait(int64_t deadline);
void pins_wake();                 // any thread
void pins_release(PinRecord* r);  // diagnostics thread
// Lines that sysmon wants printed (alarms): copied into *out; false when there is none. Diagnostics thread.
bool alarm_next(char* out, size_t size);
void alarm_post(const char* line);  // sysmon; drops and counts when full

struct PinTotals {
  uint64_t count, total_ns, longest_ns;  // ended and under way, also those under the threshold
};
PinTotals pin_totals();
// Voluntary context switches of all workers since birth, and those of them that were the runtime's own idle waits.
// Reads /proc/self/task/TID/status of living workers. Any thread that may open files. False: /proc denied.
bool voluntary_switches_of_workers(uint64_t* all, uint64_t* own);

// sysmon's side.
PinRecord* pin_copy(const PinRecord* r);  // nullptr likewise
PinRecord* pin_take();                    // nullptr when all are in use: counted as dropped
void pin_post(PinRecord* r);              // to the diagnostics thread
void pins_after_fork();

}  // namespace vthr
