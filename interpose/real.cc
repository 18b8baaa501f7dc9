#include "interpose/real.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <cstdint>
#include <cstring>

extern "C" {
// Where dl.cc's stubs go when a look-up is not ours to answer.
__attribute__((visibility("hidden"))) void* vthr_real_dlsym;
__attribute__((visibility("hidden"))) void* vthr_real_dlvsym;
extern __attribute__((visibility("hidden"))) const ElfW(Ehdr) __ehdr_start;
}

namespace vthr {

void* real_table[kRealCount];

namespace {

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
      if ((have | 1) == (h | 1) && s.st_shndx != SHN_UNDEF && strcmp(strings + s.st_name, name) == 0)
        return reinterpret_cast<void*>(base + s.st_value);
      if ((have & 1) != 0) return nullptr;
    }
  }
};

Object program, libc, own;

void find_objects() {
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void*) {
        if (program.high == 0) program.set(info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum);  // the first
        const char* name = info->dlpi_name != nullptr ? strrchr(info->dlpi_name, '/') : nullptr;
        name = name != nullptr ? name + 1 : info->dlpi_name;
        if (name == nullptr || strcmp(name, "libc.so.6") != 0) return 0;
        libc.set(info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum);
        return 1;
      },
      nullptr);
  auto* header = &__ehdr_start;
  own.set(reinterpret_cast<uintptr_t>(header),
          reinterpret_cast<const ElfW(Phdr)*>(reinterpret_cast<uintptr_t>(header) + header->e_phoff),
          header->e_phnum);
}

void* look_up(void* handle, const char* name) {
  return reinterpret_cast<decltype(&dlsym)>(vthr_real_dlsym)(handle, name);
}
void* look_up(void* handle, const char* name, const char* version) {
  return reinterpret_cast<decltype(&dlvsym)>(vthr_real_dlvsym)(handle, name, version);
}

}  // namespace

// Our own dlsym stands in front of libc's, which is found without it.
void real_init() {
  find_objects();
  vthr_real_dlsym = libc.find("dlsym");
  vthr_real_dlvsym = libc.find("dlvsym");
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
bool real_is_libc(const void* p) { return libc.contains(p); }
bool real_is_program(const void* p) { return program.contains(p); }
void* own_symbol(const char* name) { return own.find(name); }

}  // namespace vthr
