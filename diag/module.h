// The program and its libraries as the loader lists them, read without the loader's lock: like a debugger does, from
// r_debug and the link maps, each word by process_vm_readv, so that a list that changes meanwhile, or garbage, costs a
// name and never a fault. Diagnostics thread only.
#pragma once
#include "runtime/inspect.h"

namespace vthr {

struct Module {
  uint64_t bias = 0;           // added to the addresses in its file
  uint64_t low = 0, high = 0;  // mapped from, to
  uint64_t eh_frame_hdr = 0;   // 0: none
  uint64_t eh_frame_hdr_size = 0;
  uint64_t first_bytes = 0;  // address of its ELF header; 0: not mapped
  struct {
    uint64_t low, high;
  } code[4] = {};  // executable segments
  uint64_t link_map = 0;
  uint32_t index = 0;
  bool main = false;      // the executable
  bool plumbing = false;  // libc, the loader, libgcc and the like, or libvthr: not "the program"
  bool ours = false;      // libvthr itself
  bool libc = false;
  bool gone = false;  // unloaded since
  char path[512] = {};
  const char* name = path;  // the part after the last slash

  bool has_code_at(uint64_t pc) const {
    for (const auto& c : code) {
      if (pc >= c.low && pc < c.high) return true;
    }
    return false;
  }
};

// Keeps a handle on the executable's file and its name. The diagnostics thread, when it starts.
void modules_start();
const char* program_path();  // of the executable; "" when unknown. Any thread after modules_start
const char* program_name();
long program_file();  // a descriptor of it for the diagnostics thread, or -errno
// Reads the loader's list again.
void modules_refresh();
// The module whose code is at pc; nullptr: none (code made at run time), or not listed yet.
const Module* module_of(uint64_t pc);
// The module mapped at addr, code or not.
const Module* module_at(uint64_t addr);
void modules_after_fork();

// Copies memory of this process; false when not all of it is readable.
bool peek(uint64_t addr, void* to, size_t n);

// peek with a few pages kept, for an unwinder that reads words.
class PageCache {
 public:
  bool word(uint64_t addr, uint64_t* out);  // any alignment
  void clear() {
    for (auto& p : pages_) p.tag = 0;
  }

 private:
  static constexpr size_t kPages = 8;
  struct Page {
    uint64_t tag = 0;  // address + 1; 0: empty
    bool readable = false;
    alignas(8) unsigned char bytes[kPage] = {};
  };
  Page* page(uint64_t addr);
  Page pages_[kPages] = {};
  size_t next_ = 0;
};

}  // namespace vthr
