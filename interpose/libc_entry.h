// Layer 2 of interposition (DESIGN D6): calls from inside libc.
#pragma once

namespace vthr {

// Redirects the entries of libc_entry.def into our code. The thread of the first pthread_create, before any thread of ours
// exists; strangers: others do. A second call (a forked child) does nothing: the redirected text came with the process.
void libc_entry_start(bool strangers);
// Puts libc's own code back: the runtime did not start. The same thread, while it is still the only one.
void libc_entry_undo();

// What came of it: the number of functions that were redirected, of those that have a row, and if none was the reason.
struct LibcEntry {
  int redirected, wanted;
  const char* why;  // nullptr: some were redirected
  bool refused;     // the system did not let us write to libc's text: worth a warning
};
extern LibcEntry libc_entry;

}  // namespace vthr
