// libunwind's remote interface, with accessors that see the copy of the stack and, outside of it, only what modules
// have mapped: the live stack has moved on. Unwind tables are found through diag/module, not through the loader
// (whose lock a pinned fiber may hold).
#include "diag/unwind.h"

#include <dlfcn.h>
#include <libunwind.h>
#include <cerrno>
#include <cstring>
#include <initializer_list>

namespace vthr {

namespace {

#define NAME_OF_(x) #x
#define NAME_OF(x) NAME_OF_(x)

using SearchTable = int (*)(unw_addr_space_t, unw_word_t, unw_dyn_info_t*, unw_proc_info_t*, int, void*);

struct Library {
  bool tried = false;
  const char* missing = nullptr;
  decltype(&unw_create_addr_space) create_addr_space = nullptr;
  decltype(&unw_init_remote) init_remote = nullptr;
  decltype(&unw_step) step = nullptr;
  decltype(&unw_get_reg) get_reg = nullptr;
  decltype(&unw_is_signal_frame) is_signal_frame = nullptr;
  SearchTable search_table = nullptr;
  unw_addr_space_t space = nullptr;
} lib;

// Who is where: bit 0: this thread is in libunwind or the loader; the rest: forks under way, times two.
std::atomic<uint32_t> gate{0};
bool poisoned;  // a forked child, made while the parent's thread was in there: its locks are held for ever

void sleep_briefly() {
  timespec ts{0, 200 * kMicro};
  sys_call(SYS_nanosleep, sys_arg(&ts));
}

class InGate {
 public:
  InGate() {
    uint32_t free = 0;
    while (!gate.compare_exchange_weak(free, 1, std::memory_order_acq_rel)) {
      if (free != 0) sleep_briefly();
      free = 0;
    }
  }
  ~InGate() { gate.fetch_and(~1u, std::memory_order_acq_rel); }
  InGate(const InGate&) = delete;
  InGate& operator=(const InGate&) = delete;
};

struct Walk {
  const PinRecord* record;
  PageCache* pages;
  bool fp_known;
  uint64_t fp;
  bool fp_wanted = false;       // somebody needed it and it was not known
  uint64_t function_start = 0;  // of the last frame whose unwind table was looked up
};

bool copied(const PinRecord& r, uint64_t addr, uint64_t* out) {
  if (addr < r.sp || addr - r.sp > r.stack_bytes || r.stack_bytes - (addr - r.sp) < sizeof *out) return false;
  memcpy(out, r.stack + (addr - r.sp), sizeof *out);
  return true;
}

int access_mem(unw_addr_space_t, unw_word_t addr, unw_word_t* value, int write, void* arg) {
  auto* w = static_cast<Walk*>(arg);
  if (write) return -UNW_EINVAL;
  if (copied(*w->record, addr, value)) return 0;
  if (module_at(addr) == nullptr) {
    // Code made at run time may be looked at (is this a signal trampoline?), stacks may not.
    if (addr - w->record->sp < (64ull << 20)) return -UNW_EINVAL;
  }
  return w->pages->word(addr, value) ? 0 : -UNW_EINVAL;
}

int access_reg(unw_addr_space_t, unw_regnum_t reg, unw_word_t* value, int write, void* arg) {
  auto* w = static_cast<Walk*>(arg);
  if (write) return -UNW_EREADONLYREG;
  switch (reg) {
    case UNW_X86_64_RIP:
      *value = w->record->pc;
      return 0;
    case UNW_X86_64_RSP:
      *value = w->record->sp;
      return 0;
    case UNW_X86_64_RBP:
      if (!w->fp_known) {
        w->fp_wanted = true;
        return -UNW_EBADREG;
      }
      *value = w->fp;
      return 0;
    default:
      return -UNW_EBADREG;
  }
}

// The sorted table of .eh_frame_hdr (Linux Standard Base, exception frames).
int find_proc_info(unw_addr_space_t space, unw_word_t ip, unw_proc_info_t* info, int need, void* arg) {
  auto* w = static_cast<Walk*>(arg);
  const Module* m = module_of(ip);
  if (m == nullptr || m->eh_frame_hdr == 0 || m->eh_frame_hdr_size < 12) return -UNW_ENOINFO;
  uint64_t head, count;
  if (!w->pages->word(m->eh_frame_hdr, &head) || !w->pages->word(m->eh_frame_hdr + 8, &count))
    return -UNW_ENOINFO;
  // Version 1, a 4-byte pointer to .eh_frame, a 4-byte count, pairs of 4-byte offsets from the header.
  bool pointer4 = (head >> 8 & 7) == 3, count4 = (head >> 16 & 0xff) == 3,
       pairs = (head >> 24 & 0xff) == 0x3b;
  if ((head & 0xff) != 1 || !pointer4 || !count4 || !pairs) return -UNW_ENOINFO;
  count &= 0xffffffff;
  if (count > (m->eh_frame_hdr_size - 12) / 8) return -UNW_ENOINFO;
  unw_dyn_info_t di{};
  di.start_ip = m->low;
  di.end_ip = m->high;
  di.format = UNW_INFO_FORMAT_REMOTE_TABLE;
  di.u.rti.segbase = m->eh_frame_hdr;
  di.u.rti.table_len = count * 8 / sizeof(unw_word_t);
  di.u.rti.table_data = m->eh_frame_hdr + 12;
  int r = lib.search_table(space, ip, &di, info, need, arg);
  if (r == 0) w->function_start = info->start_ip;
  return r;
}

void put_unwind_info(unw_addr_space_t, unw_proc_info_t*, void*) {}
int get_dyn_info_list_addr(unw_addr_space_t, unw_word_t*, void*) { return -UNW_ENOINFO; }
int access_fpreg(unw_addr_space_t, unw_regnum_t, unw_fpreg_t*, int, void*) { return -UNW_EBADREG; }
int resume(unw_addr_space_t, unw_cursor_t*, void*) { return -UNW_EINVAL; }
int get_proc_name(unw_addr_space_t, unw_word_t, char*, size_t, unw_word_t*, void*) { return -UNW_ENOINFO; }

template <class F>
bool look_up(void* handle, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(handle, name));
  return *out != nullptr;
}

bool load() {
  if (lib.tried) return lib.missing == nullptr;
  lib.tried = true;
  if (poisoned) {
    lib.missing = "the process was forked while its parent unwound a stack";
    return false;
  }
  // RTLD_LOCAL: its _Unwind_* names must not take the place of libgcc's.
  void* handle = dlopen("libunwind-x86_64.so.8", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    lib.missing = "libunwind.so.8 is missing (Debian's package libunwind8)";
    return false;
  }
  if (!look_up(handle, NAME_OF(unw_create_addr_space), &lib.create_addr_space) ||
      !look_up(handle, NAME_OF(unw_init_remote), &lib.init_remote) ||
      !look_up(handle, NAME_OF(unw_step), &lib.step) ||
      !look_up(handle, NAME_OF(unw_get_reg), &lib.get_reg) ||
      !look_up(handle, NAME_OF(unw_is_signal_frame), &lib.is_signal_frame) ||
      !look_up(handle, NAME_OF(UNW_OBJ(dwarf_search_unwind_table)), &lib.search_table)) {
    lib.missing = "this libunwind.so.8 lacks a function";
    return false;
  }
  // Room behind it: later versions copy more members.
  static union {
    unw_accessors_t a;
    char room[512];
  } accessors;
  accessors.a.find_proc_info = find_proc_info;
  accessors.a.put_unwind_info = put_unwind_info;
  accessors.a.get_dyn_info_list_addr = get_dyn_info_list_addr;
  accessors.a.access_mem = access_mem;
  accessors.a.access_reg = access_reg;
  accessors.a.access_fpreg = access_fpreg;
  accessors.a.resume = resume;
  accessors.a.get_proc_name = get_proc_name;
  lib.space = lib.create_addr_space(&accessors.a, 0);
  if (lib.space == nullptr) lib.missing = "libunwind refused";
  return lib.missing == nullptr;
}

// The instruction before `after` is a call. *target: where a direct one goes, else 0.
bool call_before(PageCache* pages, uint64_t after, uint64_t* target) {
  uint64_t w;
  *target = 0;
  if (after < 8 || !pages->word(after - 8, &w)) return false;
  unsigned char b[8];
  memcpy(b, &w, sizeof b);
  if (b[3] == 0xe8) {
    int32_t distance;
    memcpy(&distance, b + 4, sizeof distance);
    *target = after + static_cast<uint64_t>(static_cast<int64_t>(distance));
    return true;
  }
  // ff /2 with its addressing forms, 2 to 7 bytes long.
  for (size_t length : {2u, 3u, 4u, 6u, 7u}) {
    if (b[8 - length] != 0xff) continue;
    unsigned modrm = b[9 - length], mod = modrm >> 6, rm = modrm & 7;
    if ((modrm >> 3 & 7) != 2) continue;
    size_t needs = 2 + (mod != 3 && rm == 4) + (mod == 1 ? 1 : mod == 2 || (mod == 0 && rm == 5) ? 4 : 0);
    if (needs == length) return true;
  }
  return false;
}

// Code of a module, or made at run time, where a return address must at least follow a call.
bool plausible(Walk* w, uint64_t pc, bool exact) {
  if (module_of(pc) != nullptr || module_of(pc - 1) != nullptr) return true;
  uint64_t ignored;
  if (module_at(pc) != nullptr || !w->pages->word(pc, &ignored)) return false;
  return exact || call_before(w->pages, pc, &ignored);
}

void run(Walk* w, Stack* out) {
  unw_cursor_t cursor;
  out->n = 0;
  out->deeper = false;
  if (lib.init_remote(&cursor, lib.space, w) != 0) return;
  uint64_t sp_before = 0;
  for (bool exact = true;;) {
    unw_word_t pc = 0, sp = 0;
    if (lib.get_reg(&cursor, UNW_REG_IP, &pc) != 0 || lib.get_reg(&cursor, UNW_REG_SP, &sp) != 0) break;
    if (out->n > 0 && (pc == 0 || sp <= sp_before || !plausible(w, pc, exact))) break;
    if (out->n == Stack::kMax) {
      out->deeper = true;
      break;
    }
    uint64_t word = 0;
    bool found = out->n > 0 && !exact && copied(*w->record, sp - 8, &word) && word == pc;
    out->frame[out->n] = {pc, !exact};
    out->found_at[out->n++] = found ? static_cast<uint32_t>(sp - 8 - w->record->sp) : Stack::kNowhere;
    sp_before = sp;
    exact = lib.is_signal_frame(&cursor) > 0;
    if (lib.step(&cursor) <= 0) break;
  }
}

// The frame pointer was needed and is not in the record (the kernel tells only stack pointer and program counter): try
// what looks like a saved one with a return address above it. Best: the call goes to the function that asks.
void guess_fp(Walk* w, Stack* out) {
  const PinRecord& r = *w->record;
  uint64_t from = r.sp;
  for (size_t i = 1; i < out->n; i++) {
    if (out->found_at[i] != Stack::kNowhere) from = r.sp + out->found_at[i] + 8;
  }
  uint64_t function = w->function_start, best = 0;
  int best_rank = -1;
  for (uint64_t at = (from + 7) & ~7ull; at - r.sp + 16 <= r.stack_bytes; at += 8) {
    uint64_t saved = 0, after = 0, target = 0;
    copied(r, at, &saved);
    copied(r, at + 8, &after);
    if (module_of(after - 1) == nullptr || !call_before(w->pages, after, &target)) continue;
    bool upwards = saved > at && saved - r.sp < r.stack_bytes && saved % 8 == 0;
    int rank = (target != 0 && target == function ? 2 : 0) + (upwards || saved == 0 ? 1 : 0);
    if (rank > best_rank) {
      best_rank = rank;
      best = at;
      if (rank == 3) break;
    }
  }
  if (best_rank < 0) return;
  static Stack guessed;  // kept off the thread's small stack
  w->fp_known = true;
  w->fp = best;
  run(w, &guessed);
  if (guessed.n > out->n) *out = guessed;
}

}  // namespace

