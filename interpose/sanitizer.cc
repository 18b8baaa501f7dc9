// Is a sanitizer a part of the program itself? As a library it exports __asan_init; linked into the program it exports
// little more than the functions that it intercepts. Those are in the way of our own calls, and not ready before its
// initialisation, which comes after our constructor: this file must not call any of them by name.
#include <elf.h>
#include <link.h>

#include "interpose/real.h"
#include "interpose/thread.h"

namespace vthr {

namespace {

struct Program {
  uintptr_t low = UINTPTR_MAX, high = 0;
  const char* strings = nullptr;  // names of its dynamic symbols
  size_t size = 0;
};

int look_at(dl_phdr_info* info, size_t, void* arg) {
  auto* p = static_cast<Program*>(arg);
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& ph = info->dlpi_phdr[i];
    uintptr_t at = info->dlpi_addr + ph.p_vaddr;
    if (ph.p_type == PT_LOAD) {
      if (at < p->low) p->low = at;
      if (at + ph.p_memsz > p->high) p->high = at + ph.p_memsz;
    } else if (ph.p_type == PT_DYNAMIC) {
      for (auto* d = reinterpret_cast<const ElfW(Dyn)*>(at); d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_STRTAB)
          p->strings = reinterpret_cast<const char*>(d->d_un.d_ptr);  // relocated by the loader
        if (d->d_tag == DT_STRSZ) p->size = d->d_un.d_val;
      }
    }
  }
  return 1;  // the program itself comes first
}

bool contains(const char* text, size_t size, const char* word) {
  for (size_t i = 0; i < size; i++) {
    size_t n = 0;
    while (word[n] != 0 && i + n < size && text[i + n] == word[n]) n++;
    if (word[n] == 0) return true;
  }
  return false;
}

}  // namespace

const char* linked_sanitizer() {
  Program program;
  auto iterate = reinterpret_cast<decltype(&dl_iterate_phdr)>(real_find("dl_iterate_phdr"));
  if (iterate == nullptr) return nullptr;
  iterate(look_at, &program);
  // the optional hooks that every sanitizer's runtime refers to
  if (program.strings == nullptr || !contains(program.strings, program.size, "__sanitizer_")) return nullptr;
  auto has = [&](const char* name) {
    auto at = reinterpret_cast<uintptr_t>(real_find_default(name));
    return at >= program.low && at < program.high;
  };
  if (!has("pthread_create")) return nullptr;
  return has("pthread_spin_lock") ? "ThreadSanitizer in the program" : "AddressSanitizer in the program";
}

}  // namespace vthr
