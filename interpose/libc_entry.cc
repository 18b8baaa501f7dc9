// Layer 2 (DESIGN D6.2, HAZARDS 3): fgets, getaddrinfo, the locks of FILEs and of malloc call libc's own functions
// directly, never through the PLT. So the first five bytes of those functions become a jump into our text.
//
// Why it is safe to change them: there is one thread, this one, and it blocks all signals meanwhile. Nobody sleeps in a
// system call of the functions (__read_nocancel would resume at its fifth byte, inside the jump), nobody sees half of a
// jump. Threads that are made later start with a context switch, which discards what a CPU has decoded; membarrier's
// SYNC_CORE does nothing for a process of one thread, and being registered for it would cost each later switch.
// No page of ours is made executable: the jump goes to our text, which must be less than 2 GiB away.
//
// The pages are made writable without losing their right to run. Where the system refuses that (SELinux, seccomp,
// PR_SET_MDWE) nothing was touched yet; taking PROT_EXEC away first would leave libc's text dead.
#include "interpose/libc_entry.h"

#include <gnu/libc-version.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <cstring>

#include "interpose/enter.h"
#include "interpose/entries.h"

namespace vthr {

LibcEntry libc_entry;

namespace {

constexpr size_t kJump = 5;
constexpr unsigned char kJumpOpcode = 0xe9, kBreakpoint = 0xcc;
constexpr unsigned char kEndbr64[4] = {0xf3, 0x0f, 0x1e, 0xfa};

// libc as it is mapped: its text and what is needed to look a name up in it, and in no other object.
struct Libc {
  uintptr_t base = 0;
  char* text = nullptr;
  size_t text_size = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const uint32_t* hash = nullptr;
};

int look_for_libc(dl_phdr_info* info, size_t, void* arg) {
  auto* c = static_cast<Libc*>(arg);
  auto inside = reinterpret_cast<uintptr_t>(&gnu_get_libc_version);
  const ElfW(Dyn)* dynamic = nullptr;
  bool found = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& ph = info->dlpi_phdr[i];
    uintptr_t at = info->dlpi_addr + ph.p_vaddr;
    if (ph.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(at);
    if (ph.p_type != PT_LOAD || (ph.p_flags & PF_X) == 0 || inside < at || inside >= at + ph.p_memsz)
      continue;
    found = true;
    c->text = reinterpret_cast<char*>(at);
    c->text_size = ph.p_memsz;
  }
  if (!found || dynamic == nullptr) return 0;
  c->base = info->dlpi_addr;
  for (; dynamic->d_tag != DT_NULL; dynamic++) {  // relocated by the loader
    auto at = dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_SYMTAB) c->symbols = reinterpret_cast<const ElfW(Sym)*>(at);
    if (dynamic->d_tag == DT_STRTAB) c->names = reinterpret_cast<const char*>(at);
    if (dynamic->d_tag == DT_GNU_HASH) c->hash = reinterpret_cast<const uint32_t*>(at);
  }
  return 1;
}

// dlsym would leave its error for the program's dlerror, and does not know how long a function is.
const ElfW(Sym) * look_up(const Libc& c, const char* name) {
  uint32_t h = 5381;
  for (const char* p = name; *p != 0; p++) h = h * 33 + static_cast<unsigned char>(*p);
  uint32_t bucket_count = c.hash[0], first = c.hash[1], bloom_words = c.hash[2];
  const uint32_t* buckets = c.hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
  const uint32_t* chain = buckets + bucket_count;
  uint32_t i = buckets[h % bucket_count];
  if (i < first) return nullptr;
  for (;; i++) {
    uint32_t other = chain[i - first];
    const ElfW(Sym)& s = c.symbols[i];
    if ((other | 1) == (h | 1) && s.st_shndx != SHN_UNDEF && strcmp(c.names + s.st_name, name) == 0)
      return &s;
    if ((other & 1) != 0) return nullptr;
  }
}

// One function to redirect. Found first, all of them, then changed.
struct Site {
  char* at;  // nullptr: not found, or not usable
  const void* to;
  unsigned char old[kJump];
};
constexpr int kMost = 64;
Site sites[kMost];
int site_count;

bool in_text(const Libc& c, const char* p, size_t n) { return p >= c.text && p + n <= c.text + c.text_size; }

// Where the jump goes; nullptr: too short, too far, or somebody (a debugger, another tool) changed it before us.
char* usable(const Libc& c, char* at, size_t size, const void* to) {
  if (!in_text(c, at, size)) return nullptr;
  if (size >= sizeof kEndbr64 && memcmp(at, kEndbr64, sizeof kEndbr64) == 0) {
    at += sizeof kEndbr64;  // a processor may insist on it
    size -= sizeof kEndbr64;
  }
  auto first = static_cast<unsigned char>(*at);
  if (size < kJump || first == kJumpOpcode || first == kBreakpoint) return nullptr;
  int64_t distance = static_cast<const char*>(to) - (at + kJump);
  return distance == static_cast<int32_t>(distance) ? at : nullptr;
}

char* find(const Libc& c, const char* name, const void* to) {
  const ElfW(Sym)* s = look_up(c, name);
  if (s == nullptr || ELF64_ST_TYPE(s->st_info) != STT_FUNC) return nullptr;  // not an IFUNC
  return usable(c, reinterpret_cast<char*>(c.base + s->st_value), s->st_size, to);
}

void add(char* at, const void* to) {
  libc_entry.wanted++;
  if (at == nullptr || site_count == kMost) return;
  Site& s = sites[site_count++];
  s.at = at;
  s.to = to;
  memcpy(s.old, at, kJump);
}

void add_pair(char* wait_at, const void* wait_to, char* wake_at, const void* wake_to) {
  bool both = wait_at != nullptr && wake_at != nullptr;
  add(both ? wait_at : nullptr, wait_to);
  add(both ? wake_at : nullptr, wake_to);
}

// __lll_lock_wait(futex, private) and __lll_lock_wake are local to libc. They stand beside their exported kin, from one
// small source file (nptl/lowlevellock.c); each is what this code says it is, to the byte up to its system call, or it is
// left alone.
constexpr unsigned char kWaitCode[] = {
    0x8b, 0x07,                 // mov (%rdi),%eax
    0x41, 0x89, 0xf0,           // mov %esi,%r8d
    0x83, 0xf8, 0x02,           // cmp $2,%eax
    0x74, 0x0b,                 // je
    0xb8, 0x02, 0,    0,    0,  // mov $2,%eax
    0x87, 0x07,                 // xchg %eax,(%rdi)
    0x85, 0xc0,                 // test %eax,%eax
    0x74, 0x3b,                 // je
    0x44, 0x89, 0xc6,           // mov %r8d,%esi
    0x45, 0x31, 0xd2,           // xor %r10d,%r10d
    0xba, 0x02, 0,    0,    0,  // mov $2,%edx
    0xb8, 0xca, 0,    0,    0,  // mov $SYS_futex,%eax
    0x40, 0x80, 0xf6, 0x80,     // xor $FUTEX_PRIVATE_FLAG,%sil
    0x0f, 0x05,                 // syscall
};
constexpr unsigned char kWakeCode[] = {
    0x40, 0x80, 0xf6, 0x81,     // xor $(FUTEX_WAKE | FUTEX_PRIVATE_FLAG),%sil
    0x45, 0x31, 0xd2,           // xor %r10d,%r10d
    0xba, 0x01, 0,    0,    0,  // mov $1,%edx
    0xb8, 0xca, 0,    0,    0,  // mov $SYS_futex,%eax
    0x0f, 0x05,                 // syscall
    0xc3,                       // ret
};
constexpr long kNear = 512, kAligned = 16;

char* find_code(const Libc& c, char* beside, const unsigned char* code, size_t n, const void* to) {
  char* found = nullptr;
  for (char* p = beside - kNear; p <= beside + kNear; p += kAligned) {
    if (!in_text(c, p, n) || memcmp(p, code, n) != 0) continue;
    if (found != nullptr) return nullptr;  // which one?
    found = usable(c, p, n, to);
  }
  return found;
}

void find_all(const Libc& c) {
  const void* lock_at = nullptr;
#define ENTRY(name, function) \
  add(find(c, #name, reinterpret_cast<const void*>(function)), reinterpret_cast<const void*>(function));
#define PAIR(wait, wake, wait_function, wake_function)                    \
  lock_at = find(c, #wait, reinterpret_cast<const void*>(wait_function)); \
  add_pair(find(c, #wait, reinterpret_cast<const void*>(wait_function)),  \
           reinterpret_cast<const void*>(wait_function),                  \
           find(c, #wake, reinterpret_cast<const void*>(wake_function)),  \
           reinterpret_cast<const void*>(wake_function));
#define HIDDEN(wait, wake, wait_function, wake_function)                                                    \
  {                                                                                                         \
    auto *wait_to = reinterpret_cast<const void*>(wait_function),                                           \
         *wake_to = reinterpret_cast<const void*>(wake_function);                                           \
    char* beside = static_cast<char*>(const_cast<void*>(lock_at));                                          \
    add_pair(                                                                                               \
        beside == nullptr ? nullptr : find_code(c, beside, kWaitCode, sizeof kWaitCode, wait_to), wait_to,  \
        beside == nullptr ? nullptr : find_code(c, beside, kWakeCode, sizeof kWakeCode, wake_to), wake_to); \
  }
#include "interpose/libc_entry.def"
#undef ENTRY
#undef PAIR
#undef HIDDEN
}

// An aligned word is stored at once; behind an endbr64 the five bytes cross one.
void put(char* at, const unsigned char* bytes) {
  auto address = reinterpret_cast<uintptr_t>(at);
  if ((address & 7) + kJump > 8) {
    memcpy(at, bytes, kJump);
    return;
  }
  auto* word = reinterpret_cast<uint64_t*>(address & ~7ul);
  uint64_t v = *word;
  memcpy(reinterpret_cast<char*>(&v) + (address & 7), bytes, kJump);
  __atomic_store_n(word, v, __ATOMIC_SEQ_CST);
}

// Runs change() while libc's text may be written to. False: the system refused, nothing was done.
template <class F>
bool while_writable(const Libc& c, F change) {
  auto low = reinterpret_cast<uintptr_t>(c.text) & ~(kPage - 1);
  auto size = static_cast<long>(round_up(reinterpret_cast<uintptr_t>(c.text) + c.text_size - low, kPage));
  uint64_t old = sys_set_sigmask(~0ull);
  bool writable =
      sys_call(SYS_mprotect, static_cast<long>(low), size, PROT_READ | PROT_WRITE | PROT_EXEC) == 0;
  if (writable) {
    change();
    sys_call(SYS_mprotect, static_cast<long>(low), size, PROT_READ | PROT_EXEC);
  }
  sys_set_sigmask(old);
  return writable;
}

// Threads of this process that the kernel knows: the links of this directory are one for each, and two. -1: unknown.
long thread_count() {
  struct stat st {};
  if (sys_call(SYS_newfstatat, -100 /* AT_FDCWD */, sys_arg("/proc/self/task"), sys_arg(&st), 0) != 0)
    return -1;
  return static_cast<long>(st.st_nlink) - 2;
}

Libc libc;

const char* redirect(bool strangers) {
  long threads = thread_count();
  if (threads < 0) return "/proc is not readable: is this the only thread?";
  if (threads > 1 || strangers) return "the process has other threads already";
  // Before 2.34 some of the locks' callers were in libpthread, with a copy of the code that waits.
  if (dl_iterate_phdr(look_for_libc, &libc) == 0 || libc.symbols == nullptr || libc.names == nullptr ||
      libc.hash == nullptr || look_up(libc, "pthread_create") == nullptr)
    return "unknown libc";
  find_all(libc);
  if (site_count == 0) return "no function can be redirected";
  bool done = while_writable(libc, [] {
    for (int i = 0; i < site_count; i++) {
      unsigned char jump[kJump] = {kJumpOpcode};
      auto distance = static_cast<int32_t>(static_cast<const char*>(sites[i].to) - (sites[i].at + kJump));
      memcpy(jump + 1, &distance, sizeof distance);
      put(sites[i].at, jump);
    }
  });
  if (done) return nullptr;
  libc_entry.refused = true;
  return "the system refuses to write to libc's text";
}

}  // namespace

void libc_entry_start(bool strangers) {
  if (libc_entry.redirected != 0) return;
  libc_entry.wanted = site_count = 0;
  libc_entry.refused = false;
  libc_entry.why = options.libc_entry != 0 ? redirect(strangers) : "VTHR_LIBC_ENTRY=off";
  if (libc_entry.why == nullptr) libc_entry.redirected = site_count;
}

void libc_entry_undo() {
  if (libc_entry.redirected == 0 || thread_count() != 1) return;
  if (while_writable(libc, [] {
        for (int i = 0; i < site_count; i++) put(sites[i].at, sites[i].old);
      }))
    libc_entry.redirected = 0;
}

}  // namespace vthr
