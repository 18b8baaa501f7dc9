// Events told apart and printed, file names, the thread, option errors. Without the runtime: records are made here.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include <rapidjson/document.h>

#include "diag/diag.h"
#include "diag/pin.h"
#include "diag/report.h"
#include "tests/unit/blocked.h"

using namespace vthr;

// ---- text ----

TEST(Text, NamesCannotForgeLines) {
  char room[100];
  Text t(room, sizeof room);
  t.put_name("a\nb\"c\\\x01 \xc3\xa9 \xff");
  EXPECT_EQ(std::string(t.data(), t.size()), "a\\x0ab\\x22c\\x5c\\x01 \xc3\xa9 \\xff");
}

TEST(Text, IsCutAtItsEnd) {
  char room[8];
  Text t(room, sizeof room);
  t.format("%s", "123456789");
  EXPECT_TRUE(t.cut());
  t.end_line();
  EXPECT_EQ(std::string(t.data(), t.size()), "1234567\n");
}

TEST(Text, KnowsUtf8) {
  EXPECT_EQ(utf8_length("a"), 1u);
  EXPECT_EQ(utf8_length("\xe2\x82\xac"), 3u);
  EXPECT_EQ(utf8_length("\xf0\x9f\x98\x80"), 4u);
  EXPECT_EQ(utf8_length("\xc0\x80"), 0u);
  EXPECT_EQ(utf8_length("\xed\xa0\x80"), 0u);  // a surrogate
  EXPECT_EQ(utf8_length("\xe2\x82"), 0u);
  EXPECT_EQ(utf8_length(""), 0u);
}

TEST(Text, Utc) {
  char out[40];
  format_utc(1714567890 * kSecond + 123 * kMilli, out);
  EXPECT_STREQ(out, "2024-05-01T12:51:30.123Z");
  format_utc(951782400 * kSecond, out);
  EXPECT_STREQ(out, "2000-02-29T00:00:00.000Z");
}

// ---- events ----

namespace {

// A process of its own for the log: options and file names as they would be at start.
class Events : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(folder_), nullptr);
    options = Options();
    set(options.log, folder_ + std::string("/log"));
  }
  void TearDown() override {
    std::string command = std::string("rm -rf ") + folder_;
    EXPECT_EQ(system(command.c_str()), 0);
    options = Options();
  }
  static void set(char* option, const std::string& value) { snprintf(option, kPathMax, "%s", value.c_str()); }
  void start() {
    diag_after_fork();
    files_init();
    files_started(getpid(), false);
    log_started(getpid());
    log_set_thread(gettid());
    report_start(now_ns());
  }
  std::string path(const char* name) { return std::string(folder_) + "/" + name; }
  std::string content(const char* name) {
    std::ifstream file(path(name));
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
  }

  char folder_[32] = "/tmp/vthr-diag-test-XXXXXX";
};

rapidjson::Document parsed(const std::string& line) {
  rapidjson::Document d;
  d.Parse(line.c_str());
  EXPECT_FALSE(d.HasParseError()) << line;
  return d;
}

}  // namespace

TEST_F(Events, PinAsText) {
  start();
  PinRecord* r = record_of([] { outer_function(3); }, SYS_futex);
  r->call = SYS_read;  // as if: with a descriptor
  r->args[0] = 7;
  pin_event(*r, now_ns());
  std::string text = content("log");
  std::regex head(
      "vthr: pin 213 ms  reason=native-frame  call=read  how=inline-syscall  fd=7  fiber=42 \"conn\"  "
      "worker=3  "
      "handed-off=yes  stack=#[0-9a-f]{8}\n"
      " >  #0 0x[0-9a-f]+ \\(anonymous namespace\\)::leaf_with_inline_call\\(\\) diag_test\n"
      "    #1 0x[0-9a-f]+ \\(anonymous namespace\\)::middle_function\\(int\\) diag_test\n");
  EXPECT_TRUE(std::regex_search(text, head, std::regex_constants::match_continuous)) << text;
}

TEST_F(Events, SameStackIsPrintedOnceAndCounted) {
  start();
  PinRecord* r = record_of([] { outer_function(3); }, SYS_futex);
  int64_t now = now_ns();
  for (int i = 0; i < 18; i++) pin_event(*r, now);
  EXPECT_EQ(pin_entry_count(), 1u);
  EXPECT_EQ(pin_entry(0).count.load(), 18u);
  EXPECT_EQ(pin_next_flush(), now + 10 * kSecond);
  pin_flush(now + 9 * kSecond, false);
  std::string before = content("log");
  pin_flush(now + 10 * kSecond, false);
  std::string more = content("log").substr(before.size());
  std::regex line(
      "vthr: pin x17 more in 10 s, total 3621 ms, same stack as above \\(#[0-9a-f]{8} "
      ".*leaf_with_inline_call.*\\)\n");
  EXPECT_TRUE(std::regex_match(more, line)) << more;
  EXPECT_EQ(pin_next_flush(), kNever);
  // Another stack, another event.
  pin_event(*record_of(caller_with_frame_pointer, SYS_futex), now);
  EXPECT_EQ(pin_entry_count(), 2u);
  EXPECT_NE(content("log").find("foreign-lock"), std::string::npos);
}

