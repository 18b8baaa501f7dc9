#include "runtime/tls.h"

#include <asm/prctl.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <locale.h>
#include <netdb.h>
#include <resolv.h>
#include <cstdlib>
#include <cstring>
#undef p_type  // a macro of resolv.h
#include <sys/auxv.h>
#include <sys/rseq.h>

#include "runtime/base.h"
#include "runtime/lock.h"
#include "runtime/sys.h"

namespace vthr {

bool tls_fast_fs = false;

namespace {

// A descriptor of nptl_db: width in bits, count, offset (nptl_db/structs.def of glibc says what each is for).
struct Descriptor {
  uint32_t bits, count, offset;
};
struct GlibcList {
  GlibcList *next, *prev;
};

// The head of a TCB, fixed by the x86-64 TLS ABI and the compilers: self pointers, dtv, the two guards.
constexpr size_t kHeadDtv = 8, kHeadSelf = 16, kHeadCopyFrom = 24, kHeadGuards = 0x28, kHeadCopyTo = 0x38;

struct Layout {
  size_t static_size, static_align, tcb_size;
  size_t tid, list, specific, cancelhandling, key_data_size, key_data_seq, key_data_value;
  size_t level2_count, level1_count, key_size, key_seq, key_destructor, key_count;
  size_t slotinfo_next, slotinfo_slots, slotinfo_size, slot_map, slot_gen;
  size_t map_modid, map_tls_offset;
  GlibcList* stack_user;
  char* slotinfo_list;  // address of the pointer to the list
  char* keys;           // __pthread_keys
  // measured on a worker
  ptrdiff_t robust, robust_futex_offset, res_state;
  ptrdiff_t resp;  // of the TLS variable __resp
  ptrdiff_t rseq;  // of the restartable sequences area; rseq_registered: glibc registers it
  bool rseq_registered;
  char head[kHeadCopyTo];
  size_t image_bytes;  // below the TCB
  char* image;         // the first worker's static TLS
} L;

void* (*dl_allocate_tls)(void*);
void (*call_tls_dtors)();
void (*ctype_init)();

constexpr uint32_t kRseqSignature = 0x53053053;
constexpr uintptr_t kDtvUnallocated = ~0ul;  // TLS_DTV_UNALLOCATED

template <class T>
T& at(void* base, size_t offset) {
  return *reinterpret_cast<T*>(static_cast<char*>(base) + offset);
}

Lock list_lock;  // appends to glibc's list: all pthread_create calls of the program come through us

// One module with static TLS, as far as recycling needs it.
struct Module {
  void* map;
  size_t gen, offset, init_bytes, bytes;
  const void* init;
};
constexpr size_t kMaxModules = 128;
Module modules[kMaxModules];
size_t module_count;
void* slots_seen[kMaxModules];
size_t slots_seen_gen[kMaxModules];
size_t slots_seen_count;
void *libc_map, *own_map;  // libc's block keeps malloc's cache, ours says who the fiber is
Lock modules_lock;

struct Segment {
  void* map;
  const void* init;
  size_t init_bytes, bytes;
};

int find_segment(dl_phdr_info* info, size_t, void* arg) {
  auto* seg = static_cast<Segment*>(arg);
  auto* map = static_cast<link_map*>(seg->map);
  if (info->dlpi_addr != map->l_addr || info->dlpi_name == nullptr ||
      strcmp(info->dlpi_name, map->l_name) != 0)
    return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& ph = info->dlpi_phdr[i];
    if (ph.p_type != PT_TLS) continue;
    seg->init = reinterpret_cast<const void*>(info->dlpi_addr + ph.p_vaddr);
    seg->init_bytes = ph.p_filesz;
    seg->bytes = ph.p_memsz;
    return 1;
  }
  return 1;
}

// Calls f(map, gen) for every used slot of the loader's list of TLS modules.
template <class F>
void each_slot(F f) {
  char* list = *reinterpret_cast<char**>(L.slotinfo_list);
  size_t index = 0;
  for (; list != nullptr; list = at<char*>(list, L.slotinfo_next)) {
    size_t len = at<size_t>(list, 0);
    for (size_t i = 0; i < len; i++, index++) {
      char* slot = list + L.slotinfo_slots + i * L.slotinfo_size;
      void* map = at<void*>(slot, L.slot_map);
      if (map != nullptr) f(index, map, at<size_t>(slot, L.slot_gen));
    }
  }
}

bool modules_changed() {
  size_t n = 0;
  bool same = true;
  each_slot([&](size_t, void* map, size_t gen) {
    if (n < kMaxModules && (slots_seen[n] != map || slots_seen_gen[n] != gen)) same = false;
    n++;
  });
  return !same || n != slots_seen_count;
}

void rebuild_modules() {
  module_count = 0;
  slots_seen_count = 0;
  each_slot([&](size_t, void* map, size_t gen) {
    if (slots_seen_count < kMaxModules) {
      slots_seen[slots_seen_count] = map;
      slots_seen_gen[slots_seen_count] = gen;
    }
    slots_seen_count++;
    auto offset = at<ptrdiff_t>(map, L.map_tls_offset);
    // 0: not yet in the static area; -1 and -2: forced dynamic / unknown (values of the loader)
    if (offset <= 0 || module_count == kMaxModules || map == libc_map || map == own_map) return;
    Segment seg{map, nullptr, 0, 0};
    dl_iterate_phdr(find_segment, &seg);
    if (seg.bytes == 0) return;
    modules[module_count++] = {map, gen, static_cast<size_t>(offset), seg.init_bytes, seg.bytes, seg.init};
  });
}

}  // namespace