bool unwind(const PinRecord& r, Stack* out) {
  out->n = 1;
  out->deeper = false;
  out->frame[0] = {r.pc, false};
  out->found_at[0] = Stack::kNowhere;
  modules_refresh();
  if (!r.has_stack || r.stack_bytes == 0) return true;
  InGate in;
  if (!load()) return false;
  static PageCache pages;
  pages.clear();
  Walk w{&r, &pages, r.has_fp, r.fp};
  run(&w, out);
  if (w.fp_wanted) guess_fp(&w, out);
  // Where a fiber begins is no news.
  while (out->n > 1) {
    const Module* m = module_of(out->frame[out->n - 1].pc - 1);
    if (m == nullptr || !m->ours) break;
    out->n--;
  }
  return true;
}

const char* unwind_missing() { return lib.missing; }

bool same_stack(const PinRecord& r, const Stack& s) {
  if (!r.has_stack || s.n == 0 || s.frame[0].pc != r.pc) return false;
  for (size_t i = 1; i < s.n; i++) {
    uint64_t word = 0;
    if (s.found_at[i] == Stack::kNowhere) return false;
    if (!copied(r, r.sp + s.found_at[i], &word) || word != s.frame[i].pc) return false;
  }
  return true;
}

void unwind_before_fork() {
  gate.fetch_add(2, std::memory_order_acq_rel);
  for (int i = 0; i < 250 && (gate.load(std::memory_order_acquire) & 1) != 0; i++) sleep_briefly();
}

void unwind_after_fork(bool in_child) {
  if (!in_child) {
    gate.fetch_sub(2, std::memory_order_acq_rel);
    return;
  }
  if ((gate.load(std::memory_order_relaxed) & 1) != 0) {
    poisoned = true;
    lib.tried = false;
  }
  gate.store(0, std::memory_order_relaxed);
}

}  // namespace vthr
