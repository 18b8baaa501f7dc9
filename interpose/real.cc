#include "interpose/real.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>
#include <cstdint>

extern "C" {
// Where dl.cc's stubs go when a look-up is not ours to answer.
__attribute__((visibility("hidden"))) void* vthr_real_dlsym;
__attribute__((visibility("hidden"))) void* vthr_real_dlvsym;
extern __attribute__((visibility("hidden"))) const ElfW(Ehdr) __ehdr_start;
}

namespace vthr {

void* real_table[kRealCount];

namespace {

// A sanitizer in the program looks its own functions up before its string functions, which would be ours too, can be called.
bool same(const char* a, const char* b) {
  while (*a != 0 && *a == *b) a++, b++;
  return *a == *b;
}
bool ends_with(const char* text, const char* end) {
  const char* tail = text;
  for (const char* s = text; *s != 0; s++) {
    if (*s == '/') tail = s + 1;
  }
  return same(tail, end);
}

// An object in memory, and its defined symbols by the GNU hash table that every linker makes.
struct Object {
  uintptr_t base = 0, low = 0, high = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t* hash = nullptr;

  void set(uintptr_t at, const ElfW(Phdr) * headers, size_t n) {
    base = at;
    low = UINTPTR_MAX;
    const ElfW(Dyn)* d = nullptr;
    for (size_t i = 0; i < n; i++) {
      const ElfW(Phdr)& p = headers[i];
      if (p.p_type == PT_DYNAMIC) d = reinterpret_cast<const ElfW(Dyn)*>(base + p.p_vaddr);
      if (p.p_type != PT_LOAD) continue;
      if (base + p.p_vaddr < low) low = base + p.p_vaddr;
      if (base + p.p_vaddr + p.p_memsz > high) high = base + p.p_vaddr + p.p_memsz;
    }
    for (; d != nullptr && d->d_tag != DT_NULL; d++) {
      // the loader has made these absolute
      if (d->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(d->d_un.d_ptr);
      if (d->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(d->d_un.d_ptr);
      if (d->d_tag == DT_GNU_HASH) hash = reinterpret_cast<const uint32_t*>(d->d_un.d_ptr);
    }
  }
  bool contains(const void* p) const {
    auto a = reinterpret_cast<uintptr_t>(p);
    return a >= low && a < high;
  }
  // A function of that name, whatever its version.
  void* find(const char* name) const {
    if (hash == nullptr) return nullptr;
    uint32_t h = 5381;
    for (const char* s = name; *s != 0; s++) h = h * 33 + static_cast<unsigned char>(*s);
    uint32_t buckets = hash[0], first = hash[1], bloom_words = hash[2];
    const uint32_t* bucket = hash + 4 + bloom_words * (sizeof(void*) / 4);
    const uint32_t* chain = bucket + buckets;
    uint32_t i = bucket[h % buckets];
    if (i < first) return nullptr;
    for (;; i++) {
      uint32_t have = chain[i - first];
      const ElfW(Sym)& s = symbols[i];
      if ((have | 1) == (h | 1) && s.st_shndx != SHN_UNDEF && same(strings + s.st_name, name))
        return reinterpret_cast<void*>(base + s.st_value);
      if ((have & 1) != 0) return nullptr;
    }
  }
};

Object program, libc, own;

const ElfW(Phdr) * headers_of(const ElfW(Ehdr) * h) {
  return reinterpret_cast<const ElfW(Phdr)*>(reinterpret_cast<uintptr_t>(h) + h->e_phoff);
}

// By the list that the loader keeps for debuggers: no function that anybody could stand in front of.
void find_objects() {
  own.set(reinterpret_cast<uintptr_t>(&__ehdr_start), headers_of(&__ehdr_start), __ehdr_start.e_phnum);
  auto* headers = reinterpret_cast<const ElfW(Phdr)*>(getauxval(AT_PHDR));
  size_t n = getauxval(AT_PHNUM);
  uintptr_t base = 0;
  const ElfW(Dyn)* d = nullptr;
  for (size_t i = 0; i < n; i++) {
    if (headers[i].p_type == PT_PHDR) base = reinterpret_cast<uintptr_t>(headers) - headers[i].p_vaddr;
  }
  for (size_t i = 0; i < n; i++) {
    if (headers[i].p_type == PT_DYNAMIC) d = reinterpret_cast<const ElfW(Dyn)*>(base + headers[i].p_vaddr);
  }
  program.set(base, headers, n);
  const r_debug* debug = nullptr;
  for (; d != nullptr && d->d_tag != DT_NULL; d++) {
    if (d->d_tag == DT_DEBUG) debug = reinterpret_cast<const r_debug*>(d->d_un.d_ptr);
  }
  for (const link_map* l = debug != nullptr ? debug->r_map : nullptr; l != nullptr; l = l->l_next) {
    if (l->l_name == nullptr || !ends_with(l->l_name, "libc.so.6")) continue;
    auto* header = reinterpret_cast<const ElfW(Ehdr)*>(l->l_addr);
    libc.set(l->l_addr, headers_of(header), header->e_phnum);
    return;
  }
}

void* look_up(void* handle, const char* name) {
  return reinterpret_cast<decltype(&dlsym)>(vthr_real_dlsym)(handle, name);
}
void* look_up(void* handle, const char* name, const char* version) {
  return reinterpret_cast<decltype(&dlvsym)>(vthr_real_dlvsym)(handle, name, version);
}

}  // namespace

// Our own dlsym stands in front of libc's, which is found without it.
void real_find_loader() {
  if (vthr_real_dlsym != nullptr) return;
  find_objects();
  vthr_real_dlvsym = libc.find("dlvsym");
  vthr_real_dlsym = libc.find("dlsym");
}

void real_init() {
  real_find_loader();
#define EXPORT(name)
#define PASS(name, test)
#define HOOK(name) real_table[real_##name] = look_up(RTLD_NEXT, #name);
#define HOOK_VER(name, impl, version) real_table[real_##impl] = look_up(RTLD_NEXT, #name, #version);
#include "interpose/symbols.def"
#undef EXPORT
#undef PASS
#undef HOOK
#undef HOOK_VER
}

void* real_find(const char* name) { return look_up(RTLD_NEXT, name); }
void* real_find_default(const char* name) { return look_up(RTLD_DEFAULT, name); }
void* real_find_in(void* handle, const char* name, const char* version) {
  return version != nullptr ? look_up(handle, name, version) : look_up(handle, name);
}
bool real_same(const char* a, const char* b) { return same(a, b); }
bool real_is_libc(const void* p) { return libc.contains(p); }
bool real_is_program(const void* p) { return program.contains(p); }
void* own_symbol(const char* name) { return own.find(name); }

}  // namespace vthr
