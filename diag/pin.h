// Pin events: told apart by their stacks, printed once each and then counted (DESIGN section 5).
#pragma once
#include "diag/log.h"
#include "diag/unwind.h"

namespace vthr {

enum class PinReason : uint8_t { native_frame, foreign_lock, file_io, cpu };
const char* pin_reason_name(PinReason r);

// What a record says, without its stack.
struct PinKind {
  PinReason reason = PinReason::native_frame;
  long call = -1;              // system call, if known
  const char* name = nullptr;  // of the call, or of the hook that ran it; nullptr: unknown
  const char* hook = nullptr;
  bool page_fault = false;   // asleep in the kernel, but in no system call
  bool inline_call = false;  // a system call instruction outside libc
};
PinKind pin_classify(const PinRecord& r);

// All pins over the threshold with one stack. Made and counted by the diagnostics thread; once published, any thread
// may read all but the part at the end.
struct PinEntry {
  uint32_t id = 0;  // the same in every run of a program: made of offsets in files
  PinKind kind;
  bool has_stack = false, short_stack = false;
  Stack stack;
  const Symbol* symbols[Stack::kMax] = {};
  size_t marked = Stack::kMax;  // the first frame of the program
  std::atomic<uint64_t> count{0}, total_ns{0}, longest_ns{0};

  // Repeats that were not printed yet. Diagnostics thread only.
  uint64_t more = 0, more_ns = 0;
  int64_t window_start = 0;
};

// Counts the event and prints it if its stack is new. Diagnostics thread.
void pin_event(const PinRecord& r, int64_t now);
// Prints the counts whose ten seconds are over, or all. Diagnostics thread.
void pin_flush(int64_t now, bool all);
int64_t pin_next_flush();  // when the next one is due; kNever: nothing waits
// All distinct stacks so far, oldest first. Any thread.
size_t pin_entry_count();
const PinEntry& pin_entry(size_t i);
// Pins over the threshold that no entry counts: more different stacks than there is room for, or too many a second.
struct PinOthers {
  uint64_t count, total_ns;
};
PinOthers pin_others();
void pins_forget();  // forked child

// The frames of an entry, a line each, in at most the room of `out` less `reserve` bytes. Each line begins with
// `prefix`.
void put_frames(Text* out, const PinEntry& e, const char* prefix, size_t reserve);
void put_frames(Json* j, const PinEntry& e);
// "native-frame  call=read" and the like.
void put_kind(Text* out, const PinKind& k);
void put_kind(Json* j, const PinKind& k);
// A name for the whole entry: the marked frame's function, or the first one's.
void put_place(Text* out, const PinEntry& e);

}  // namespace vthr
