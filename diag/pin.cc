#include "diag/pin.h"

#include <sys/syscall.h>
#include <cstring>
#include <new>

#include "diag/calls.h"
#include "diag/json.h"

namespace vthr {

namespace {

constexpr size_t kEntries = 256;
constexpr int64_t kWindow = 10 * kSecond;
constexpr uint64_t kNewPerWindow = 100;  // distinct stacks printed in ten seconds
constexpr int kUnwindsPerSecond = 200;   // unwinding must not cost the program its CPU

PinEntry* entries;
std::atomic<size_t> entry_count{0};
std::atomic<uint64_t> others{0}, others_ns{0};
bool missing_said;
int64_t new_window, unwind_window;
uint64_t new_printed, new_unprinted;
int unwinds;

// FNV-1a
uint32_t mix(uint32_t h, const void* data, size_t n) {
  auto* p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 16777619u;
  return h;
}

// The text that identifies a place in a run-independent way.
uint32_t id_of(const PinEntry& e) {
  uint32_t h = 2166136261u;
  h = mix(h, &e.kind.reason, sizeof e.kind.reason);
  h = mix(h, &e.kind.call, sizeof e.kind.call);
  if (e.kind.hook != nullptr) h = mix(h, e.kind.hook, strlen(e.kind.hook));
  for (size_t i = 0; e.has_stack && i < e.stack.n; i++) {
    const Symbol* s = e.symbols[i];
    if (s == nullptr || s->module == nullptr) continue;
    uint64_t offset = s->offset;
    if (i == 0 && e.kind.reason == PinReason::cpu && s->start != 0) offset = s->start - s->module->bias;
    h = mix(h, s->module->name, strlen(s->module->name));
    h = mix(h, &offset, sizeof offset);
  }
  return h;
}

bool same_kind(const PinKind& a, const PinKind& b) {
  return a.reason == b.reason && a.call == b.call && a.hook == b.hook && a.page_fault == b.page_fault &&
         a.inline_call == b.inline_call;
}

// Two unwound stacks are one: the same return addresses; the first frame of a spinning fiber counts as its function.
bool same_frames(const PinEntry& e, const Stack& s, const Symbol* const* symbols) {
  if (e.stack.n != s.n) return false;
  for (size_t i = 0; i < s.n; i++) {
    if (e.stack.frame[i].pc == s.frame[i].pc) continue;
    bool same_function = i == 0 && e.kind.reason == PinReason::cpu && e.symbols[0] != nullptr &&
                         symbols[0] != nullptr && symbols[0]->start != 0 &&
                         e.symbols[0]->start == symbols[0]->start;
    if (!same_function) return false;
  }
  return true;
}

size_t mark(const PinEntry& e) {
  size_t other = Stack::kMax;
  for (size_t i = 0; i < e.stack.n; i++) {
    const Module* m = e.symbols[i] != nullptr ? e.symbols[i]->module : nullptr;
    if (m != nullptr && m->main) return i;
    if (other == Stack::kMax && (m == nullptr || !m->plumbing)) other = i;
  }
  return other;
}

PinEntry* new_entry() {
  size_t n = entry_count.load(std::memory_order_relaxed);
  if (entries == nullptr)
    entries = static_cast<PinEntry*>(sys_map(round_up(kEntries * sizeof(PinEntry), kPage)));
  return entries != nullptr && n < kEntries ? new (&entries[n]) PinEntry : nullptr;
}

bool may_unwind(int64_t now) {
  if (now - unwind_window >= kSecond) {
    unwind_window = now;
    unwinds = 0;
  }
  return unwinds++ < kUnwindsPerSecond;
}

// The entry of r, a new one (*fresh), or nullptr when there is no room or no time for it.
PinEntry* entry_of(const PinRecord& r, const PinKind& kind, int64_t now, bool* fresh) {
  *fresh = false;
  size_t n = entry_count.load(std::memory_order_relaxed);
  for (size_t i = 0; i < n; i++) {
    PinEntry& e = entries[i];
    if (!same_kind(e.kind, kind) || e.has_stack != r.has_stack) continue;
    if (!r.has_stack || same_stack(r, e.stack)) return &e;
  }
  if (r.has_stack && !may_unwind(now)) return nullptr;
  static Stack stack;  // large for the thread's stack
  const Symbol* symbols[Stack::kMax] = {};
  bool whole = true;
  stack.n = 0;
  if (r.has_stack) {
    whole = unwind(r, &stack);
    symbols_find(stack.frame, stack.n, symbols);
    for (size_t i = 0; i < n; i++) {
      PinEntry& e = entries[i];
      if (same_kind(e.kind, kind) && e.has_stack && same_frames(e, stack, symbols)) return &e;
    }
  }
  PinEntry* e = new_entry();
  if (e == nullptr) return nullptr;
  e->kind = kind;
  e->has_stack = r.has_stack;
  e->short_stack = !whole;
  e->stack = stack;
  memcpy(e->symbols, symbols, sizeof symbols);
  e->marked = mark(*e);
  e->id = id_of(*e);
  entry_count.store(n + 1, std::memory_order_release);
  *fresh = true;
  return e;
}

void print_text(Text* out, const PinRecord& r, const PinEntry& e) {
  out->put("vthr: pin ");
  put_ms(out, static_cast<uint64_t>(r.ended - r.started));
  out->put("  reason=");
  put_kind(out, e.kind);
  if (e.kind.call >= 0 && call_takes_fd(e.kind.call)) out->format("  fd=%d", static_cast<int>(r.args[0]));
  out->format("  fiber=%llu", static_cast<unsigned long long>(r.fiber_id));
  if (r.fiber_name[0] != 0) {
    char name[sizeof r.fiber_name + 1] = {};
    memcpy(name, r.fiber_name, sizeof r.fiber_name);
    out->put(" \"");
    out->put_name(name);
    out->put('"');
  }
  out->format("  worker=%u  handed-off=%s%s", r.worker_id, r.handed_off ? "yes" : "no",
              r.ongoing ? "  ongoing=yes" : "");
  if (e.kind.hook != nullptr) {
    out->put("  hook=");
    out->put_name(e.kind.hook);
  }
  if (e.has_stack) {
    out->format("  stack=#%08x\n", e.id);
    put_frames(out, e, "", 40);
  } else {
    out->put("  stack=none\n");
  }
}

void print_json(Text* out, const PinRecord& r, const PinEntry& e) {
  out->put(kPrefix);
  Json j(out);
  json_head(&j, "pin", r.wall_started, r.started);
  j.ms("ms", static_cast<uint64_t>(r.ended - r.started));
  put_kind(&j, e.kind);
  if (e.kind.call >= 0 && call_takes_fd(e.kind.call)) j.number("fd", static_cast<uint32_t>(r.args[0]));
  char name[sizeof r.fiber_name + 1] = {};
  memcpy(name, r.fiber_name, sizeof r.fiber_name);
  j.number("fiber", r.fiber_id);
  j.string("name", name);
  j.number("worker", r.worker_id);
  j.boolean("handed_off", r.handed_off);
  if (r.ongoing) j.boolean("ongoing", true);
  put_frames(&j, e);
  j.end_object();
  out->put('\n');
}

void print(const PinRecord& r, const PinEntry& e) {
  static char room[64 << 10];
  if (log_as_json()) {
    Text out(room, sizeof room);
    print_json(&out, r, e);
    if (!out.cut()) log_event(out.data(), out.size());
  } else {
    Text out(room, kEventSize);
    print_text(&out, r, e);
    out.end_line_if_cut();
    log_event(out.data(), out.size());
  }
}

void print_more(const PinEntry& e, int64_t now) {
  char room[1024];
  Text out(room, sizeof room);
  out.put(kPrefix);
  if (log_as_json()) {
    Json j(&out);
    json_head(&j, "pin_more", wall_ns(), now);
    j.number("count", e.more);
    j.ms("ms", e.more_ns);
    j.real("seconds", static_cast<double>(now - e.window_start) / 1e9);
    put_kind(&j, e.kind);
    char id[16];
    snprintf(id, sizeof id, "#%08x", e.id);
    j.string("stack", id);
    j.end_object();
  } else {
    int64_t seconds = (now - e.window_start + kSecond / 2) / kSecond;
    out.format("pin x%llu more in %lld s, total ", static_cast<unsigned long long>(e.more),
               static_cast<long long>(seconds > 0 ? seconds : 1));
    put_ms(&out, e.more_ns);
    if (e.has_stack) {
      out.format(", same stack as above (#%08x ", e.id);
      put_place(&out, e);
      out.put(')');
    } else {
      out.put(", all without a stack: reason=");
      put_kind(&out, e.kind);
    }
  }
  out.end_line();
  log_event(out.data(), out.size());
}

// Too many distinct stacks in ten seconds are counted instead of printed.
bool may_print_new(int64_t now) {
  if (now - new_window >= kWindow) {
    if (new_unprinted > 0)
      log_line(kLogWarn, "pins with %llu more different stacks in 10 s were not printed; the report has them",
               static_cast<unsigned long long>(new_unprinted));
    new_window = now;
    new_printed = new_unprinted = 0;
  }
  if (new_printed < kNewPerWindow) return ++new_printed, true;
  new_unprinted++;
  return false;
}

}  // namespace

const char* pin_reason_name(PinReason r) {
  switch (r) {
    case PinReason::native_frame:
      return "native-frame";
    case PinReason::foreign_lock:
      return "foreign-lock";
    case PinReason::file_io:
      return "file-io";
    case PinReason::cpu:
      return "cpu";
  }
  return "";
}

PinKind pin_classify(const PinRecord& r) {
  PinKind k;
  k.hook = r.hook;
  if (r.kind == PinRecord::cpu) {
    k.reason = PinReason::cpu;
    return k;
  }
  if (r.call_known) {
    k.call = r.call;
    k.name = call_name(r.call);
    k.page_fault = r.call < 0;
  }
  if (k.name == nullptr) k.name = r.hook;
  if (k.call == SYS_futex) {
    k.reason = PinReason::foreign_lock;
  } else if (r.hook != nullptr && call_is_file_io(k.call >= 0 ? k.call : call_number(r.hook))) {
    k.reason = PinReason::file_io;
  }
  if (k.call >= 0 && r.has_stack) {
    const Module* m = module_of(r.pc);
    if (m == nullptr) {
      modules_refresh();
      m = module_of(r.pc);
    }
    k.inline_call = m == nullptr || !(m->libc || m->ours);
  }
  return k;
}

void pin_event(const PinRecord& r, int64_t now) {
  auto ns = static_cast<uint64_t>(r.ended - r.started);
  bool fresh;
  PinEntry* e = entry_of(r, pin_classify(r), now, &fresh);
  if (e == nullptr) {
    others.fetch_add(1, std::memory_order_relaxed);
    others_ns.fetch_add(ns, std::memory_order_relaxed);
    return;
  }
  if (!r.ongoing) {  // it is counted when it ends
    e->count.fetch_add(1, std::memory_order_relaxed);
    e->total_ns.fetch_add(ns, std::memory_order_relaxed);
    if (ns > e->longest_ns.load(std::memory_order_relaxed))
      e->longest_ns.store(ns, std::memory_order_relaxed);
  }
  // The first of all pins under `abort` must be seen at every level.
  int level = options.pin == kPinAbort ? kLogError : kLogWarn;
  if (!log_wants(level)) return;
  if (fresh) {
    e->window_start = now;
    if (!may_print_new(now)) return;
    print(r, *e);
    if (e->short_stack && !missing_said) {
      missing_said = true;
      log_line(kLogWarn, "%s: stacks in pin reports are short", unwind_missing());
    }
    return;
  }
  if (r.ongoing) return;
  if (e->more == 0 && now - e->window_start >= kWindow) e->window_start = now;
  e->more++;
  e->more_ns += ns;
}

void pin_flush(int64_t now, bool all) {
  size_t n = entry_count.load(std::memory_order_relaxed);
  for (size_t i = 0; i < n; i++) {
    PinEntry& e = entries[i];
    if (e.more == 0 || (!all && now - e.window_start < kWindow)) continue;
    print_more(e, now);
    e.more = e.more_ns = 0;
    e.window_start = now;
  }
}

int64_t pin_next_flush() {
  int64_t next = kNever;
  size_t n = entry_count.load(std::memory_order_relaxed);
  for (size_t i = 0; i < n; i++) {
    if (entries[i].more != 0 && entries[i].window_start + kWindow < next)
      next = entries[i].window_start + kWindow;
  }
  return next;
}

size_t pin_entry_count() { return entry_count.load(std::memory_order_acquire); }
const PinEntry& pin_entry(size_t i) { return entries[i]; }
PinOthers pin_others() {
  return {others.load(std::memory_order_relaxed), others_ns.load(std::memory_order_relaxed)};
}

void pins_forget() {
  entries = nullptr;  // a few pages, left to the child
  entry_count.store(0, std::memory_order_relaxed);
  others.store(0, std::memory_order_relaxed);
  others_ns.store(0, std::memory_order_relaxed);
  missing_said = false;
  new_window = unwind_window = 0;
  new_printed = new_unprinted = 0;
}

void put_place(Text* out, const PinEntry& e) {
  size_t i = e.marked < e.stack.n ? e.marked : 0;
  const Symbol* s = e.has_stack && e.stack.n > 0 ? e.symbols[i] : nullptr;
  if (s == nullptr) {
    out->put(e.kind.name != nullptr ? e.kind.name : "unknown place");
  } else if (s->name != nullptr) {
    out->put_name(s->name);
  } else if (s->module != nullptr) {
    out->put_name(s->module->name);
    out->format("+0x%llx", static_cast<unsigned long long>(s->offset));
  } else {
    out->put("code made at run time");
  }
}

void put_kind(Text* out, const PinKind& k) {
  out->put(pin_reason_name(k.reason));
  if (k.name != nullptr) {
    out->put("  call=");
    out->put_name(k.name);
  } else if (k.call >= 0) {
    out->format("  call=%ld", k.call);
  }
  if (k.page_fault) out->put("  how=page-fault");
  if (k.inline_call) out->put("  how=inline-syscall");
}

void put_kind(Json* j, const PinKind& k) {
  j->string("reason", pin_reason_name(k.reason));
  if (k.name != nullptr) j->string("call", k.name);
  if (k.call >= 0) j->number("nr", static_cast<uint64_t>(k.call));
  if (k.hook != nullptr) j->string("hook", k.hook);
  if (k.page_fault) j->string("how", "page-fault");
  if (k.inline_call) j->string("how", "inline-syscall");
}

namespace {
void put_address(Text* out, const Symbol* s) {
  out->put_name(s->module->name);
  out->format("+0x%llx", static_cast<unsigned long long>(s->offset));
}
}  // namespace

void put_frames(Text* out, const PinEntry& e, const char* prefix, size_t reserve) {
  for (size_t i = 0; i < e.stack.n; i++) {
    size_t before = out->size();
    out->put(prefix);
    out->format("%s#%zu 0x%llx ", i == e.marked ? " >  " : "    ", i,
                static_cast<unsigned long long>(e.stack.frame[i].pc));
    size_t name_at = out->size();
    const Symbol* s = e.symbols[i];
    bool known = s != nullptr && s->module != nullptr;
    if (known && s->name != nullptr) {
      out->put_name(s->name);
    } else if (known) {
      put_address(out, s);
    } else {
      out->put('?');
    }
    out->pad_to(24, name_at);
    out->put(' ');
    if (known && e.short_stack && s->name != nullptr) {
      put_address(out, s);
    } else {
      out->put_name(known ? s->module->name : "[anonymous]");
    }
    out->put('\n');
    if (out->cut() || out->left() < reserve) {
      out->shrink(before);
      out->format("%s    ... %zu more frames\n", prefix, e.stack.n - i);
      return;
    }
  }
  if (e.stack.deeper) out->format("%s    ... more frames\n", prefix);
}

void put_frames(Json* j, const PinEntry& e) {
  char id[16];
  snprintf(id, sizeof id, "#%08x", e.id);
  j->string("stack", e.has_stack ? id : "none");
  j->array("frames");
  for (size_t i = 0; e.has_stack && i < e.stack.n; i++) {
    const Symbol* s = e.symbols[i];
    j->object();
    j->hex("pc", e.stack.frame[i].pc);
    if (s != nullptr && s->name != nullptr) j->string("function", s->name);
    if (s != nullptr && s->module != nullptr) {
      j->string("module", s->module->name);
      j->hex("offset", s->offset);
    }
    if (i == e.marked) j->boolean("program", true);
    j->end_object();
  }
  j->end_array();
  if (e.stack.deeper) j->boolean("deeper", true);
}

}  // namespace vthr
