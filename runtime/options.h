// The options, parsed once in the constructor from the environment. No allocation, no libc state.
#pragma once
#include <cstddef>
#include <cstdint>

namespace vthr {

constexpr size_t kPathMax = 1024;

enum Admission { kAdmitQueue, kAdmitBlock, kAdmitReject };
enum IoEngine { kIoAuto, kIoUring, kIoEpoll };
enum RingFeatures { kRingAuto, kRingNone };
enum PinMode { kPinOff, kPinReport, kPinAbort };
enum LogLevel { kLogError, kLogWarn, kLogInfo };
enum LogFormat { kLogText, kLogJson };

struct Options {
#define OPTION_COUNT(field, name, def, min, max, help) int field = def;
#define OPTION_SIZE(field, name, text, help) uint64_t field = 0;
#define OPTION_TIME(field, name, def, text, help) int64_t field = def;
#define OPTION_ENUM(field, name, def, help, values) int field = def;
#define OPTION_PATH(field, name, text, help) char field[kPathMax] = text;
#include "runtime/options.def"
#undef OPTION_COUNT
#undef OPTION_SIZE
#undef OPTION_TIME
#undef OPTION_ENUM
#undef OPTION_PATH
};

// Written by options_parse in the constructor, read-only afterwards (a forked child keeps its parent's).
extern Options options;

// Reads every VTHR_* of envp. Errors are kept, one line each without the "vthr: " prefix, for the start of the
// runtime to print: a process without threads prints nothing.
void options_parse(char** envp);
const char* options_error(size_t i);  // nullptr past the last
// The table for people: `vthr options` (markdown false) and the README (markdown true). Calls put(line).
void options_table(bool markdown, void (*put)(const char* line));

}  // namespace vthr