void tls_set_fs_slow(void* tcb) { sys_call(SYS_arch_prctl, ARCH_SET_FS, sys_arg(tcb)); }

bool tls_init(void* (*find)(const char* name), const char** why) {
  auto missing = [&](const char* name) {
    *why = name;
    return false;
  };
  auto field = [&](const char* name, size_t* offset, size_t* count = nullptr, size_t* pointers = nullptr) {
    auto* d = static_cast<const Descriptor*>(find(name));
    if (d == nullptr) return missing(name);
    *offset = d->offset;
    if (count != nullptr) *count = d->count;
    if (pointers != nullptr) *pointers = d->bits / 8 / sizeof(void*);
    return true;
  };
  auto size = [&](const char* name, size_t* bytes) {
    auto* p = static_cast<const uint32_t*>(find(name));
    if (p == nullptr) return missing(name);
    *bytes = *p;
    return true;
  };
  size_t user = 0, slots = 0;
  if (!size("_thread_db_sizeof_pthread", &L.tcb_size) || !field("_thread_db_pthread_tid", &L.tid) ||
      !field("_thread_db_pthread_list", &L.list) ||
      !field("_thread_db_pthread_specific", &L.specific, nullptr, &L.level1_count) ||
      !field("_thread_db_pthread_cancelhandling", &L.cancelhandling) ||
      !size("_thread_db_sizeof_pthread_key_data", &L.key_data_size) ||
      !field("_thread_db_pthread_key_data_seq", &L.key_data_seq) ||
      !field("_thread_db_pthread_key_data_data", &L.key_data_value) ||
      !field("_thread_db_pthread_key_data_level2_data", &user, &L.level2_count) ||
      !size("_thread_db_sizeof_pthread_key_struct", &L.key_size) ||
      !field("_thread_db_pthread_key_struct_seq", &L.key_seq) ||
      !field("_thread_db_pthread_key_struct_destr", &L.key_destructor) ||
      !field("_thread_db___pthread_keys", &user, &L.key_count) ||
      !field("_thread_db_dtv_slotinfo_list_next", &L.slotinfo_next) ||
      !field("_thread_db_dtv_slotinfo_list_slotinfo", &L.slotinfo_slots) ||
      !size("_thread_db_sizeof_dtv_slotinfo", &L.slotinfo_size) ||
      !field("_thread_db_dtv_slotinfo_map", &L.slot_map) ||
      !field("_thread_db_dtv_slotinfo_gen", &L.slot_gen) ||
      !field("_thread_db_link_map_l_tls_modid", &L.map_modid) ||
      !field("_thread_db_link_map_l_tls_offset", &L.map_tls_offset) ||
      !field("_thread_db_rtld_global__dl_stack_user", &user) ||
      !field("_thread_db_rtld_global__dl_tls_dtv_slotinfo_list", &slots))
    return false;
  auto* rtld = static_cast<char*>(find("_rtld_global"));
  auto static_info = reinterpret_cast<void (*)(size_t*, size_t*)>(find("_dl_get_tls_static_info"));
  dl_allocate_tls = reinterpret_cast<void* (*)(void*)>(find("_dl_allocate_tls"));
  call_tls_dtors = reinterpret_cast<void (*)()>(find("__call_tls_dtors"));
  ctype_init = reinterpret_cast<void (*)()>(find("__ctype_init"));
  L.keys = static_cast<char*>(find("__pthread_keys"));
  void* resp = find("__resp");
  auto* rseq_offset = static_cast<const ptrdiff_t*>(find("__rseq_offset"));
  auto* rseq_size = static_cast<const unsigned*>(find("__rseq_size"));
  if (rtld == nullptr || static_info == nullptr || dl_allocate_tls == nullptr || call_tls_dtors == nullptr ||
      ctype_init == nullptr || L.keys == nullptr || resp == nullptr || rseq_offset == nullptr ||
      rseq_size == nullptr)
    return missing("_rtld_global, __pthread_keys, __resp or a GLIBC_PRIVATE function");
  L.rseq = *rseq_offset;
  L.rseq_registered = *rseq_size != 0;
  L.stack_user = reinterpret_cast<GlibcList*>(rtld + user);
  L.slotinfo_list = rtld + slots;
  L.resp = static_cast<char*>(resp) - static_cast<char*>(tls_self());
  if (L.resp >= 0) return missing("__resp in the static TLS area");
  static_info(&L.static_size, &L.static_align);
  if (L.static_align < kCacheLine) L.static_align = kCacheLine;
  if (L.stack_user->next == nullptr) return missing("_dl_stack_user");
  // The initial thread's own link must be found where we think it is.
  auto* own = reinterpret_cast<GlibcList*>(static_cast<char*>(tls_self()) + L.list);
  if (own->next == nullptr || own->next->prev != own) return missing("the initial thread's list entry");
  if (at<int>(tls_self(), L.tid) != sys_gettid()) return missing("the initial thread's tid");
  tls_fast_fs = (getauxval(AT_HWCAP2) & 2) != 0;
  return true;
}

