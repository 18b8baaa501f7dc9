// C++20: atomic wait and notify, semaphore, latch, barrier, jthread with stop tokens.
// cflags: -std=c++20

#include "check.h"

#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <semaphore>
#include <stop_token>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

template <typename T>
static void turns(const char* name) {
  STAGE(name);
  std::atomic<T> turn{0};
  constexpr int kThreads = 5, kRounds = 60;
  {
    std::vector<std::jthread> pool;
    for (int id = 0; id < kThreads; id++)
      pool.emplace_back([&turn, id] {
        for (int round = 0; round < kRounds; round++) {
          T seen;
          while ((seen = turn.load()) % kThreads != id) turn.wait(seen);
          turn.store(static_cast<T>((seen + 1) % kThreads));
          turn.notify_all();
        }
      });
  }
  CHECK(turn == 0, "turn %ld", static_cast<long>(turn.load()));
}

static void flags() {
  STAGE("atomic_flag");
  std::atomic_flag go;
  std::atomic<int> through{0};
  std::vector<std::jthread> pool;
  for (int i = 0; i < 12; i++)
    pool.emplace_back([&] {
      go.wait(false);
      through++;
    });
  std::this_thread::sleep_for(20ms);
  CHECK(through == 0, "%d threads went through a closed gate", through.load());
  go.test_and_set();
  go.notify_all();
  pool.clear();
  CHECK(through == 12, "%d threads went through", through.load());
}

static void semaphores() {
  STAGE("semaphores");
  std::counting_semaphore<8> slots(3);
  std::atomic<int> inside{0}, most{0};
  std::vector<std::jthread> pool;
  for (int i = 0; i < 16; i++)
    pool.emplace_back([&] {
      for (int round = 0; round < 20; round++) {
        slots.acquire();
        int n = ++inside, m = most;
        while (n > m && !most.compare_exchange_weak(m, n)) {
        }
        if (round % 5 == 0) std::this_thread::sleep_for(1ms);
        inside--;
        slots.release();
      }
    });
  pool.clear();
  CHECK(most <= 3, "%d inside a semaphore of 3", most.load());
  std::binary_semaphore none(0);
  std::jthread([&] { CHECK(!none.try_acquire_for(30ms), "an empty semaphore was acquired"); }).join();
}

static void latches() {
  STAGE("latch and barrier");
  constexpr int n = 10;
  std::latch start(n + 1);
  std::atomic<int> phase_sum{0}, phases{0};
  auto complete = [&]() noexcept {
    if (phase_sum != n * (phases + 1)) phases = -1000;
    phases++;
  };
  std::barrier gate(n, complete);
  {
    std::vector<std::jthread> pool;
    for (int i = 0; i < n; i++)
      pool.emplace_back([&] {
        start.arrive_and_wait();
        for (int round = 0; round < 50; round++) {
          phase_sum++;
          gate.arrive_and_wait();
        }
      });
    start.count_down();
    start.wait();
  }
  CHECK(phases == 50, "%d phases", phases.load());
}

static void stopping() {
  STAGE("jthread and stop tokens");
  std::mutex lock;
  std::condition_variable_any cond;
  std::atomic<int> stopped{0};
  {
    std::vector<std::jthread> pool;
    for (int i = 0; i < 10; i++)
      pool.emplace_back([&](std::stop_token token) {
        std::unique_lock hold(lock);
        cond.wait(hold, token, [] { return false; });
        CHECK(token.stop_requested(), "the wait ended without a stop");
        stopped++;
      });
    std::this_thread::sleep_for(20ms);
    CHECK(stopped == 0, "%d stopped by themselves", stopped.load());
  }
  CHECK(stopped == 10, "%d of 10 stopped", stopped.load());
}

int main() {
  check_begin();
  turns<int>("atomic int");             // waited for with the futex itself
  turns<unsigned char>("atomic char");  // waited for through the library's table
  turns<long>("atomic long");
  flags();
  semaphores();
  latches();
  stopping();
  return check_end();
}
