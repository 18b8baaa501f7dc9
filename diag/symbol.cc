#include "diag/symbol.h"

#include <elf.h>
#include <fcntl.h>
#include <cstring>
#include <new>

#include "diag/file.h"

// libstdc++'s demangler without malloc (the program's malloc may be locked by a pinned fiber); 0: understood. It is in
// the archive, not in the shared object.
extern "C" int __gcclibcxx_demangle_callback(const char* mangled,
                                             void (*put)(const char* s, size_t n, void* arg), void* arg);

namespace vthr {

namespace {

constexpr size_t kMangledMax = 1024;
// The demangler recurses: 1,000 stars of a pointer took 342 KB, more than the thread's own stack.
constexpr size_t kDemanglerStack = 512 << 10;
constexpr size_t kNameBytes = 400;
constexpr size_t kBatch = 64;
constexpr size_t kBuffer = 64 << 10;

// ---- memory that is never given back ----

char* arena;
size_t arena_left;

void* keep(size_t n) {
  n = round_up(n, 8);
  if (n > arena_left) {
    arena = static_cast<char*>(sys_map(kBuffer));
    arena_left = arena != nullptr ? kBuffer : 0;
    if (n > arena_left) return nullptr;
  }
  void* p = arena;
  arena += n;
  arena_left -= n;
  return p;
}

// ---- the cache, by address: open addressing ----

constexpr size_t kSlots = 32768;
Symbol** slots;
size_t slots_used;

size_t hash_of(uint64_t pc) { return (pc * 0x9e3779b97f4a7c15ull) >> 49; }

Symbol* cached(uint64_t pc, const Module* m) {
  if (slots == nullptr) return nullptr;
  for (size_t i = hash_of(pc); slots[i] != nullptr; i = (i + 1) % kSlots) {
    if (slots[i]->pc == pc && slots[i]->module == m) return slots[i];
  }
  return nullptr;
}

void remember(Symbol* s) {
  if (slots == nullptr) slots = static_cast<Symbol**>(sys_map(kSlots * sizeof(Symbol*)));
  if (slots == nullptr || slots_used > kSlots / 2) return;
  size_t i = hash_of(s->pc);
  while (slots[i] != nullptr) i = (i + 1) % kSlots;
  slots[i] = s;
  slots_used++;
}

// ---- the symbol table of one file ----

bool read_at(int fd, uint64_t at, void* to, size_t n) {
  return sys_call(SYS_pread64, fd, sys_arg(to), static_cast<long>(n), static_cast<long>(at)) ==
         static_cast<long>(n);
}

// The file on disk is the one that is mapped: its first page holds headers and build id, and is not relocated.
bool same_file(int fd, const Module* m) {
  unsigned char disk[kPage] = {}, mapped[kPage] = {};
  if (m->first_bytes == 0) return false;
  long n = sys_call(SYS_pread64, fd, sys_arg(disk), kPage, 0);
  uint64_t size = m->high - m->first_bytes;
  if (n < static_cast<long>(sizeof(Elf64_Ehdr))) return false;
  size_t compare = static_cast<size_t>(n) < size ? static_cast<size_t>(n) : size;
  return peek(m->first_bytes, mapped, compare) && memcmp(disk, mapped, compare) == 0;
}

struct Table {
  uint64_t at = 0, count = 0, names_at = 0, names_size = 0;
};

// .symtab has the static functions too; a stripped file has only .dynsym.
bool find_table(int fd, Table* t) {
  Elf64_Ehdr eh{};
  if (!read_at(fd, 0, &eh, sizeof eh) || eh.e_shentsize != sizeof(Elf64_Shdr) || eh.e_shnum == 0)
    return false;
  bool found = false;
  for (unsigned i = 0; i < eh.e_shnum; i++) {
    Elf64_Shdr sh{}, names{};
    if (!read_at(fd, eh.e_shoff + i * sizeof sh, &sh, sizeof sh)) return found;
    if (sh.sh_type != SHT_SYMTAB && (sh.sh_type != SHT_DYNSYM || found)) continue;
    if (sh.sh_link >= eh.e_shnum ||
        !read_at(fd, eh.e_shoff + sh.sh_link * sizeof names, &names, sizeof names))
      continue;
    *t = {sh.sh_offset, sh.sh_size / sizeof(Elf64_Sym), names.sh_offset, names.sh_size};
    found = true;
    if (sh.sh_type == SHT_SYMTAB) return true;
  }
  return found;
}

struct Wanted {
  Symbol* symbol;
  uint64_t lookup;    // in the file's addresses
  uint32_t name = 0;  // best so far: offset of its name
  uint64_t value = 0;
  int rank = -1;
};

// Of several names for the same place: global before weak before local (libc's read is weak, __read global).
int rank_of(const Elf64_Sym& s) {
  switch (ELF64_ST_BIND(s.st_info)) {
    case STB_GLOBAL:
      return 2;
    case STB_WEAK:
      return 1;
    default:
      return 0;
  }
}

void consider(const Elf64_Sym& s, Wanted* w) {
  if (w->lookup - s.st_value >= s.st_size) return;  // unsigned: also when it is before the symbol
  int rank = rank_of(s);
  if (w->rank >= 0 && (s.st_value < w->value || (s.st_value == w->value && rank <= w->rank))) return;
  w->name = s.st_name;
  w->value = s.st_value;
  w->rank = rank;
}

void scan(int fd, const Table& t, char* buffer, Wanted* wanted, size_t n) {
  uint64_t lowest = ~0ull, highest = 0;
  for (size_t i = 0; i < n; i++) {
    if (wanted[i].lookup < lowest) lowest = wanted[i].lookup;
    if (wanted[i].lookup > highest) highest = wanted[i].lookup;
  }
  constexpr size_t kPiece = kBuffer / sizeof(Elf64_Sym);
  for (uint64_t done = 0; done < t.count;) {
    size_t piece = t.count - done < kPiece ? t.count - done : kPiece;
    if (!read_at(fd, t.at + done * sizeof(Elf64_Sym), buffer, piece * sizeof(Elf64_Sym))) return;
    for (size_t k = 0; k < piece; k++) {
      Elf64_Sym s{};
      memcpy(&s, buffer + k * sizeof s, sizeof s);
      int type = ELF64_ST_TYPE(s.st_info);
      if (s.st_shndx == SHN_UNDEF || s.st_size == 0 || s.st_value > highest ||
          s.st_value + s.st_size <= lowest)
        continue;
      if (type != STT_FUNC && type != STT_GNU_IFUNC && type != STT_NOTYPE) continue;
      for (size_t i = 0; i < n; i++) consider(s, &wanted[i]);
    }
    done += piece;
  }
}

const char* keep_name(const char* raw) {
  char pretty[kNameBytes];
  const char* name = demangle(raw, pretty, sizeof pretty) ? pretty : raw;
  size_t n = strnlen(name, kNameBytes - 1);
  auto* p = static_cast<char*>(keep(n + 1));
  if (p == nullptr) return nullptr;
  memcpy(p, name, n);
  p[n] = 0;
  return p;
}

void look_up(const Module* m, Wanted* wanted, size_t n) {
  static char* buffer;
  if (buffer == nullptr) buffer = static_cast<char*>(sys_map(kBuffer));
  // No slash: the vDSO, which has no file.
  if (!m->main && strchr(m->path, '/') == nullptr) return;
  long fd = m->main ? program_file() : file_open(AT_FDCWD, m->path, O_RDONLY | O_NONBLOCK);
  if (fd < 0 || buffer == nullptr) return;
  Table t;
  if (same_file(static_cast<int>(fd), m) && find_table(static_cast<int>(fd), &t)) {
    scan(static_cast<int>(fd), t, buffer, wanted, n);
    for (size_t i = 0; i < n; i++) {
      Wanted& w = wanted[i];
      char raw[kMangledMax] = {};
      if (w.rank < 0 || w.name >= t.names_size) continue;
      uint64_t room = t.names_size - w.name;
      size_t want = room < sizeof raw - 1 ? room : sizeof raw - 1;
      if (!read_at(static_cast<int>(fd), t.names_at + w.name, raw, want)) continue;
      raw[want] = 0;
      if (raw[0] == 0) continue;
      w.symbol->start = m->bias + w.value;
      w.symbol->name = keep_name(raw);
    }
  }
  sys_call(SYS_close, fd);
}

struct Demangling {
  const char* mangled;
  char* out;
  size_t size, n = 0;
  bool ok = false;
};

void put_demangled(const char* s, size_t n, void* arg) {
  auto* to = static_cast<Demangling*>(arg);
  size_t room = to->size - 1 - to->n;
  if (n > room) n = room;
  memcpy(to->out + to->n, s, n);
  to->n += n;
}

void demangle_here(void* arg) {
  auto* d = static_cast<Demangling*>(arg);
  d->ok = __gcclibcxx_demangle_callback(d->mangled, put_demangled, d) == 0 && d->n > 0;
}

// Calls f(arg) on the stack that ends at `top`.
void call_on_stack(char* top, void (*f)(void*), void* arg) {
  __asm__ volatile(
      "mov %%rsp, %%rbx\n\t"
      "mov %[top], %%rsp\n\t"
      "call *%[f]\n\t"
      "mov %%rbx, %%rsp"
      : "+D"(arg)
      : [top] "r"(top), [f] "r"(f)
      : "rax", "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
        "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
        "memory", "cc");
}

}  // namespace

bool demangle(const char* mangled, char* out, size_t size) {
  static char* stack;
  if (strncmp(mangled, "_Z", 2) != 0 || strlen(mangled) + 1 >= kMangledMax) return false;
  if (stack == nullptr) stack = static_cast<char*>(sys_map(kDemanglerStack));
  if (stack == nullptr) return false;
  Demangling d{mangled, out, size};
  call_on_stack(stack + kDemanglerStack, demangle_here, &d);
  bool ok = d.ok;
  out[d.n] = 0;
  if (!ok) return false;
  // Rust's older scheme: "a::b::h0123456789abcdef".
  char* hash = d.n > 19 ? out + d.n - 19 : nullptr;
  if (hash != nullptr && strncmp(hash, "::h", 3) == 0 && strspn(hash + 3, "0123456789abcdef") == 16)
    *hash = 0;
  return true;
}

void symbols_find(const FrameAddress* frames, size_t n, const Symbol** out) {
  Symbol* fresh[kBatch];
  size_t count = 0;
  for (size_t i = 0; i < n; i++) {
    const Module* m = module_of(frames[i].pc - (frames[i].is_return ? 1 : 0));
    Symbol* s = cached(frames[i].pc, m);
    if (s == nullptr) {
      void* memory = keep(sizeof(Symbol));
      if (memory == nullptr) {
        out[i] = nullptr;
        continue;
      }
      s = new (memory) Symbol;
      s->pc = frames[i].pc;
      s->module = m;
      s->offset = m != nullptr ? s->pc - m->bias : 0;
      remember(s);
      // Marked with the address to look up until its file was read.
      if (m != nullptr && count < kBatch) {
        s->start = s->pc - (frames[i].is_return ? 1 : 0);
        fresh[count++] = s;
      }
    }
    out[i] = s;
  }
  while (count > 0) {
    const Module* m = fresh[count - 1]->module;
    Wanted wanted[kBatch];
    size_t k = 0, rest = 0;
    for (size_t i = 0; i < count; i++) {
      if (fresh[i]->module == m) {
        wanted[k++] = {fresh[i], fresh[i]->start - m->bias};
        fresh[i]->start = 0;
      } else {
        fresh[rest++] = fresh[i];
      }
    }
    count = rest;
    look_up(m, wanted, k);
  }
}

}  // namespace vthr