TEST_F(Events, PinAsJson) {
  options.log_format = kLogJson;
  start();
  PinRecord* r = record_of([] { outer_function(3); }, SYS_futex);
  memcpy(r->fiber_name, "a\"b\n\xff", 6);
  pin_event(*r, now_ns());
  std::string text = content("log");
  ASSERT_EQ(text.find('\n'), text.size() - 1) << text;
  auto d = parsed(text);
  EXPECT_EQ(d["schema"].GetInt(), 1);
  EXPECT_STREQ(d["event"].GetString(), "pin");
  EXPECT_EQ(d["pid"].GetInt(), getpid());
  EXPECT_STREQ(d["wall"].GetString(), "2024-05-01T12:51:30.123Z");
  EXPECT_EQ(d["mono_ns"].GetInt64(), 1000 * kSecond);
  EXPECT_STREQ(d["reason"].GetString(), "foreign-lock");
  EXPECT_STREQ(d["call"].GetString(), "futex");
  EXPECT_DOUBLE_EQ(d["ms"].GetDouble(), 213);
  EXPECT_STREQ(d["name"].GetString(), "a\"b\n\xef\xbf\xbd");
  EXPECT_TRUE(d["handed_off"].GetBool());
  ASSERT_GE(d["frames"].Size(), 3u);
  EXPECT_STREQ(d["frames"][0]["module"].GetString(), "diag_test");
  EXPECT_TRUE(d["frames"][0]["program"].GetBool());
}

TEST_F(Events, WithoutAStack) {
  start();
  PinRecord r;
  r.hook = "write";
  r.ended = 25 * kMilli;
  pin_event(r, now_ns());
  EXPECT_EQ(content("log"),
            "vthr: pin 25 ms  reason=file-io  call=write  fiber=0  worker=0  handed-off=no  hook=write  "
            "stack=none\n");
}

TEST_F(Events, ALogThatCannotBeWritten) {
  set(options.log, path("no/such/folder"));
  int saved = dup(2), end[2];
  ASSERT_EQ(pipe(end), 0);
  dup2(end[1], 2);
  start();
  log_line(kLogWarn, "one");
  log_line(kLogWarn, "two");
  dup2(saved, 2);
  close(end[1]);
  char text[4096];
  ssize_t n = read(end[0], text, sizeof text);
  ASSERT_GT(n, 0);
  EXPECT_EQ(std::string(text, static_cast<size_t>(n)),
            "vthr: VTHR_LOG=" + path("no/such/folder") +
                " cannot be written (No such file or directory); events go to stderr\n"
                "vthr: one\nvthr: two\n");
  close(end[0]);
  close(saved);
}

TEST_F(Events, Descriptor2ThatIsAnotherFileGetsNothing) {
  set(options.log, "stderr");
  int saved = dup(2), first[2], second[2];
  ASSERT_EQ(pipe(first), 0);
  ASSERT_EQ(pipe2(second, O_NONBLOCK), 0);
  dup2(first[1], 2);
  start();
  log_line(kLogWarn, "to the first");
  dup2(second[1], 2);
  uint64_t lost = log_lost();
  log_line(kLogWarn, "to nobody");
  EXPECT_EQ(log_lost(), lost + 1);
  dup2(first[1], 2);
  log_line(kLogWarn, "again");
  dup2(saved, 2);
  char text[200];
  ssize_t n = read(first[0], text, sizeof text);
  EXPECT_EQ(std::string(text, static_cast<size_t>(n)), "vthr: to the first\nvthr: again\n");
  EXPECT_EQ(read(second[0], text, sizeof text), -1);
  for (int fd : {first[0], first[1], second[0], second[1], saved}) close(fd);
}

TEST_F(Events, WritingToAPipeWithoutReaderRaisesNoSignal) {
  int end[2];
  ASSERT_EQ(pipe(end), 0);
  close(end[0]);
  int err = 0;
  EXPECT_FALSE(write_all(end[1], "x", 1, 0, &err));
  EXPECT_EQ(err, EPIPE);
  close(end[1]);
}

