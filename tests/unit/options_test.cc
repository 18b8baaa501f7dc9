// The option table: every type parsed, every error naming variable, value and what is allowed.
#include "runtime/options.h"

#include <string.h>

#include <algorithm>
#include <set>
#include <string>

#include "tests/unit/support.h"

namespace vthr {
namespace {

using std::string;

// Parses `lines` from scratch, in a child: the parser runs once in a process. Prints what `show` says there.
string parsed(std::vector<const char*> lines, string (*show)()) {
  int fds[2];
  if (pipe(fds) != 0) return "pipe";
  lines.push_back(nullptr);
  in_child([&] {
    options_parse(const_cast<char**>(lines.data()));
    string s = show();
    return write(fds[1], s.data(), s.size()) == static_cast<ssize_t>(s.size()) ? 0 : 1;
  });
  close(fds[1]);
  char text[4096];
  ssize_t n = read(fds[0], text, sizeof text);
  close(fds[0]);
  return n < 0 ? "read" : string(text, static_cast<size_t>(n));
}

string errors() {
  string s;
  for (size_t i = 0; options_error(i) != nullptr; i++) s += string(options_error(i)) + "\n";
  return s;
}

string errors_of(const char* line) { return parsed({line}, errors); }

void expect_error(const char* line, std::vector<const char*> parts) {
  string e = errors_of(line);
  EXPECT_EQ(std::count(e.begin(), e.end(), '\n'), 1) << line << " -> " << e;
  EXPECT_EQ(e.rfind("vthr: ", 0), string::npos) << "the prefix comes with the printing";
  for (const char* p : parts) EXPECT_NE(e.find(p), string::npos) << line << " -> " << e << " without " << p;
}

template <class T>
string text(T v) {
  return std::to_string(v);
}

TEST(Options, Defaults) {
  EXPECT_EQ(errors(), "");
  EXPECT_EQ(options.carriers, 0) << "by the CPUs";
  EXPECT_EQ(options.max_workers, 256);
  EXPECT_EQ(options.max_concurrency, 0);
  EXPECT_EQ(options.admission, kAdmitQueue);
  EXPECT_EQ(options.stack_size, 0u);
  EXPECT_EQ(options.pin, kPinReport);
  EXPECT_EQ(options.pin_threshold, 20 * kMilli);
  EXPECT_STREQ(options.report, "off");
  EXPECT_STREQ(options.log, "stderr");
  EXPECT_EQ(options.log_format, kLogText);
  EXPECT_EQ(options.log_level, kLogWarn);
  EXPECT_EQ(options.stats, 0);
  EXPECT_EQ(options.disable, 0);
}

TEST(Options, Counts) {
  auto show = [] { return text(options.carriers) + " " + text(options.max_workers) + errors(); };
  EXPECT_EQ(parsed({"VTHR_CARRIERS=3", "VTHR_MAX_WORKERS=1000"}, show), "3 1000");
  EXPECT_EQ(parsed({"VTHR_CARRIERS=64"}, show), "64 256");
  for (const char* bad :
       {"VTHR_CARRIERS=0", "VTHR_CARRIERS=65", "VTHR_CARRIERS=", "VTHR_CARRIERS=two", "VTHR_CARRIERS=-1",
        "VTHR_CARRIERS=2x", "VTHR_CARRIERS= 2", "VTHR_CARRIERS=+2", "VTHR_CARRIERS=2.5",
        "VTHR_CARRIERS=99999999999999999999", "VTHR_CARRIERS=4294967297"}) {
    expect_error(bad, {bad, "1 to 64", "default"});
    EXPECT_EQ(parsed({bad}, [] { return text(options.carriers); }), "0");
  }
}

TEST(Options, Sizes) {
  auto show = [] { return text(options.stack_size) + errors(); };
  EXPECT_EQ(parsed({"VTHR_STACK_SIZE=65536"}, show), "65536");
  EXPECT_EQ(parsed({"VTHR_STACK_SIZE=64k"}, show), "65536");
  EXPECT_EQ(parsed({"VTHR_STACK_SIZE=64K"}, show), "65536");
  EXPECT_EQ(parsed({"VTHR_STACK_SIZE=8m"}, show), "8388608");
  EXPECT_EQ(parsed({"VTHR_STACK_SIZE=1g"}, show), "1073741824");
  for (const char* bad : {"VTHR_STACK_SIZE=", "VTHR_STACK_SIZE=16383", "VTHR_STACK_SIZE=64kb",
                          "VTHR_STACK_SIZE=k", "VTHR_STACK_SIZE=64 k", "VTHR_STACK_SIZE=99999999999g"}) {
    expect_error(bad, {bad, "16384", "k, m or g", "default"});
    EXPECT_EQ(parsed({bad}, [] { return text(options.stack_size); }), "0");
  }
}

TEST(Options, Times) {
  auto show = [] { return text(options.pin_threshold) + " " + text(options.stats) + errors(); };
  EXPECT_EQ(parsed({"VTHR_PIN_THRESHOLD=5us", "VTHR_STATS=1s"}, show), "5000 1000000000");
  EXPECT_EQ(parsed({"VTHR_PIN_THRESHOLD=100ms", "VTHR_STATS=250ms"}, show), "100000000 250000000");
  EXPECT_EQ(parsed({"VTHR_STATS=off"}, show), "20000000 0") << "off is the default's name";
  for (const char* bad : {"VTHR_PIN_THRESHOLD=20", "VTHR_PIN_THRESHOLD=0ms", "VTHR_PIN_THRESHOLD=",
                          "VTHR_PIN_THRESHOLD=ms", "VTHR_PIN_THRESHOLD=1m", "VTHR_PIN_THRESHOLD=-1ms",
                          "VTHR_PIN_THRESHOLD=off", "VTHR_PIN_THRESHOLD=99999999999999s"}) {
    expect_error(bad, {bad, "us, ms or s", "20ms"});
    EXPECT_EQ(parsed({bad}, [] { return text(options.pin_threshold); }), "20000000");
  }
  expect_error("VTHR_STATS=0s", {"VTHR_STATS=0s", "us, ms or s", "off"});
}

TEST(Options, Choices) {
  auto show = [] { return text(options.admission) + text(options.pin) + text(options.log_level) + errors(); };
  EXPECT_EQ(parsed({"VTHR_ADMISSION=block", "VTHR_PIN=off", "VTHR_LOG_LEVEL=info"}, show), "102");
  EXPECT_EQ(parsed({"VTHR_ADMISSION=reject", "VTHR_PIN=abort", "VTHR_LOG_LEVEL=error"}, show), "220");
  EXPECT_EQ(parsed({"VTHR_DISABLE=1", "VTHR_LOG_FORMAT=json"},
                   [] { return text(options.disable) + text(options.log_format); }),
            "11");
  for (const char* bad : {"VTHR_ADMISSION=", "VTHR_ADMISSION=que", "VTHR_ADMISSION=queues",
                          "VTHR_ADMISSION=Queue", "VTHR_ADMISSION=queue|block", "VTHR_ADMISSION=1"}) {
    expect_error(bad, {bad, "queue|block|reject", "default queue"});
  }
  expect_error("VTHR_PIN=yes", {"VTHR_PIN=yes", "off|report|abort", "default report"});
  expect_error("VTHR_DISABLE=true", {"VTHR_DISABLE=true", "0|1", "default 0"});
}

TEST(Options, Paths) {
  EXPECT_EQ(parsed({"VTHR_LOG=/tmp/a b.%p", "VTHR_REPORT=r.json"},
                   [] { return string(options.log) + " " + options.report + errors(); }),
            "/tmp/a b.%p r.json");
  expect_error("VTHR_LOG=", {"VTHR_LOG=", "file names", "stderr"});
  string longest = "VTHR_REPORT=" + string(kPathMax, 'x');
  expect_error(longest.c_str(), {"VTHR_REPORT=xxx", "file names", "off"});
  static string fits;
  fits = string(900, 'y');
  string line = "VTHR_REPORT=" + fits;
  EXPECT_EQ(
      parsed({line.c_str()}, [] { return string(options.report == fits ? "kept" : "lost") + errors(); }),
      "kept");
}

TEST(Options, UnknownNames) {
  expect_error("VTHR_CARRIER=3", {"VTHR_CARRIER", "unknown", "3", "vthr options"});
  expect_error("VTHR_=", {"VTHR_", "unknown"});
  expect_error("VTHR_CARRIERS2=1", {"VTHR_CARRIERS2", "unknown"});
  expect_error("VTHR_carriers=1", {"VTHR_carriers", "unknown"});
  expect_error(("VTHR_" + string(500, 'A') + "=" + string(500, 'b')).c_str(), {"VTHR_AAA", "unknown", "bbb"});
  EXPECT_EQ(errors_of("PATH=VTHR_X=1"), "") << "not ours";
  EXPECT_EQ(errors_of("XVTHR_X=1"), "");
  EXPECT_EQ(errors_of("VTHRX=1"), "");
}

TEST(Options, ManyErrorsAreKeptInOrderAndOthersStillParsed) {
  string e = parsed({"VTHR_A=1", "VTHR_CARRIERS=x", "VTHR_MAX_WORKERS=7", "VTHR_B=2"},
                    [] { return errors() + text(options.max_workers); });
  size_t a = e.find("VTHR_A"), c = e.find("VTHR_CARRIERS=x"), b = e.find("VTHR_B");
  EXPECT_LT(a, c);
  EXPECT_LT(c, b);
  EXPECT_EQ(e.back(), '7');
  // more than there is room for: neither lost memory nor a crash, and what follows is still read
  static std::vector<string> many;
  std::vector<const char*> lines;
  for (int i = 0; i < 100; i++) many.push_back("VTHR_X" + text(i) + "=" + string(300, 'v'));
  for (auto& m : many) lines.push_back(m.c_str());
  lines.push_back("VTHR_CARRIERS=5");
  string all = parsed(lines, [] { return text(options.carriers) + "\n" + errors(); });
  EXPECT_EQ(all.rfind("5\n", 0), 0u);
  EXPECT_NE(all.find("VTHR_X0:"), string::npos);
  EXPECT_EQ(parsed({}, errors), "");
}

// One line each whatever the value holds: they go to the program's stderr.
TEST(Options, ErrorsAreOneLine) {
  for (const char* bad : {"VTHR_PIN=a\nb", "VTHR_CARRIERS=1\n2", "VTHR_NEW\nLINE=1", "VTHR_STATS=\x1b[31m"}) {
    string e = errors_of(bad);
    EXPECT_EQ(std::count(e.begin(), e.end(), '\n'), 1) << e;
    EXPECT_EQ(e.find('\x1b'), string::npos);
  }
}

std::vector<string> table_lines;
void put(const char* line) { table_lines.push_back(line); }

TEST(Options, TablesListEveryRow) {
  std::vector<const char*> names;
#define OPTION_COUNT(field, name, def, min, max, help) names.push_back(name);
#define OPTION_SIZE(field, name, text, help) names.push_back(name);
#define OPTION_TIME(field, name, def, text, help) names.push_back(name);
#define OPTION_ENUM(field, name, def, help, values) names.push_back(name);
#define OPTION_PATH(field, name, text, help) names.push_back(name);
#include "runtime/options.def"
#undef OPTION_COUNT
#undef OPTION_SIZE
#undef OPTION_TIME
#undef OPTION_ENUM
#undef OPTION_PATH
  EXPECT_EQ(std::set<string>(names.begin(), names.end()).size(), names.size()) << "a name twice";
  for (bool markdown : {false, true}) {
    table_lines.clear();
    options_table(markdown, put);
    size_t head = markdown ? 2 : 0;
    ASSERT_EQ(table_lines.size(), names.size() + head);
    for (size_t i = 0; i < names.size(); i++) {
      const string& line = table_lines[i + head];
      EXPECT_NE(line.find(markdown ? "`" + string(names[i]) + "`" : names[i]), string::npos) << line;
      EXPECT_LT(line.size(), 400u);
      EXPECT_EQ(line.find('\n'), string::npos);
      if (!markdown) continue;
      // three columns: bars inside a cell are escaped
      size_t bars = 0;
      for (size_t k = 0; k < line.size(); k++) bars += line[k] == '|' && (k == 0 || line[k - 1] != '\\');
      EXPECT_EQ(bars, 4u) << line;
      EXPECT_EQ(line.back(), '|') << "cut off: " << line;
    }
  }
  string all;
  for (auto& l : table_lines) all += l + "\n";
  for (const char* shown :
       {"`CPUs`", "`256`", "`queue`", "`20ms`", "`off`", "`stderr`", "`warn`", "queue\\|block\\|reject"}) {
    EXPECT_NE(all.find(shown), string::npos) << shown;
  }
}

}  // namespace
}  // namespace vthr
