#include "diag/stats.h"

#include "diag/json.h"

namespace vthr {

namespace {

int64_t last_at;
uint64_t last_switches, last_parks, last_handoffs;

uint64_t read(const std::atomic<uint64_t>& c) { return c.load(std::memory_order_relaxed); }

// Reasons with fibers, the most frequent first; returns their number.
size_t sorted(const Census& c, size_t order[kReasons]) {
  size_t n = 0;
  for (size_t i = 0; i < kReasons; i++) {
    if (c.by_reason[i] == 0) continue;
    size_t at = n++;
    for (; at > 0 && c.by_reason[order[at - 1]] < c.by_reason[i]; at--) order[at] = order[at - 1];
    order[at] = i;
  }
  return n;
}

}  // namespace

Census census_take(int64_t now) {
  Census c;
  c.made = fiber_total_count();
  fiber_each(
      [](Fiber* f, void* arg) {
        auto* to = static_cast<Census*>(arg);
        uint32_t life = f->life.load(std::memory_order_relaxed);
        if ((life != kJoinable && life != kDetached) || !f->park.is_parked()) return;
        to->parked++;
        to->by_reason[static_cast<size_t>(f->reason.load(std::memory_order_relaxed)) % kReasons]++;
      },
      &c);
  c.alive = fiber_live_count();
  c.queued = admission_queued();
  c.oldest_queued = admission_oldest(now);
  c.workers = worker_count();
  for (Worker* w = all_workers(); w != nullptr; w = w->all_next) {
    uint32_t state = w->state.load(std::memory_order_acquire);
    if (state == kRetired || state == kSpare) continue;
    if (w->running.load(std::memory_order_relaxed) == nullptr) continue;
    c.running++;
    // sysmon's own field: a stale value does no harm.
    if (__atomic_load_n(&w->watch.pinned, __ATOMIC_RELAXED)) c.pinned++;
  }
  for (int i = 0; i < carrier_count; i++) c.in_flight += carriers[i]->engine->in_flight();
  uint64_t others = c.parked + c.running + c.queued;
  c.runnable = c.alive > others ? c.alive - others : 0;
  return c;
}

void put_reasons(Text* out, const Census& c, const char* between) {
  size_t order[kReasons], n = sorted(c, order);
  for (size_t i = 0; i < n; i++) {
    out->format("%s%s=%llu", i > 0 ? between : "", reason_name(static_cast<Reason>(order[i])),
                static_cast<unsigned long long>(c.by_reason[order[i]]));
  }
}

void put_census(Json* j, const Census& c) {
  j->object("fibers");
  j->number("made", c.made);
  j->number("alive", c.alive);
  j->number("running", c.running);
  j->number("runnable", c.runnable);
  j->number("parked", c.parked);
  j->number("pinned", c.pinned);
  j->number("queued", c.queued);
  j->ms("oldest_queued_ms", static_cast<uint64_t>(c.oldest_queued));
  j->end_object();
  j->object("parked_by");
  size_t order[kReasons], n = sorted(c, order);
  for (size_t i = 0; i < n; i++) j->number(reason_name(static_cast<Reason>(order[i])), c.by_reason[order[i]]);
  j->end_object();
  j->number("in_flight", c.in_flight);
}

void stats_start(int64_t now) {
  last_at = now;
  last_switches = read(counters.switches);
  last_parks = read(counters.parks);
  last_handoffs = read(counters.handoffs);
}

void stats_print(int64_t now) {
  Census c = census_take(now);
  uint64_t switches = read(counters.switches), parks = read(counters.parks),
           handoffs = read(counters.handoffs);
  int64_t ns = now > last_at ? now - last_at : 1;
  auto rate = [ns](uint64_t n) -> unsigned long long {
    return n * uint64_t{kSecond} / static_cast<uint64_t>(ns);
  };
  char room[2048];
  Text out(room, sizeof room);
  out.put(kPrefix);
  if (log_as_json()) {
    Json j(&out);
    json_head(&j, "stats", wall_ns(), now);
    put_census(&j, c);
    j.number("workers", static_cast<uint64_t>(c.workers));
    j.real("seconds", static_cast<double>(ns) / 1e9);
    j.number("switches", switches - last_switches);
    j.number("parks", parks - last_parks);
    j.number("handoffs", handoffs - last_handoffs);
    j.end_object();
  } else {
    auto u = [](uint64_t n) { return static_cast<unsigned long long>(n); };
    out.format("stats fibers=%llu running=%llu runnable=%llu parked=%llu", u(c.alive), u(c.running),
               u(c.runnable), u(c.parked));
    if (c.parked > 0) {
      out.put(" (");
      put_reasons(&out, c, ", ");
      out.put(')');
    }
    out.format(" queued=%llu", u(c.queued));
    if (c.queued > 0) {
      out.put(" oldest=");
      put_tenths(&out, static_cast<uint64_t>(c.oldest_queued / (100 * kMilli)));
      out.put('s');
    }
    out.format(" pinned=%llu in-flight=%llu workers=%d switches/s=%llu parks/s=%llu hand-offs/s=%llu",
               u(c.pinned), u(c.in_flight), c.workers, rate(switches - last_switches),
               rate(parks - last_parks), rate(handoffs - last_handoffs));
  }
  out.end_line();
  log_event(out.data(), out.size());
  last_at = now;
  last_switches = switches;
  last_parks = parks;
  last_handoffs = handoffs;
}

}  // namespace vthr
