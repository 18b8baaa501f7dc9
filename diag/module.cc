#include "diag/module.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/uio.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "diag/file.h"

namespace vthr {

namespace {

constexpr size_t kModules = 1024;  // records are kept for ever: symbols refer to them
constexpr size_t kWalk = 4096;     // steps through a list that may change under us
constexpr int kSpaces = 16;        // namespaces of dlmopen

Module* modules;
size_t module_count;
uint64_t debug_address;
char exe_path[1024];
const char* exe_name = exe_path;
int exe_fd = -1;

bool read_text(uint64_t addr, char* to, size_t size) {
  size_t n = 0;
  while (n + 1 < size) {
    size_t part = kPage - (addr + n) % kPage;
    if (part > size - 1 - n) part = size - 1 - n;
    if (!peek(addr + n, to + n, part)) return false;
    if (memchr(to + n, 0, part) != nullptr) return true;
    n += part;
  }
  to[n] = 0;
  return true;
}

bool starts_with(const char* s, const char* start) { return strncmp(s, start, strlen(start)) == 0; }

void classify(Module* m) {
  const char* slash = strrchr(m->path, '/');
  m->name = slash != nullptr ? slash + 1 : m->path;
  m->libc = starts_with(m->name, "libc.so.") || starts_with(m->name, "libc-2.");
  m->ours = m->has_code_at(reinterpret_cast<uint64_t>(&modules_refresh)) && !m->main;
  static constexpr const char* kPlumbing[] = {"ld-linux", "ld-2.",    "libgcc_s.", "libstdc++.", "libpthread",
                                              "libm.so.", "libdl.so", "librt.so",  "linux-vdso", "libc++"};
  m->plumbing = m->libc || m->ours;
  for (const char* p : kPlumbing) m->plumbing |= starts_with(m->name, p);
  if (m->main) m->plumbing = false;
}

// Fills in what the program headers say. at: address of the headers.
bool read_segments(Module* m, uint64_t at, size_t count) {
  size_t codes = 0;
  m->low = ~0ull;
  for (size_t i = 0; i < count && i < 64; i++) {
    ElfW(Phdr) ph{};
    if (!peek(at + i * sizeof ph, &ph, sizeof ph)) return false;
    uint64_t start = m->bias + ph.p_vaddr, end = start + ph.p_memsz;
    if (ph.p_type == PT_LOAD) {
      if (start < m->low) m->low = start;
      if (end > m->high) m->high = end;
      if (ph.p_offset == 0) m->first_bytes = start;
      if ((ph.p_flags & PF_X) != 0 && codes < 4) m->code[codes++] = {start, end};
    } else if (ph.p_type == PT_GNU_EH_FRAME) {
      m->eh_frame_hdr = start;
      m->eh_frame_hdr_size = ph.p_memsz;
    }
  }
  return codes > 0;
}

bool describe(Module* m, uint64_t map_addr, const link_map& map, bool is_main) {
  m->link_map = map_addr;
  m->bias = map.l_addr;
  m->main = is_main;
  if (is_main) {
    if (!read_segments(m, getauxval(AT_PHDR), getauxval(AT_PHNUM))) return false;
    snprintf(m->path, sizeof m->path, "%.*s", static_cast<int>(sizeof m->path) - 1, exe_path);
  } else {
    ElfW(Ehdr) eh{};
    if (!peek(map.l_addr, &eh, sizeof eh) || memcmp(eh.e_ident, ELFMAG, SELFMAG) != 0) return false;
    if (!read_segments(m, map.l_addr + eh.e_phoff, eh.e_phnum)) return false;
    if (!read_text(reinterpret_cast<uint64_t>(map.l_name), m->path, sizeof m->path)) return false;
  }
  classify(m);
  return true;
}

// The loader leaves the address of its r_debug in the executable's dynamic section.
uint64_t find_debug() {
  uint64_t at = getauxval(AT_PHDR), count = getauxval(AT_PHNUM), bias = 0, dynamic = 0;
  for (uint64_t i = 0; i < count; i++) {
    ElfW(Phdr) ph{};
    if (!peek(at + i * sizeof ph, &ph, sizeof ph)) return 0;
    if (ph.p_type == PT_PHDR) bias = at - ph.p_vaddr;
    if (ph.p_type == PT_DYNAMIC) dynamic = ph.p_vaddr;
  }
  if (dynamic == 0) return 0;
  for (uint64_t d = bias + dynamic, i = 0; i < 256; i++, d += sizeof(ElfW(Dyn))) {
    ElfW(Dyn) entry{};
    if (!peek(d, &entry, sizeof entry) || entry.d_tag == DT_NULL) return 0;
    if (entry.d_tag == DT_DEBUG) return entry.d_un.d_ptr;
  }
  return 0;
}

Module* known(uint64_t map_addr, const link_map& map) {
  for (size_t i = 0; i < module_count; i++) {
    Module& m = modules[i];
    if (!m.gone && m.link_map == map_addr && m.bias == map.l_addr) return &m;
  }
  return nullptr;
}

void walk(uint64_t first, bool main_space, bool* seen) {
  uint64_t at = first;
  for (size_t steps = 0; at != 0 && steps < kWalk; steps++) {
    link_map map{};
    if (!peek(at, &map, sizeof map)) return;
    Module* m = known(at, map);
    if (m == nullptr && module_count < kModules) {
      m = new (&modules[module_count]) Module;
      m->index = static_cast<uint32_t>(module_count);
      if (describe(m, at, map, main_space && at == first)) {
        module_count++;
      } else {
        m = nullptr;
      }
    }
    if (m != nullptr) seen[m->index] = true;
    at = reinterpret_cast<uint64_t>(map.l_next);
  }
}

}  // namespace

bool peek(uint64_t addr, void* to, size_t n) {
  iovec here{to, n}, there{reinterpret_cast<void*>(addr), n};
  // By this thread's id: the process id stands for the initial thread, which may have ended.
  return sys_call(SYS_process_vm_readv, sys_gettid(), sys_arg(&here), 1, sys_arg(&there), 1, 0) ==
         static_cast<long>(n);
}

namespace {
// The process's own entry is empty when the initial thread has ended. The other is not tried first: what was looked up below
// the id of a thread makes its end, and the wait for the process, spin in the kernel while other processors are busy (11 ms
// for a child on a loaded machine, natively too).
constexpr const char* kExe[] = {"/proc/self/exe", "/proc/thread-self/exe"};

void find_name() {
  long n = -1;
  for (const char* link : kExe) {
    n = sys_call(SYS_readlinkat, AT_FDCWD, sys_arg(link), sys_arg(exe_path), sizeof exe_path - 1);
    if (n > 0) break;
  }
  if (n <= 0) {
    auto* name = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
    snprintf(exe_path, sizeof exe_path, "%s", name != nullptr ? name : "");
  } else {
    exe_path[n] = 0;
  }
  const char* slash = strrchr(exe_path, '/');
  exe_name = slash != nullptr ? slash + 1 : exe_path;
}
}  // namespace

void modules_start() {
  find_name();
  // Kept open: a server that changes its root or its user could not open it again. In a shared table it would be in
  // the program's way.
  if (files_own_table()) exe_fd = static_cast<int>(program_file());
}

const char* program_path() { return exe_path; }
const char* program_name() { return exe_name; }

long program_file() {
  if (exe_fd >= 0) return sys_call(SYS_fcntl, exe_fd, F_DUPFD_CLOEXEC, 0);
  for (const char* link : kExe) {
    long fd = file_open(AT_FDCWD, link, O_RDONLY);
    if (fd >= 0) return fd;
  }
  return file_open(AT_FDCWD, exe_path, O_RDONLY);
}

void modules_refresh() {
  if (modules == nullptr) {
    modules = static_cast<Module*>(sys_map(round_up(kModules * sizeof(Module), kPage)));
    if (modules == nullptr) return;
    if (exe_path[0] == 0) find_name();
    debug_address = find_debug();
  }
  bool seen[kModules] = {};
  // r_debug of the first namespace; version 2 links those of dlmopen.
  uint64_t at = debug_address;
  for (int space = 0; at != 0 && space < kSpaces; space++) {
    r_debug_extended debug{};
    if (!peek(at, &debug.base, sizeof debug.base)) break;
    walk(reinterpret_cast<uint64_t>(debug.base.r_map), space == 0, seen);
    if (debug.base.r_version < 2 || !peek(at, &debug, sizeof debug)) break;
    at = reinterpret_cast<uint64_t>(debug.r_next);
  }
  for (size_t i = 0; i < module_count; i++) modules[i].gone |= !seen[i];
}

const Module* module_of(uint64_t pc) {
  for (size_t i = 0; i < module_count; i++) {
    if (!modules[i].gone && modules[i].has_code_at(pc)) return &modules[i];
  }
  return nullptr;
}

const Module* module_at(uint64_t addr) {
  for (size_t i = 0; i < module_count; i++) {
    if (!modules[i].gone && addr >= modules[i].low && addr < modules[i].high) return &modules[i];
  }
  return nullptr;
}

void modules_after_fork() { exe_fd = -1; }

PageCache::Page* PageCache::page(uint64_t addr) {
  uint64_t base = addr & ~(kPage - 1);
  for (Page& p : pages_) {
    if (p.tag == base + 1) return &p;
  }
  Page& p = pages_[next_++ % kPages];
  p.tag = base + 1;
  p.readable = peek(base, p.bytes, kPage);
  return &p;
}

bool PageCache::word(uint64_t addr, uint64_t* out) {
  auto* to = reinterpret_cast<unsigned char*>(out);
  for (size_t done = 0; done < sizeof *out;) {
    Page* p = page(addr + done);
    if (!p->readable) return false;
    size_t at = (addr + done) % kPage;
    size_t n = kPage - at < sizeof *out - done ? kPage - at : sizeof *out - done;
    memcpy(to + done, p->bytes + at, n);
    done += n;
  }
  return true;
}

}  // namespace vthr
