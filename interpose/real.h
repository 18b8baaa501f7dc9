// The functions that our hooks stand in front of: what the program would call without us (the next object after us,
// so another preloaded library still gets its turn). They are looked up once, in our constructor, which -z initfirst
// makes the first of all (HAZARDS 13). GNU ld binds a versioned reference to a name that we define ourselves to our
// own definition, whatever the version, so relocations cannot do it.
#pragma once
#include <cstddef>

namespace vthr {

enum RealIndex : unsigned {
#define EXPORT(name)
#define PASS(name, test)
#define HOOK(name) real_##name,
#define HOOK_VER(name, impl, version) real_##impl,
#include "interpose/symbols.def"
#undef EXPORT
#undef PASS
#undef HOOK
#undef HOOK_VER
  kRealCount
};

extern void* real_table[kRealCount];
void real_init();         // constructor, or the first call before it
void real_find_loader();  // only what looks up; for our dlsym, which may be called before anything else
void* real_find(const char* name);  // dlsym(RTLD_NEXT, name); constructor only
void* real_find_default(const char* name);
// dlsym, or with a version dlvsym; as called by this library. Any thread.
void* real_find_in(void* handle, const char* name, const char* version);
bool real_same(const char* a, const char* b);  // equal strings
bool real_is_libc(const void* p);              // an address inside libc
bool real_is_program(const void* p);           // inside the program itself
void* own_symbol(
    const char* name);  // what this library exports by that name, of whatever version, or nullptr

inline void* real_get(RealIndex i) {
  if (__builtin_expect(real_table[i] == nullptr, 0)) real_init();
  return real_table[i];
}

// REAL(read)(fd, buf, n). The name must be declared.
#define REAL(name) (reinterpret_cast<decltype(&::name)>(::vthr::real_get(::vthr::real_##name)))
// For versioned ones and names without a declaration: REAL_AS(type, index name).
#define REAL_AS(type, name) (reinterpret_cast<type>(::vthr::real_get(::vthr::real_##name)))

}  // namespace vthr
