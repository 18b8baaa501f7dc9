// Threads of C++ globals: made before main by constructors of a program and of nobody else, joined in destructors after it; pools with
// queues, thread_local objects with destructors that use globals, statics initialised by many threads at once.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

static std::mutex log_lock;
static std::map<std::string, long>& counts() {
  static std::map<std::string, long> c;
  return c;
}
static void count(const std::string& what, long n = 1) {
  std::lock_guard<std::mutex> hold(log_lock);
  counts()[what] += n;
}

struct Report {  // constructed first, destroyed last
  Report() { counts(); }
  ~Report() {
    for (auto& c : counts()) std::printf("%s %ld\n", c.first.c_str(), c.second);
    std::printf("report\n");
  }
} report;

struct Local {
  long calls = 0;
  ~Local() {
    std::this_thread::sleep_for(100us);
    count("local calls", calls);
    count("locals destroyed");
  }
};
static thread_local Local local;

class Pool {
 public:
  explicit Pool(const char* name, int n) : name_(name) {
    for (int i = 0; i < n; i++)
      threads_.emplace_back([this] { work(); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> hold(lock_);
      ending_ = true;
    }
    ready_.notify_all();
    for (auto& t : threads_) t.join();
    std::printf("pool %s ended, %zu left\n", name_, jobs_.size());
  }
  template <class F>
  auto run(F f) -> std::future<decltype(f())> {
    auto task = std::make_shared<std::packaged_task<decltype(f())()>>(std::move(f));
    auto result = task->get_future();
    {
      std::lock_guard<std::mutex> hold(lock_);
      jobs_.push_back([task] { (*task)(); });
    }
    ready_.notify_one();
    return result;
  }

 private:
  void work() {
    std::unique_lock<std::mutex> hold(lock_);
    for (;;) {
      ready_.wait(hold, [this] { return ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      hold.unlock();
      local.calls++;
      job();
      hold.lock();
    }
  }
  const char* name_;
  std::mutex lock_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> jobs_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

static Pool early("early", 6);  // its threads run before main
static std::future<int> before_main = early.run([] {
  std::this_thread::sleep_for(5ms);
  return 42;
});

struct Background {  // a thread that runs until the end of the process
  std::atomic<bool> stop{false};
  std::thread thread{[this] {
    while (!stop) std::this_thread::sleep_for(1ms);
    count("background ended");
  }};
  ~Background() {
    stop = true;
    thread.join();
  }
} background;

static int slow_value(int v, bool fails) {
  std::this_thread::sleep_for(2ms);
  count("initialisations");
  if (fails) throw std::runtime_error("not yet");
  return v;
}
static std::atomic<int> tries{0};
static int lazily() {
  static int value = slow_value(5, tries++ < 3);
  return value;
}

int main() {
  std::printf("before main: %d\n", before_main.get());
  std::vector<std::future<long>> results;
  for (long i = 0; i < 300; i++)
    results.push_back(early.run([i] {
      if (i % 50 == 7) throw std::out_of_range(std::to_string(i));
      if (i % 9 == 0) std::this_thread::sleep_for(300us);
      return i * i;
    }));
  long sum = 0, thrown = 0;
  for (auto& r : results) {
    try {
      sum += r.get();
    } catch (const std::out_of_range& e) {
      thrown += std::stol(e.what());
    }
  }
  std::printf("sum %ld, thrown %ld\n", sum, thrown);

  std::vector<std::thread> threads;
  std::atomic<long> got{0};
  for (int i = 0; i < 20; i++)
    threads.emplace_back([&] {
      for (;;) {
        try {
          got += lazily();
          return;
        } catch (const std::runtime_error&) {
        }
      }
    });
  for (auto& t : threads) t.join();
  std::printf("lazily %ld\n", got.load());

  std::vector<std::future<long>> deep;
  std::function<long(int)> tree = [&](int n) -> long {
    if (n == 0) return 1;
    auto left = std::async(std::launch::async, tree, n - 1);
    return tree(n - 1) + left.get();
  };
  std::printf("async %ld\n", tree(6));

  std::promise<void> abandoned;
  auto broken = abandoned.get_future();
  { auto gone = std::move(abandoned); }
  try {
    broken.get();
  } catch (const std::future_error& e) {
    std::printf("broken promise %d\n", e.code() == std::future_errc::broken_promise);
  }
  // jobs that are still queued when main returns: the pool's destructor waits for them
  for (int i = 0; i < 40; i++) early.run([] {
    std::this_thread::sleep_for(200us);
    count("late jobs");
  });
  std::printf("main ends\n");
  return 0;
}
