// Files and descriptors of the diagnostics: the thread's own descriptor table, descriptor 2 of the program, names from
// the environment, writing that neither raises a signal nor waits for ever.
#pragma once
#include "runtime/inspect.h"

namespace vthr {

constexpr size_t kNameMax = 4096 + kPathMax + 32;

// A file named in the environment. `dir` is a handle on its folder in the diagnostics thread's table, so that the file
// can still be reached after the program's chroot; -1: by the full path.
struct Target {
  bool off = true, to_stderr = false, json = false;
  char path[kNameMax] = {};
  int dir = -1;
};
extern Target log_target, report_target;

// Which file descriptor 2 is now, and absolute names. Constructor.
void files_init();
// Expands %p. forked: this process is a forked child, whose report must not replace its parent's. At the start of the
// runtime.
void files_started(int pid, bool forked);
// Is pidfd_getfd refused here? Then the diagnostics thread must share the program's descriptor table. Before it exists.
void files_probe();
// The diagnostics thread's first act: its own descriptor table, if possible.
void files_take_table();
bool files_own_table();  // the calling thread has it
void files_after_fork();

// openat(2) with O_CLOEXEC: -errno, or a descriptor. Where the table is the program's it is moved to a high number.
long file_open(int dir, const char* path, int flags, int mode = 0);
// Opens a target, or with `name` another file in the same folder.
long target_open(const Target& t, int flags, const char* name = nullptr);
const char* target_base(const Target& t);
// The folder for renameat and the like, and the text that names `name` in it.
int target_folder(const Target& t, const char* name, char* text, size_t size);

// Writes all of it, waiting at most `patience` ns in total for room. False: not all of it went out, *err says why
// (EAGAIN: no room). SIGPIPE and its like are swallowed. Any thread.
bool write_all(int fd, const char* data, size_t n, int64_t patience, int* err);
// One write to the program's descriptor 2, if it is still the file that it was at start. False: it is not, or the write
// failed. Any thread.
bool write_stderr(const char* data, size_t n, int64_t patience);
// The process ends: whoever waits for room gives up soon. Any thread.
void files_hurry();

}  // namespace vthr
