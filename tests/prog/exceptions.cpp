// C++ exceptions belong to their thread: thrown, caught, rethrown and in flight across sleeps, and after unwinding.

#include "check.h"

#include <atomic>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static std::atomic<int> unwound{0};
struct Guard {
  ~Guard() {
    pause_ms(1);  // blocks while an exception is in flight
    if (std::uncaught_exceptions() != 1) unwound += 1000000;
    unwound++;
  }
};

__attribute__((noinline)) static void fall(int depth, int id) {
  Guard guard;
  if (depth == 0) throw std::runtime_error("from " + std::to_string(id));
  fall(depth - 1, id);
}

static void* throws(void* argument) {
  int id = static_cast<int>(reinterpret_cast<long>(argument));
  for (int round = 0; round < 10; round++) {
    std::string want = "from " + std::to_string(id);
    CHECK(std::uncaught_exceptions() == 0, "an exception of somebody else is in flight");
    try {
      try {
        fall(5, id);
        CHECK(false, "nothing thrown");
      } catch (const std::exception& e) {
        pause_ms(1);  // others throw meanwhile
        CHECK(e.what() == want, "caught '%s', want '%s'", e.what(), want.c_str());
        CHECK(std::current_exception() != nullptr, "no current exception in a handler");
        try {
          throw id;  // a second one while the first is handled
        } catch (int v) {
          pause_ms(1);
          CHECK(v == id, "caught %d, want %d", v, id);
        }
        throw;
      }
    } catch (const std::runtime_error& e) {
      CHECK(e.what() == want, "rethrown '%s', want '%s'", e.what(), want.c_str());
    }
    CHECK(std::current_exception() == nullptr, "a current exception outside of handlers");
  }
  return nullptr;
}

// pthread_exit unwinds: destructors run, catch (...) sees it and must pass it on.
static std::atomic<int> destroyed{0}, seen{0};
struct Counter {
  ~Counter() { destroyed++; }
};
static void* exits(void*) {
  Counter outer;
  try {
    Counter inner;
    pause_ms(1);
    pthread_exit(reinterpret_cast<void*>(5));
  } catch (...) {
    seen++;
    throw;
  }
  return nullptr;
}

static void across_threads() {
  STAGE("exception through a future");
  std::vector<std::future<int>> results;
  for (int i = 0; i < 20; i++)
    results.push_back(std::async(std::launch::async, [i]() -> int {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (i % 2) throw std::out_of_range(std::to_string(i));
      return i;
    }));
  for (int i = 0; i < 20; i++) {
    try {
      int v = results[static_cast<size_t>(i)].get();
      CHECK(v == i && i % 2 == 0, "result %d of %d", v, i);
    } catch (const std::out_of_range& e) {
      CHECK(i % 2 == 1 && e.what() == std::to_string(i), "'%s' from %d", e.what(), i);
    }
  }
}

static std::atomic<bool> handler_ran{false};
static int terminates(void*) {
  std::set_terminate([] {
    int code = 50;
    try {
      std::rethrow_exception(std::current_exception());
    } catch (int v) {
      code = v;
    }
    _exit(code);
  });
  std::thread t([] { throw 23; });
  t.join();
  return 1;
}

int main() {
  check_begin();
  STAGE("exceptions in 20 threads");
  pthread_t t[20];
  for (long i = 0; i < 20; i++) t[i] = start_thread(throws, reinterpret_cast<void*>(i));
  for (auto& id : t) join_thread(id);
  CHECK(unwound == 20 * 10 * 6, "%d frames unwound", unwound.load());
  STAGE("exceptions in main");
  throws(reinterpret_cast<void*>(99));
  STAGE("pthread_exit through C++ frames");
  for (int i = 0; i < 20; i++) t[i] = start_thread(exits, nullptr);
  for (auto& id : t) CHECK(join_thread(id) == reinterpret_cast<void*>(5), "result of pthread_exit");
  CHECK(destroyed == 40 && seen == 20, "%d destructors, %d handlers", destroyed.load(), seen.load());
  across_threads();
  STAGE("uncaught in a thread");
  int status = in_child(terminates, nullptr);
  CHECK(exited_with(status, 23), "terminate handler: status %#x", status);
  return check_end();
}
