// The command line tool: what the library understands, and reports for people.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include <rapidjson/document.h>
#include <rapidjson/error/en.h>
#include <rapidjson/istreamwrapper.h>

#include <fstream>

#include "diag/diag.h"
#include "runtime/options.h"

namespace {

using rapidjson::Value;

constexpr const char* kUsage =
    "usage: vthr options [--markdown]   the VTHR_* variables, their defaults and meanings\n"
    "       vthr report FILE            a report that VTHR_REPORT=FILE.json wrote, as text\n"
    "       vthr --version | --help\n"
    "\n"
    "To run a program on fibers: LD_PRELOAD=/path/to/libvthr.so program\n";

int usage_error(const char* what, const char* argument) {
  fprintf(stderr, "vthr: %s%s%s\n%s", what, argument != nullptr ? " " : "",
          argument != nullptr ? argument : "", kUsage);
  return 2;
}

int finish() {
  if (fflush(stdout) != 0 || ferror(stdout)) {
    perror("vthr: standard output");
    return 1;
  }
  return 0;
}

// Members that are missing or of another type count as 0 and "".
const Value& member(const Value& v, const char* name) {
  static const Value none;
  if (!v.IsObject()) return none;
  auto it = v.FindMember(name);
  return it == v.MemberEnd() ? none : it->value;
}
double number(const Value& v, const char* name) {
  const Value& m = member(v, name);
  return m.IsNumber() ? m.GetDouble() : 0;
}
std::string text(const Value& v, const char* name) {
  const Value& m = member(v, name);
  return m.IsString() ? m.GetString() : "";
}

void print_frames(const Value& pin) {
  const Value& frames = member(pin, "frames");
  if (!frames.IsArray()) return;
  int i = 0;
  for (const Value& f : frames.GetArray()) {
    std::string module = text(f, "module"), function = text(f, "function");
    if (function.empty()) function = module.empty() ? "?" : module + "+" + text(f, "offset");
    printf("%s#%d %s %-24s %s\n", member(f, "program").IsTrue() ? " >  " : "    ", i++, text(f, "pc").c_str(),
           function.c_str(), module.empty() ? "[anonymous]" : module.c_str());
  }
}

void print_report(const Value& r) {
  const Value &fibers = member(r, "fibers"), &workers = member(r, "workers"),
              &calls = member(r, "blocking_calls"), &seen = member(r, "pins_seen"),
              &unseen = member(r, "unseen_blocks"), &gaps = member(r, "known_gaps");
  printf("%s, pid %.0f, %s, after %.1f s%s\n", text(r, "program").c_str(), number(r, "pid"),
         text(r, "wall").c_str(), number(r, "uptime_s"), member(r, "final").IsTrue() ? ", at the end" : "");
  printf("engine %s, %.0f carriers, %.0f workers (%.0f made)\n", text(r, "engine").c_str(),
         number(r, "carriers"), number(workers, "now"), number(workers, "made"));
  printf(
      "fibers: %.0f made, %.0f alive (most seen %.0f), %.0f running, %.0f runnable, %.0f parked, %.0f "
      "queued\n",
      number(fibers, "made"), number(fibers, "alive"), number(r, "fibers_most_seen"),
      number(fibers, "running"), number(fibers, "runnable"), number(fibers, "parked"),
      number(fibers, "queued"));
  const Value& parked = member(r, "parked_by");
  if (parked.IsObject() && parked.MemberCount() > 0) {
    printf("parked by:");
    for (const auto& m : parked.GetObject())
      printf(" %s=%.0f", m.name.GetString(), number(parked, m.name.GetString()));
    printf("\n");
  }
  printf("blocking calls: %.0f parked, %.0f ran natively (%.1f %% parked)\n", number(calls, "parked"),
         number(calls, "native"), number(calls, "parked_percent"));
  printf("pins seen: %.0f, %.1f ms in total, longest %.1f ms\n", number(seen, "count"),
         number(seen, "total_ms"), number(seen, "longest_ms"));
  printf("blocks that nobody saw begin: %s\n",
         unseen.IsNumber() ? std::to_string(unseen.GetInt64()).c_str() : "unknown, /proc was not readable");
  const Value& libc = member(r, "libc_entry");
  if (libc.IsObject() && text(libc, "why").empty())
    printf("calls from inside libc: %.0f of %.0f functions redirected\n", number(libc, "redirected"),
           number(libc, "of"));
  if (libc.IsObject() && !text(libc, "why").empty())
    printf("calls from inside libc: not covered, they pin (%s)\n", text(libc, "why").c_str());
  printf("known gaps: %.0f pins without a stack, %.0f events dropped, %.0f lines lost\n",
         number(gaps, "pins_without_stack"), number(gaps, "events_dropped"), number(gaps, "lines_lost"));
  printf("%s\n", text(r, "note").c_str());
  const Value& pins = member(r, "pins");
  if (!pins.IsArray()) return;
  for (const Value& p : pins.GetArray()) {
    printf("%.0f x, %.1f ms in total, longest %.1f ms: reason=%s", number(p, "count"), number(p, "total_ms"),
           number(p, "longest_ms"), text(p, "reason").c_str());
    for (const char* key : {"call", "how", "hook"}) {
      if (!text(p, key).empty()) printf("  %s=%s", key, text(p, key).c_str());
    }
    printf("  stack=%s\n", text(p, "stack").c_str());
    print_frames(p);
  }
}

int show_report(const char* path) {
  std::ifstream file(path);
  if (!file) {
    fprintf(stderr, "vthr: %s: %s\n", path, strerror(errno));
    return 1;
  }
  rapidjson::IStreamWrapper stream(file);
  rapidjson::Document document;
  document.ParseStream(stream);
  if (document.HasParseError()) {
    fprintf(stderr, "vthr: %s: no JSON report: %s, at byte %zu\n", path,
            rapidjson::GetParseError_En(document.GetParseError()), document.GetErrorOffset());
    return 1;
  }
  if (text(document, "event") != "report" || number(document, "schema") != 1) {
    fprintf(stderr, "vthr: %s: not a report of schema 1\n", path);
    return 1;
  }
  print_report(document);
  return finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return usage_error("a command is missing", nullptr);
  const char* command = argv[1];
  if (strcmp(command, "--version") == 0 && argc == 2) {
    printf("vthr %s\n", VTHR_VERSION);
    return finish();
  }
  if (strcmp(command, "--help") == 0 && argc == 2) {
    printf("%s", kUsage);
    return finish();
  }
  if (strcmp(command, "options") == 0) {
    bool markdown = argc == 3 && strcmp(argv[2], "--markdown") == 0;
    if (argc > 2 && !markdown) return usage_error("options: unexpected", argv[2]);
    vthr::options_table(markdown, [](const char* line) { puts(line); });
    return finish();
  }
  if (strcmp(command, "report") == 0) {
    if (argc != 3) return usage_error("report: one file name is needed", nullptr);
    return show_report(argv[2]);
  }
  if (strcmp(command, "--version") == 0 || strcmp(command, "--help") == 0)
    return usage_error("unexpected", argv[2]);
  return usage_error("unknown command", command);
}
