#include "diag/report.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <cerrno>
#include <cstring>

#include "diag/diag.h"
#include "diag/json.h"

namespace vthr {

namespace {

constexpr size_t kShown = 50;  // pins with their stacks
constexpr size_t kFirstRoom = 256 << 10, kMostRoom = 8 << 20;
constexpr const char* kHonesty =
    "No printed pin is no proof that nothing blocked: pins are seen by sampling, times are lower bounds, and "
    "shorter "
    "blocks appear only in the number of blocks that nobody saw begin.";

int64_t started;
std::atomic<bool> failed_said{false};
std::atomic<bool> writing{false};
std::atomic<uint64_t> peak{0};
char temporary[64];

unsigned long long u(uint64_t n) { return n; }
uint64_t read(const std::atomic<uint64_t>& c) { return c.load(std::memory_order_relaxed); }

struct Facts {
  int64_t now = now_ns(), wall = wall_ns();
  Census census;
  PinTotals pins = pin_totals();
  bool proc = false;
  uint64_t unseen = 0;
  uint64_t parked = read(counters.io_parks), native = read(counters.native_calls);
  PinOthers others = pin_others();
  size_t entries = pin_entry_count();
  size_t order[kShown], shown = 0;

  Facts() {
    census = census_take(now);
    uint64_t all = 0, own = 0;
    proc = voluntary_switches_of_workers(&all, &own);
    if (all > own + pins.count) unseen = all - own - pins.count;
    uint64_t before = peak.load(std::memory_order_relaxed);
    if (census.alive > before) peak.store(census.alive, std::memory_order_relaxed);
    // The largest by total time.
    for (size_t i = 0; i < entries; i++) {
      uint64_t ns = read(pin_entry(i).total_ns);
      size_t at = shown < kShown ? shown++ : kShown;
      for (; at > 0 && read(pin_entry(order[at - 1]).total_ns) < ns; at--) {
        if (at < kShown) order[at] = order[at - 1];
      }
      if (at < kShown) order[at] = i;
    }
  }
  double share() const {
    return parked + native == 0 ? 0
                                : 100.0 * static_cast<double>(parked) / static_cast<double>(parked + native);
  }
};

// ---- text ----

class Lines {
 public:
  Lines(Text* out, const char* prefix) : out_(out), prefix_(prefix) {}
  __attribute__((format(printf, 2, 3))) void line(const char* format, ...) {
    va_list ap;
    va_start(ap, format);
    out_->put(prefix_);
    out_->vformat(format, ap);
    out_->put('\n');
    va_end(ap);
  }

