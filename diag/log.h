// Lines and events: to descriptor 2 or the file of VTHR_LOG, as text or JSON; and the queue by which any thread hands a
// line to the diagnostics thread.
#pragma once
#include "diag/file.h"
#include "diag/text.h"

namespace vthr {

class Json;  // diag/json.h

constexpr const char* kPrefix = "vthr: ";
constexpr size_t kPrefixSize = 6;
// Events stay below a page where they can: a pipe takes that much in one piece.
constexpr size_t kEventSize = 4096;

// Who runs the log: `thread` 0: nobody else, lines are written by the caller.
void log_started(int pid);
void log_set_thread(int tid);
void log_after_fork();
int log_pid();

// Writes one event. `data` begins with "vthr: " and ends with a newline; a JSON object loses the prefix in a file,
// where every line is an object. patience: ns to wait for room on a pipe. Diagnostics thread, or whoever may write
// while there is none. False: lost (and counted).
bool log_event(const char* data, size_t n, int64_t patience = 10 * kSecond);
uint64_t log_lost();  // events and lines that could not be written or queued

// Opens the log file, so that a name that does not work is said at once. Diagnostics thread.
void log_open();
// Follows a log file that was moved or removed. Diagnostics thread, now and then.
void log_reopen_if_moved();
// Writes what other threads queued. Diagnostics thread, or the last thread at exit.
void log_drain();

// The line of diag_line, at once. Diagnostics thread, or while there is none.
__attribute__((format(printf, 2, 3))) void log_line(int level, const char* format, ...);

inline bool log_as_json() { return options.log_format == kLogJson; }
inline bool log_wants(int level) { return level <= options.log_level; }
// Opens an object with the fields that every event has. wall: CLOCK_REALTIME ns, mono: CLOCK_MONOTONIC ns.
void json_head(Json* j, const char* event, int64_t wall, int64_t mono);
int64_t wall_ns();
// "2024-05-01T12:34:56.789Z"; libc's functions for it take a lock.
void format_utc(int64_t wall, char out[40]);

}  // namespace vthr
