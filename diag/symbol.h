// From a program counter to the name of its function: the symbol table of the file (.symtab, else .dynsym), read with
// pread a piece at a time, so that neither a large table costs memory nor a truncated file a SIGBUS. Diagnostics
// thread only; what it returns lives for ever and may be read by any thread.
#pragma once
#include "diag/module.h"

namespace vthr {

struct Symbol {
  uint64_t pc = 0;
  const Module* module = nullptr;  // nullptr: code in no module
  uint64_t offset = 0;             // pc as an address of the module's file
  uint64_t start = 0;              // address of the function; 0: no name
  const char* name = nullptr;      // demangled; nullptr: unknown, or pc is past the end of the nearest symbol
};

struct FrameAddress {
  uint64_t pc = 0;
  bool is_return =
      false;  // a return address: the call is before it, maybe as the last instruction of its function
};

// Looks all of them up, a file at most once. out[i] is never nullptr unless memory ran out.
void symbols_find(const FrameAddress* frames, size_t n, const Symbol** out);

// A C++ or Rust name as people write it, cut to the buffer; false: not a mangled name, or none that is understood.
bool demangle(const char* mangled, char* out, size_t size);

}  // namespace vthr
