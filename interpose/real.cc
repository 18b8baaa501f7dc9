#include "interpose/real.h"

#include <dlfcn.h>

namespace vthr {

void* real_table[kRealCount];

void real_init() {
#define EXPORT(name)
#define HOOK(name) real_table[real_##name] = dlsym(RTLD_NEXT, #name);
#define HOOK_VER(name, impl, version) real_table[real_##impl] = dlvsym(RTLD_NEXT, #name, #version);
#include "interpose/symbols.def"
#undef EXPORT
#undef HOOK
#undef HOOK_VER
}

void* real_find(const char* name) { return dlsym(RTLD_NEXT, name); }
void* real_find_default(const char* name) { return dlsym(RTLD_DEFAULT, name); }

}  // namespace vthr
