// C++ thread_local objects: constructed on first use, destroyed in reverse order, before key destructors.

#include "check.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

static std::atomic<int> alive{0}, made{0};
static thread_local std::string* journal;  // of the thread that runs now

struct Tracer {
  explicit Tracer(char letter) : letter_(letter) {
    alive++;
    made++;
    if (journal) *journal += letter_;
  }
  ~Tracer() {
    pause_ms(1);  // destructors may block
    if (journal) *journal += static_cast<char>(letter_ - 'A' + 'a');
    alive--;
  }
  int use() { return ++uses_; }
  char letter_;
  int uses_ = 0;
};

static thread_local Tracer first('A'), second('B');
static int use_third() {
  static thread_local Tracer third('C');
  return third.use();
}

static pthread_key_t key;
static void key_gone(void* value) { *static_cast<std::string*>(value) += '.'; }

static void* order(void* argument) {
  auto* text = static_cast<std::string*>(argument);
  journal = text;
  pthread_setspecific(key, text);
  int uses = use_third();
  CHECK(uses == 1, "first use of a thread_local counts %d", uses);
  pause_ms(1);
  uses = first.use() + second.use();
  CHECK(uses == 2, "fresh objects count %d", uses);
  pause_ms(1);
  CHECK(use_third() == 2, "the object is another one after a sleep");
  return nullptr;
}

static void check_order(const std::string& text) {
  // Objects of namespace scope are made together at the first use of one of them.
  CHECK(text == "CABbac.", "constructions and destructions in the order '%s'", text.c_str());
}

// A thread_local first used by the destructor of another one.
struct Late {
  ~Late() {
    if (journal) *journal += 'l';
  }
  int touched = 0;
};
struct Early {
  ~Early() {
    static thread_local Late late;
    late.touched++;
    if (journal) *journal += 'e';
  }
  int touched = 0;
};
static void* from_destructor(void* argument) {
  static thread_local Early early;
  journal = static_cast<std::string*>(argument);
  early.touched++;
  return nullptr;
}

// Containers with heap memory: what a leak checker or a double free would notice.
static thread_local std::vector<std::unique_ptr<int>> bag;
static long fill_bag(int n) {
  if (!bag.empty()) return -1;
  for (int i = 0; i < n; i++) bag.push_back(std::make_unique<int>(i));
  std::this_thread::yield();
  long sum = 0;
  for (auto& p : bag) sum += *p;
  return sum;
}

static void* exits(void* argument) {
  journal = static_cast<std::string*>(argument);
  first.use();
  pthread_exit(nullptr);
}

int main() {
  check_begin();
  NEED(pthread_key_create(&key, key_gone) == 0);
  STAGE("order");
  for (int round = 0; round < 20; round++) {
    std::string text[8];
    pthread_t t[8];
    for (int i = 0; i < 8; i++) t[i] = start_thread(order, &text[i]);
    for (auto& id : t) join_thread(id);
    for (auto& s : text) check_order(s);
  }
  CHECK(made == 20 * 8 * 3, "%d objects made", made.load());
  CHECK(alive == 0, "%d objects left", alive.load());
  STAGE("object made by a destructor");
  std::string text;
  join_thread(start_thread(from_destructor, &text));
  CHECK(text == "el", "destructions in the order '%s'", text.c_str());
  STAGE("pthread_exit");
  text.clear();
  join_thread(start_thread(exits, &text));
  CHECK(text == "ABba", "constructions and destructions in the order '%s'", text.c_str());
  STAGE("containers");
  for (int round = 0; round < 30; round++) {
    std::vector<std::thread> pool;
    std::atomic<long> sum{0};
    for (int i = 0; i < 16; i++) pool.emplace_back([&] { sum += fill_bag(100); });
    for (auto& t : pool) t.join();
    CHECK(sum == 16 * 4950, "sum %ld", sum.load());
  }
  CHECK(alive == 0, "%d objects left", alive.load());
  return check_end();
}