 private:
  Text* out_;
  const char* prefix_;
};

void put_pins(Text* out, const Facts& f, const char* prefix) {
  Lines l(out, prefix);
  l.line("pins over the threshold, by total time:%s", f.entries + f.others.count == 0 ? " none" : "");
  for (size_t i = 0; i < f.shown; i++) {
    const PinEntry& e = pin_entry(f.order[i]);
    out->put(prefix);
    out->format("  %llu x, ", u(read(e.count)));
    put_ms(out, read(e.total_ns));
    out->put(" in total, longest ");
    put_ms(out, read(e.longest_ns));
    out->put(": reason=");
    put_kind(out, e.kind);
    if (e.kind.hook != nullptr) out->format("  hook=%s", e.kind.hook);
    if (e.has_stack) {
      out->format("  stack=#%08x\n", e.id);
      put_frames(out, e, prefix, 0);
    } else {
      out->put("  stack=none\n");
    }
  }
  if (f.entries > f.shown) l.line("  %zu more different stacks", f.entries - f.shown);
  if (f.others.count > 0)
    l.line("  %llu x, %llu ms in total: not told apart, too many different ones", u(f.others.count),
           u(f.others.total_ns / 1000000));
}

void put_text(Text* out, const Facts& f, const char* prefix, bool final_one) {
  Lines l(out, prefix);
  char utc[40];
  format_utc(f.wall, utc);
  out->put(prefix);
  out->format("report of libvthr %s, pid %d, ", VTHR_VERSION, log_pid());
  out->put_name(program_name());
  out->format(", %s, after ", utc);
  put_tenths(out, static_cast<uint64_t>((f.now - started) / (100 * kMilli)));
  out->put(final_one ? " s, at the end\n" : " s\n");
  l.line("engine=%s carriers=%d workers=%d (made %llu, ended %llu, wanted at most %d)", engine_name,
         carrier_count, f.census.workers, u(read(counters.workers_made)), u(read(counters.workers_retired)),
         options.max_workers);
  const Census& c = f.census;
  out->put(prefix);
  out->format("fibers: %llu made, %llu alive", u(c.made), u(c.alive));
  // Seen when a report was made, so not known for a short program.
  if (uint64_t most = peak.load(std::memory_order_relaxed)) out->format(" (most seen %llu)", u(most));
  out->format(", %llu running, %llu runnable, %llu parked, %llu queued\n", u(c.running), u(c.runnable),
              u(c.parked), u(c.queued));
  if (c.parked > 0) {
    out->put(prefix);
    out->put("parked by: ");
    put_reasons(out, c, ", ");
    out->put('\n');
  }
  out->put(prefix);
  out->format("blocking calls: %llu parked, %llu ran natively on a worker", u(f.parked), u(f.native));
  if (f.parked + f.native > 0) {
    out->put(" (");
    put_tenths(out, f.parked * 1000 / (f.parked + f.native));
    out->put(" % parked)");
  }
  out->format("; waits that parked, locks too: %llu\n", u(read(counters.parks)));
  out->put(prefix);
  out->format("pins seen: %llu, ", u(f.pins.count));
  put_ms(out, f.pins.total_ns);
  out->put(" in total, longest ");
  put_ms(out, f.pins.longest_ns);
  out->put(", also those under the threshold of ");
  put_ms(out, static_cast<uint64_t>(options.pin_threshold));
  out->put('\n');
  if (f.proc) {
    l.line("blocks that nobody saw begin: %llu", u(f.unseen));
  } else {
    l.line("blocks that nobody saw begin: unknown, /proc is not readable");
  }
  l.line("hand-offs: %llu, steals: %llu, fiber switches: %llu", u(read(counters.handoffs)),
         u(read(counters.steals)), u(read(counters.switches)));
  if (libc_coverage.why != nullptr) {
    l.line("calls from inside libc: not covered, they pin (%s)", libc_coverage.why);
  } else {
    l.line("calls from inside libc: %d of %d functions redirected", libc_coverage.redirected,
           libc_coverage.wanted);
  }
  l.line("known gaps: %llu pins without a stack, %llu events dropped, %llu lines lost%s%s",
         u(read(counters.no_stack)), u(read(counters.events_dropped)), u(log_lost()),
         unwind_missing() != nullptr ? ", short stacks: " : "",
         unwind_missing() != nullptr ? unwind_missing() : "");
  l.line("%s", kHonesty);
  put_pins(out, f, prefix);
}

// ---- JSON ----

void put_json(Text* out, const Facts& f, bool final_one) {
  Json j(out);
  json_head(&j, "report", f.wall, f.now);
  j.string("version", VTHR_VERSION);
  j.string("program", program_path());
  j.boolean("final", final_one);
  j.real("uptime_s", static_cast<double>(f.now - started) / 1e9);
  j.string("mode", "fibers");
  j.string("engine", engine_name);
  j.number("carriers", static_cast<uint64_t>(carrier_count));
  j.object("workers");
  j.number("now", static_cast<uint64_t>(f.census.workers));
  j.number("made", read(counters.workers_made));
  j.number("ended", read(counters.workers_retired));
  j.number("max", static_cast<uint64_t>(options.max_workers));
  j.end_object();
  put_census(&j, f.census);
  j.number("fibers_most_seen", peak.load(std::memory_order_relaxed));
  j.object("blocking_calls");
  j.number("parked", f.parked);
  j.number("native", f.native);
  j.real("parked_percent", f.share());
  j.end_object();
  j.number("waits_parked", read(counters.parks));
  j.object("pins_seen");
  j.number("count", f.pins.count);
  j.ms("total_ms", f.pins.total_ns);
  j.ms("longest_ms", f.pins.longest_ns);
  j.end_object();
  if (f.proc) {
    j.number("unseen_blocks", f.unseen);
  } else {
    j.null("unseen_blocks");
  }
  put_libc_coverage(&j);
  j.ms("threshold_ms", static_cast<uint64_t>(options.pin_threshold));
  j.array("pins");
  for (size_t i = 0; i < f.shown; i++) {
    const PinEntry& e = pin_entry(f.order[i]);
    j.object();
    j.number("count", read(e.count));
    j.ms("total_ms", read(e.total_ns));
    j.ms("longest_ms", read(e.longest_ns));
    put_kind(&j, e.kind);
    put_frames(&j, e);
    j.end_object();
  }
  j.end_array();
  j.object("pins_not_told_apart");
  j.number("count", f.others.count);
  j.ms("total_ms", f.others.total_ns);
  j.number("stacks_not_shown", f.entries - f.shown);
  j.end_object();
  j.number("hand_offs", read(counters.handoffs));
  j.number("steals", read(counters.steals));
  j.number("switches", read(counters.switches));
  j.number("cpu_hogs", read(counters.hogs));
  j.object("known_gaps");
  j.number("pins_without_stack", read(counters.no_stack));
  j.number("events_dropped", read(counters.events_dropped));
  j.number("lines_lost", log_lost());
  j.boolean("proc_readable", f.proc);
  if (unwind_missing() != nullptr) j.string("short_stacks", unwind_missing());
  j.end_object();
  j.string("note", kHonesty);
  j.end_object();
  out->put('\n');
}

// ---- writing ----

// A file that exists and is none to be replaced.
bool is_special() {
  char name[kNameMax];
  int dir = target_folder(report_target, target_base(report_target), name, sizeof name);
  struct stat st {};
  return sys_call(SYS_newfstatat, dir, sys_arg(name), sys_arg(&st), 0) == 0 && !S_ISREG(st.st_mode);
}

int write_special(const Text& text) {
  long fd = target_open(report_target, O_WRONLY | O_APPEND);
  if (fd < 0) return static_cast<int>(-fd);
  int err = 0;
  write_all(static_cast<int>(fd), text.data(), text.size(), kSecond, &err);
  sys_call(SYS_close, fd);
  return err;
}

int replace(const Text& text) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW;
  char from[kNameMax], to[kNameMax];
  int dir = target_folder(report_target, temporary, from, sizeof from);
  target_folder(report_target, target_base(report_target), to, sizeof to);
  long fd = target_open(report_target, kFlags, temporary);
  if (fd == -EEXIST) {  // left by a write that did not finish
    sys_call(SYS_unlinkat, dir, sys_arg(from), 0);
    fd = target_open(report_target, kFlags, temporary);
  }
  if (fd < 0) return static_cast<int>(-fd);
  int err = 0;
  write_all(static_cast<int>(fd), text.data(), text.size(), kSecond, &err);
  sys_call(SYS_close, fd);
  if (err == 0) err = static_cast<int>(-sys_call(SYS_renameat, dir, sys_arg(from), dir, sys_arg(to)));
  if (err != 0) sys_call(SYS_unlinkat, dir, sys_arg(from), 0);
  return err;
}

void write_rendered(const Text& text, bool final_one) {
  if (report_target.to_stderr) {
    write_stderr(text.data(), text.size(), kSecond);
    return;
  }
  bool special = is_special();
  if (special && !final_one) return;
  int err = special ? write_special(text) : replace(text);
  if (err == 0) {
    failed_said.store(false, std::memory_order_relaxed);
  } else if (!failed_said.exchange(true, std::memory_order_relaxed)) {
    log_line(kLogError, "VTHR_REPORT=%.300s cannot be written (%s)", report_target.path,
             strerrordesc_np(err));
  }
}

}  // namespace