void tls_measure_on_worker() {
  auto* self = static_cast<char*>(tls_self());
  void* head = nullptr;
  size_t len = 0;
  sys_call(SYS_get_robust_list, 0, sys_arg(&head), sys_arg(&len));
  L.robust = static_cast<char*>(head) - self;
  L.robust_futex_offset = at<ptrdiff_t>(head, 8);
  L.res_state = at<char*>(self, L.resp) - self;
  memcpy(L.head, self, sizeof L.head);
  L.image_bytes = L.static_size - L.tcb_size;
  L.image = static_cast<char*>(sys_map(round_up(L.image_bytes, kPage)));
  if (L.image != nullptr) memcpy(L.image, self - L.image_bytes, L.image_bytes);
  Dl_info info;
  link_map* map = nullptr;
  // errno lives in libc's own TLS; its module is the one that recycling leaves alone
  if (dladdr1(reinterpret_cast<void*>(&dl_iterate_phdr), &info, reinterpret_cast<void**>(&map),
              RTLD_DL_LINKMAP) != 0)
    libc_map = map;
  if (dladdr1(reinterpret_cast<void*>(&tls_measure_on_worker), &info, reinterpret_cast<void**>(&map),
              RTLD_DL_LINKMAP) != 0)
    own_map = map;
  rebuild_modules();
}

size_t tls_block_size() { return round_up(L.static_size + L.static_align, kCacheLine); }

void* tls_tcb_of_block(void* block) {
  auto top = reinterpret_cast<uintptr_t>(block) + tls_block_size() - L.tcb_size;
  return reinterpret_cast<void*>(top & ~(L.static_align - 1));
}

