// Names of system calls for pin reports.
#pragma once

namespace vthr {

// "read", or nullptr when the number is unknown. Any thread.
const char* call_name(long number);
// The number of "read", or -1.
long call_number(const char* name);
// Its first argument is a descriptor.
bool call_takes_fd(long number);
// Input or output on a file, of the kind that hooks run natively because a file cannot be waited for.
bool call_is_file_io(long number);

}  // namespace vthr
