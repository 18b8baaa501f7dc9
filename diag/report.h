// The report of VTHR_REPORT: what was seen, and what was not.
#pragma once
#include "diag/diag.h"
#include "diag/pin.h"
#include "diag/stats.h"

namespace vthr {

class Json;
extern LibcCoverage libc_coverage;  // written at the start of the runtime
void put_libc_coverage(Json* j);

// At the start of the runtime, before any other.
void report_start(int64_t now);
// Renders the report as text, each line after `prefix`, or as JSON. May be cut: try again with more room. Any thread.
void report_render(Text* out, bool json, const char* prefix, bool final_one);
// Writes it where VTHR_REPORT says: a file is replaced as a whole; descriptor 2 and whatever cannot be replaced (a
// pipe, a device) get the final one only. A failure is said once. Diagnostics thread, or the last thread at exit.
void report_write(bool final_one);
bool report_wanted();
bool report_periodic();  // there is a file to replace now and then
void report_after_fork();

}  // namespace vthr