TEST_F(Events, AFullPipeIsNotWaitedForLongerThanAsked) {
  int end[2];
  ASSERT_EQ(pipe2(end, O_NONBLOCK), 0);
  std::string much(1 << 20, 'x');
  EXPECT_GT(write(end[1], much.data(), much.size()), 0);
  int64_t before = now_ns();
  int err = 0;
  EXPECT_FALSE(write_all(end[1], "x", 1, 50 * kMilli, &err));
  EXPECT_EQ(err, EAGAIN);
  EXPECT_LT(now_ns() - before, kSecond);
  close(end[0]);
  close(end[1]);
}

TEST_F(Events, NamesOfFiles) {
  char cwd[4096];
  ASSERT_NE(getcwd(cwd, sizeof cwd), nullptr);
  set(options.log, "logs/%p.log");
  set(options.report, "r%p-%p.json");
  files_init();
  files_started(123, true);
  EXPECT_EQ(log_target.path, std::string(cwd) + "/logs/123.log");
  EXPECT_EQ(report_target.path, std::string(cwd) + "/r123-123.json");
  EXPECT_TRUE(report_target.json);
  set(options.report, "/tmp/report.json");
  files_init();
  files_started(123, false);
  EXPECT_STREQ(report_target.path, "/tmp/report.json");
  files_started(124, true);
  EXPECT_STREQ(report_target.path, "/tmp/report.json.124");
  EXPECT_TRUE(report_target.json);
  set(options.report, "off");
  files_init();
  EXPECT_FALSE(report_wanted());
}

TEST_F(Events, Report) {
  set(options.report, path("report.json"));
  start();
  modules_start();
  PinRecord* r = record_of([] { outer_function(3); }, SYS_futex);
  for (int i = 0; i < 3; i++) pin_event(*r, now_ns());
  report_write(true);
  auto d = parsed(content("report.json"));
  EXPECT_STREQ(d["event"].GetString(), "report");
  EXPECT_TRUE(d["pins_seen"].HasMember("count"));
  EXPECT_TRUE(d["unseen_blocks"].IsNumber() || d["unseen_blocks"].IsNull());
  ASSERT_EQ(d["pins"].Size(), 1u);
  EXPECT_EQ(d["pins"][0]["count"].GetInt(), 3);
  EXPECT_DOUBLE_EQ(d["pins"][0]["total_ms"].GetDouble(), 639);
  EXPECT_TRUE(d["final"].GetBool());
  // Nothing beside it is left.
  EXPECT_EQ(system(("test $(ls -A " + std::string(folder_) + " | wc -l) = 2").c_str()), 0);

  char room[65536];
  Text out(room, sizeof room);
  report_render(&out, false, "vthr: ", true);
  std::istringstream lines(std::string(out.data(), out.size()));
  std::string line, all;
  while (std::getline(lines, line)) {
    EXPECT_EQ(line.compare(0, 6, "vthr: "), 0) << line;
    all += line + "\n";
  }
  EXPECT_NE(all.find("3 x, 639 ms in total, longest 213 ms: reason=foreign-lock"), std::string::npos) << all;
  EXPECT_NE(all.find("outer_function"), std::string::npos) << all;
}

TEST_F(Events, AReportNeverReplacesADevice) {
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  set(options.report, path("fifo"));
  start();
  int fd = open(path("fifo").c_str(), O_RDONLY | O_NONBLOCK);
  report_write(false);
  char text[65536];
  EXPECT_LE(read(fd, text, sizeof text), 0);
  report_write(true);
  EXPECT_GT(read(fd, text, sizeof text), 100);
  struct stat st;
  ASSERT_EQ(stat(path("fifo").c_str(), &st), 0);
  EXPECT_TRUE(S_ISFIFO(st.st_mode));
  close(fd);
}

TEST_F(Events, TheLogFollowsAFileThatWasMoved) {
  start();
  log_open();
  log_line(kLogWarn, "one");
  ASSERT_EQ(rename(path("log").c_str(), path("old").c_str()), 0);
  log_line(kLogWarn, "two");
  log_reopen_if_moved();
  log_line(kLogWarn, "three");
  EXPECT_EQ(content("old"), "vthr: one\nvthr: two\n");
  EXPECT_EQ(content("log"), "vthr: three\n");
}

// ---- the whole, with the thread ----