namespace {

// What a TCB in zeroed memory needs beside its dtv.
void fill_tcb(char* tcb, int tid) {
  at<void*>(tcb, 0) = tcb;
  at<void*>(tcb, kHeadSelf) = tcb;
  memcpy(tcb + kHeadCopyFrom, L.head + kHeadCopyFrom, kHeadCopyTo - kHeadCopyFrom);
  at<int>(tcb, L.tid) = tid;
  // specific[0] points at the block inside the TCB, as in every thread; the initial thread shows where it is
  auto* self = static_cast<char*>(tls_self());
  at<char*>(tcb, L.specific) = tcb + (at<char*>(self, L.specific) - self);
  at<char*>(tcb, L.robust) = tcb + L.robust;
  at<ptrdiff_t>(tcb, L.robust + 8) = L.robust_futex_offset;
  at<char*>(tcb, L.robust - 8) = tcb + L.robust;  // robust_prev
  at<char*>(tcb, L.resp) = tcb + L.res_state;
  at<uint32_t>(tcb, static_cast<size_t>(L.rseq) + offsetof(struct rseq, cpu_id)) =
      static_cast<uint32_t>(RSEQ_CPU_ID_UNINITIALIZED);
}

void link_tcb(char* tcb) {
  auto* link = reinterpret_cast<GlibcList*>(tcb + L.list);
  Locked hold(list_lock);
  link->next = L.stack_user;
  link->prev = L.stack_user->prev;
  // glibc walks forward; our node is whole before it is seen
  std::atomic_thread_fence(std::memory_order_release);
  link->prev->next = link;
  L.stack_user->prev = link;
}

}  // namespace

void* tls_create(void* block, int tid) {
  auto* tcb = static_cast<char*>(tls_tcb_of_block(block));
  if (dl_allocate_tls(tcb) == nullptr) return nullptr;
  fill_tcb(tcb, tid);
  link_tcb(tcb);
  return tcb;
}

void* tls_create_for_worker(void* block) {
  auto* tcb = static_cast<char*>(tls_tcb_of_block(block));
  tls_renew_for_worker(tcb);
  link_tcb(tcb);
  return tcb;
}

void tls_renew_for_worker(void* tcb) {
  auto* t = static_cast<char*>(tcb);
  memcpy(t - L.image_bytes, L.image, L.image_bytes);
  at<void*>(t, kHeadDtv) = at<void*>(L.head, kHeadDtv);
  fill_tcb(t, 0);
  *tls_cancelhandling(t) = 0;
}

int* tls_tid_word(void* tcb) { return &at<int>(tcb, L.tid); }
void tls_set_tid(void* tcb, int tid) { at<int>(tcb, L.tid) = tid; }
void tls_bind(void* tcb, int kernel_tid) {
  at<int>(tls_self(), L.tid) = 0;  // set*id would wait for both
  at<int>(tcb, L.tid) = kernel_tid;
  sys_call(SYS_set_robust_list, sys_arg(static_cast<char*>(tcb) + L.robust), 24);  // sizeof(robust_list_head)
}
int tls_tid(void* tcb) { return at<int>(tcb, L.tid); }
// The kernel's exit_robust_list: words of glibc's mutexes hold the owner's tid, and bits for waiters and the owner's death.
void tls_leave_robust(void* block) {
  constexpr int kMost = 2048;  // as the kernel: a list that somebody damaged ends too
  constexpr uint32_t kWaiters = 0x80000000, kOwnerDied = 0x40000000, kTid = 0x3fffffff;
  char* tcb = static_cast<char*>(block);
  char* head = tcb + L.robust;
  auto tid = static_cast<uint32_t>(tls_tid(tcb));
  bool inheriting = false;
  auto entry = at<uintptr_t>(tcb, L.robust);
  for (int i = 0; i < kMost && (entry & ~1ul) != reinterpret_cast<uintptr_t>(head); i++) {
    auto* node = reinterpret_cast<char*>(entry & ~1ul);
    auto* word = reinterpret_cast<uint32_t*>(node + L.robust_futex_offset);
    bool inherits = (entry & 1) != 0;  // its waiters are the kernel's to choose from
    entry = *reinterpret_cast<uintptr_t*>(node);
    inheriting = inheriting || inherits;
    uint32_t v = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!inherits && (v & kTid) == tid) {
      if (!__atomic_compare_exchange_n(word, &v, (v & kWaiters) | kOwnerDied, false, __ATOMIC_RELEASE,
                                       __ATOMIC_RELAXED))
        continue;
      if ((v & kWaiters) != 0)
        sys_call(SYS_futex, sys_arg(word), FUTEX_WAKE, 1);  // perhaps of another process
      break;
    }
  }
  if (!inheriting) at<char*>(tcb, L.robust) = head;
}