LibcCoverage libc_coverage;

void put_libc_coverage(Json* j) {
  j->object("libc_entry");
  j->number("redirected", static_cast<uint64_t>(libc_coverage.redirected));
  j->number("of", static_cast<uint64_t>(libc_coverage.wanted));
  if (libc_coverage.why != nullptr) j->string("why", libc_coverage.why);
  j->end_object();
}

void report_start(int64_t now) {
  started = now;
  peak.store(0, std::memory_order_relaxed);
  uint64_t salt = static_cast<uint64_t>(now) ^ reinterpret_cast<uint64_t>(&salt);
  snprintf(temporary, sizeof temporary, ".vthr-report-%d-%08x.tmp", log_pid(),
           static_cast<uint32_t>(salt >> 4));
}

bool report_wanted() { return !report_target.off; }
bool report_periodic() { return report_wanted() && !report_target.to_stderr; }
void report_after_fork() {
  failed_said.store(false, std::memory_order_relaxed);
  writing.store(false, std::memory_order_relaxed);
}

void report_render(Text* out, bool json, const char* prefix, bool final_one) {
  Facts facts;
  if (json) {
    put_json(out, facts, final_one);
  } else {
    put_text(out, facts, prefix, final_one);
  }
}

void report_write(bool final_one) {
  if (!report_wanted() || (report_target.to_stderr && !final_one)) return;
  // At the end another thread may come here while the diagnostics thread waits for a disk.
  if (writing.exchange(true, std::memory_order_acquire)) return;
  bool whole = false;
  for (size_t room = kFirstRoom; room <= kMostRoom && !whole; room *= 4) {
    auto* memory = static_cast<char*>(sys_map(room));
    if (memory == nullptr) break;
    Text text(memory, room);
    report_render(&text, report_target.json, report_target.to_stderr ? kPrefix : "", final_one);
    whole = !text.cut();
    if (whole) write_rendered(text, final_one);
    sys_unmap(memory, room);
  }
  writing.store(false, std::memory_order_release);
}

}  // namespace vthr