namespace {

int make_thread(void* (*start)(void*), void* arg) {
  pthread_t id;
  int err = pthread_create(&id, nullptr, start, arg);
  if (err == 0) pthread_detach(id);
  return err;
}

// Runs `body` in a forked child, where diagnostics start afresh; its exit code.
template <class F>
int in_child(F body) {
  pid_t pid = fork();
  if (pid == 0) {
    diag_after_fork();
    hooks.make_thread = make_thread;
    body();
    _exit(0);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  return status;
}

}  // namespace

TEST_F(Events, ThreadSaysWhatOthersQueueAndTakesNoDescriptor) {
  options.log_level = kLogInfo;
  set(options.report, path("report"));
  EXPECT_EQ(in_child([&] {
              int before = open("/dev/null", O_RDONLY);
              close(before);
              diag_init();
              diag_started(nullptr, {});
              diag_line(kLogWarn, "%s", "from the program's thread");
              diag_not_supported("pthread_x");
              diag_not_supported("pthread_x");
              usleep(100000);
              int after = open("/dev/null", O_RDONLY);
              if (after != before) _exit(10);
              if (system("test $(ls /proc/$PPID/fd | wc -l) -lt 30") != 0) _exit(11);
              diag_at_exit();
            }),
            0);
  std::string text = content("log");
  std::regex all(
      "vthr: start mode=fibers engine=uring .*max-workers=256.* pid=[0-9]+\n"
      "vthr: from the program's thread\n"
      "vthr: pthread_x is not supported .*\n");
  EXPECT_TRUE(std::regex_match(text, all)) << text;
  // A forked child without %p in the name.
  EXPECT_EQ(content("report"), "");
  EXPECT_EQ(system(("grep -q 'pins seen: 0' " + path("report.*")).c_str()), 0);
}

TEST_F(Events, EndOfTheProcessDoesNotWaitForALockedThread) {
  set(options.report, path("report.%p"));
  int64_t before = now_ns();
  EXPECT_EQ(in_child([&] {
              diag_init();
              hooks.make_thread = [](void* (*)(void*), void*) { return 0; };  // a thread that never comes
              diag_started(nullptr, {});
              diag_at_exit();
              diag_at_exit();
            }),
            0);
  EXPECT_LT(now_ns() - before, 20 * kSecond);
  EXPECT_EQ(system(("grep -q 'at the end' " + path("report.*")).c_str()), 0);
}

TEST_F(Events, DecliningIsOneLineAndNoReport) {
  set(options.report, path("report.%p"));
  EXPECT_EQ(in_child([] {
              diag_init();
              diag_started("io_uring refused: EPERM", {});
              diag_at_exit();
            }),
            0);
  std::regex line("vthr: start mode=native why=\"io_uring refused: EPERM\" pid=[0-9]+\n");
  EXPECT_TRUE(std::regex_match(content("log"), line)) << content("log");
  EXPECT_NE(system(("ls " + path("report.*") + " 2>/dev/null").c_str()), 0);
}

TEST_F(Events, PinAbortEndsTheProgramAfterTheEvent) {
  options.pin = kPinAbort;
  PinRecord* r = record_of([] { outer_function(3); }, SYS_futex);
  int status = in_child([&] {
    diag_init();
    diag_started(nullptr, {});
    PinRecord* p = pin_take();
    char* stack = p->stack;
    *p = *r;
    p->stack = stack;
    memcpy(stack, r->stack, r->stack_bytes);
    pin_post(p);
    sleep(5);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
  std::string text = content("log");
  EXPECT_NE(text.find("vthr: pin 213 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("VTHR_PIN=abort"), std::string::npos) << text;
}

// ---- options ----

TEST(Options, ErrorsNameVariableValueAndWhatIsAllowed) {
  const char* env[] = {"VTHR_CARRIERS=many", "VTHR_PIN=maybe", "VTHR_STATS=5",  "VTHR_COLOUR=red",
                       "VTHR_STACK_SIZE=12", "OTHER=1",        "VTHR_IO=uring", nullptr};
  size_t first = 0;
  while (options_error(first) != nullptr) first++;
  options_parse(const_cast<char**>(env));
  std::string all;
  size_t n = 0;
  for (; options_error(first + n) != nullptr; n++) all += options_error(first + n) + std::string("\n");
  EXPECT_EQ(n, 5u) << all;
  EXPECT_NE(all.find("VTHR_CARRIERS=many: allowed are 1 to 64"), std::string::npos) << all;
  EXPECT_NE(all.find("VTHR_PIN=maybe: allowed are off|report|abort; using the default report"),
            std::string::npos)
      << all;
  EXPECT_NE(all.find("VTHR_STATS=5: allowed are"), std::string::npos) << all;
  EXPECT_NE(all.find("VTHR_COLOUR: unknown variable (value red)"), std::string::npos) << all;
  EXPECT_NE(all.find("VTHR_STACK_SIZE=12"), std::string::npos) << all;
  EXPECT_EQ(options.carriers, 0);
  EXPECT_EQ(options.pin, kPinReport);
  options = Options();
}
