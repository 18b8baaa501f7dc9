// The C++ library's locks and threads: mutex, recursive and timed, shared_mutex, condition_variable, call_once, async.
// cflags: -std=c++17

#include "check.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

static void run_all(int n, const std::function<void(int)>& body) {
  std::vector<std::thread> pool;
  for (int i = 0; i < n; i++) pool.emplace_back(body, i);
  for (auto& t : pool) t.join();
}

static void locks() {
  STAGE("locks");
  std::mutex plain;
  std::recursive_mutex recursive;
  std::timed_mutex timed;
  std::shared_mutex shared;
  long a = 0, b = 0, c = 0, d = 0;
  run_all(16, [&](int id) {
    for (int i = 0; i < 300; i++) {
      {
        std::lock_guard<std::mutex> hold(plain);
        a++;
        if (i % 100 == id) std::this_thread::sleep_for(1ms);
      }
      {
        std::lock_guard<std::recursive_mutex> outer(recursive), inner(recursive);
        b++;
      }
      while (!timed.try_lock_for(1ms)) {
      }
      c++;
      timed.unlock();
      if (i % 4 == 0) {
        std::unique_lock<std::shared_mutex> hold(shared);
        d++;
      } else {
        std::shared_lock<std::shared_mutex> hold(shared);
        CHECK(d >= 0, "shared value");
      }
      std::scoped_lock both(plain, timed);
      a++;
    }
  });
  CHECK(a == 2 * 16 * 300 && b == 16 * 300 && c == 16 * 300 && d == 16 * 75, "counted %ld %ld %ld %ld", a, b,
        c, d);
  std::timed_mutex held;
  held.lock();
  std::thread([&] {
    auto begin = std::chrono::steady_clock::now();
    CHECK(!held.try_lock_until(begin + 50ms), "a held mutex was given out");
    CHECK(std::chrono::steady_clock::now() - begin >= 50ms, "try_lock_until gave up early");
  }).join();
  held.unlock();
}

static void queue() {
  STAGE("condition variable");
  std::mutex lock;
  std::condition_variable filled, drained;
  std::condition_variable_any any;
  std::deque<int> items;
  std::atomic<long> sum{0};
  bool done = false;
  std::vector<std::thread> takers;
  for (int i = 0; i < 6; i++)
    takers.emplace_back([&, i] {
      for (;;) {
        std::unique_lock<std::mutex> hold(lock);
        if (i % 2)
          filled.wait(hold, [&] { return done || !items.empty(); });
        else
          while (!filled.wait_for(hold, 1ms, [&] { return done || !items.empty(); })) {
          }
        if (items.empty()) return;
        sum += items.front();
        items.pop_front();
        hold.unlock();
        drained.notify_one();
      }
    });
  run_all(4, [&](int) {
    for (int v = 1; v <= 1000; v++) {
      std::unique_lock<std::mutex> hold(lock);
      drained.wait(hold, [&] { return items.size() < 8; });
      items.push_back(v);
      filled.notify_one();
    }
  });
  {
    std::lock_guard<std::mutex> hold(lock);
    done = true;
  }
  filled.notify_all();
  for (auto& t : takers) t.join();
  CHECK(sum == 4 * 500500, "sum %ld", sum.load());
  std::unique_lock<std::mutex> hold(lock);
  CHECK(!any.wait_for(hold, 30ms, [] { return false; }), "a wait for what never comes");
  CHECK(filled.wait_until(hold, std::chrono::system_clock::now() - 1s) == std::cv_status::timeout,
        "time in the past");
}

// Static locals and call_once: made once, others wait meanwhile.
struct Slow {
  Slow() {
    std::this_thread::sleep_for(50ms);
    made++;
  }
  static std::atomic<int> made;
};
std::atomic<int> Slow::made{0};
static Slow& the_slow() {
  static Slow slow;
  return slow;
}
struct Failing {
  static std::atomic<int> tries;
  Failing() {
    std::this_thread::sleep_for(2ms);
    if (++tries <= 5) throw tries.load();
  }
};
std::atomic<int> Failing::tries{0};
static void the_failing() { static Failing failing; }

static void once() {
  STAGE("static locals and call_once");
  std::once_flag flag, throwing;
  std::atomic<int> ran{0}, threw{0}, caught{0};
  run_all(20, [&](int) {
    the_slow();
    CHECK(Slow::made == 1, "a static local was used half-made");
    std::call_once(flag, [&] {
      std::this_thread::sleep_for(20ms);
      ran++;
    });
    CHECK(ran == 1, "call_once returned early");
    for (bool done = false; !done;) {
      try {
        the_failing();
        done = true;
      } catch (int) {
        caught++;
      }
    }
  });
  CHECK(Slow::made == 1 && ran == 1, "made %d, ran %d", Slow::made.load(), ran.load());
  CHECK(Failing::tries == 6 && caught == 5, "%d tries, %d exceptions", Failing::tries.load(), caught.load());
}

static long tree(int depth) {
  if (depth == 0) return 1;
  auto left = std::async(std::launch::async, tree, depth - 1);
  return tree(depth - 1) + left.get();
}

static void futures() {
  STAGE("async, futures, promises");
  CHECK(tree(7) == 128, "tree of tasks");
  std::promise<int> promise;
  std::shared_future<int> future = promise.get_future().share();
  std::atomic<int> sum{0};
  std::vector<std::thread> pool;
  for (int i = 0; i < 10; i++)
    pool.emplace_back([&, i] {
      if (i % 2) {
        while (future.wait_for(1ms) != std::future_status::ready) {
        }
      }
      sum += future.get();
    });
  std::this_thread::sleep_for(20ms);
  promise.set_value(7);
  for (auto& t : pool) t.join();
  CHECK(sum == 70, "sum %d", sum.load());
  std::packaged_task<int(int)> task([](int v) { return v * 2; });
  auto doubled = task.get_future();
  std::thread runner(std::move(task), 21);
  CHECK(doubled.get() == 42, "packaged task");
  runner.join();
  std::promise<void> at_exit;
  auto gone = at_exit.get_future();
  std::thread([&] { at_exit.set_value_at_thread_exit(); }).detach();
  gone.get();
}

int main() {
  check_begin();
  locks();
  queue();
  once();
  futures();
  return check_end();
}
