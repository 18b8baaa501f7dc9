// dlsym and dlvsym: who looks a hooked name up gets the hook, as a reference to it would. By themselves they find libc's own
// function where a version or a library is named: dlvsym(RTLD_DEFAULT, "read", "GLIBC_2.2.5"), dlsym(libc, "pthread_join"),
// and that one would meet fibers and locks that it does not understand. A look-up of what follows the caller (RTLD_NEXT)
// stays as it is, but for the program's own: the libraries behind us that wrap a function mean libc's.
#include <dlfcn.h>

#include "interpose/enter.h"

// The implementations of versioned hooks, by address only.
#define EXPORT(name)
#define PASS(name, test)
#define HOOK(name)
#define HOOK_VER(name, impl, version) extern "C" __attribute__((visibility("hidden"))) void impl();
#include "interpose/symbols.def"
#undef HOOK_VER

namespace vthr {

namespace {

// Our hook in place of libc's function `found`, which is called `name`; nullptr: there is none.
void* hook_for(const char* name, void* found) {
#define HOOK_VER(hooked, impl, version) \
  if (real_table[real_##impl] == found && real_same(name, #hooked)) return reinterpret_cast<void*>(&impl);
#include "interpose/symbols.def"
#undef HOOK_VER
#define HOOK_VER(hooked, impl, version) \
  if (real_same(name, #hooked)) return nullptr;  // another version of it, in which we have no part
#include "interpose/symbols.def"
#undef HOOK_VER
  return real_is_libc(found) ? own_symbol(name) : nullptr;
}

}  // namespace

}  // namespace vthr

// Called by the stubs. What the look-up gives, or nullptr: libc must answer it, and is asked by a jump, because it looks at
// who called. `version` nullptr: dlsym.
extern "C" __attribute__((visibility("hidden"), used)) void* vthr_pick_symbol(void* handle, const char* name,
                                                                              const char* version,
                                                                              const void* caller) {
  using namespace vthr;
  real_find_loader();
  if (name == nullptr || own_symbol(name) == nullptr) return nullptr;
  if (handle == RTLD_DEFAULT && version == nullptr) return nullptr;  // finds ours, unless the program has one
  if (handle == RTLD_NEXT && (version == nullptr || !real_is_program(caller))) return nullptr;
  void* found = real_find_in(handle, name, version);
  return found != nullptr ? hook_for(name, found) : nullptr;
}

__asm__(R"(
  .pushsection .text
  .globl dlsym
  .type dlsym, @function
dlsym:
  .cfi_startproc
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  xorl %edx, %edx
  movq 24(%rsp), %rcx
  call vthr_pick_symbol
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  testq %rax, %rax
  jne 1f
  jmp *vthr_real_dlsym(%rip)
1: ret
  .cfi_endproc
  .size dlsym, . - dlsym

  .globl dlvsym
  .type dlvsym, @function
dlvsym:
  .cfi_startproc
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  pushq %rdx
  .cfi_adjust_cfa_offset 8
  movq 24(%rsp), %rcx
  call vthr_pick_symbol
  popq %rdx
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  testq %rax, %rax
  jne 1f
  jmp *vthr_real_dlvsym(%rip)
1: ret
  .cfi_endproc
  .size dlvsym, . - dlvsym
  .popsection
)");