int* tls_cancelhandling(void* tcb) { return &at<int>(tcb, L.cancelhandling); }

void tls_first_run() { ctype_init(); }

namespace {

// Calls f(slot of key data, key index) for every key whose second-level block exists.
template <class F>
void each_key(void* tcb, F f) {
  for (size_t i = 0; i < L.level1_count; i++) {
    char* block = at<char*>(tcb, L.specific + i * sizeof(void*));
    if (block == nullptr) continue;
    for (size_t j = 0; j < L.level2_count; j++) f(block + j * L.key_data_size, i * L.level2_count + j);
  }
}

}  // namespace

void tls_run_destructors() {
  call_tls_dtors();
  void* tcb = tls_self();
  for (int round = 0; round < PTHREAD_DESTRUCTOR_ITERATIONS; round++) {
    bool again = false;
    each_key(tcb, [&](char* slot, size_t key) {
      void* value = at<void*>(slot, L.key_data_value);
      if (value == nullptr) return;
      at<void*>(slot, L.key_data_value) = nullptr;
      char* k = L.keys + key * L.key_size;
      if (at<uintptr_t>(slot, L.key_data_seq) != at<uintptr_t>(k, L.key_seq)) return;
      auto destructor = at<void (*)(void*)>(k, L.key_destructor);
      if (destructor == nullptr) return;
      destructor(value);
      again = true;
    });
    if (!again) break;
  }
  call_tls_dtors();  // a key destructor may have registered one more
}

void tls_recycle() {
  auto* tcb = static_cast<char*>(tls_self());
  each_key(tcb, [](char* slot, size_t) { at<void*>(slot, L.key_data_value) = nullptr; });
  auto* res = at<struct __res_state*>(tcb, L.resp);
  if (res != nullptr && (res->options & RES_INIT) != 0) {
    res_nclose(res);
    memset(res, 0, sizeof *res);
  }
  uselocale(LC_GLOBAL_LOCALE);
  dlerror();
  h_errno = 0;
  // dynamic TLS blocks belong to the fiber that touched them; they came from the program's malloc
  struct DtvEntry {
    void* value;
    void* to_free;
  };
  auto* dtv = at<DtvEntry*>(tcb, kHeadDtv);
  size_t len = reinterpret_cast<size_t>(dtv[-1].value);
  for (size_t i = 1; i <= len; i++) {
    if (dtv[i].to_free == nullptr) continue;
    free(dtv[i].to_free);
    dtv[i].value = reinterpret_cast<void*>(kDtvUnallocated);
    dtv[i].to_free = nullptr;
  }
  Locked hold(modules_lock);
  if (VTHR_UNLIKELY(modules_changed())) rebuild_modules();
  for (size_t i = 0; i < module_count; i++) {
    const Module& m = modules[i];
    char* block = tcb - m.offset;
    memcpy(block, m.init, m.init_bytes);
    memset(block + m.init_bytes, 0, m.bytes - m.init_bytes);
  }
  *tls_cancelhandling(tcb) = 0;
  errno = 0;
}

void tls_after_fork_in_fiber() {
  auto* link = reinterpret_cast<GlibcList*>(static_cast<char*>(tls_self()) + L.list);
  link->prev->next = link->next;
  link->next->prev = link->prev;
  link->next = L.stack_user;
  link->prev = L.stack_user->prev;
  link->prev->next = link;
  L.stack_user->prev = link;
}

void tls_after_fork() {
  list_lock.reset();
  modules_lock.reset();
}

void tls_unregister_rseq() {
  if (!L.rseq_registered) return;
  sys_call(SYS_rseq, sys_arg(static_cast<char*>(tls_self()) + L.rseq), sizeof(struct rseq),
           RSEQ_FLAG_UNREGISTER, kRseqSignature);
}

}  // namespace vthr
