// Foreign threads that wait in the parking lot, for its units.
#pragma once
#include <pthread.h>

#include <mutex>

#include "runtime/parking.h"
#include "tests/unit/support.h"

namespace vthr {

// Threads that wait on a key one after the other: the next begins when the one before is published.
class Waiters {
 public:
  ~Waiters() {
    for (auto& t : threads_) t.join();
  }
  int add(const void* key, ParkArgs args = {}) {
    int me = static_cast<int>(threads_.size());
    args.before_sleep = [](void* n) { static_cast<std::atomic<int>*>(n)->fetch_add(1); };
    args.before_arg = &published_;
    threads_.emplace_back([this, me, key, args] {
      ids_[me] = pthread_self();
      how_[me] = park_on(key, args);
      {
        std::lock_guard<std::mutex> hold(mutex_);
        order_.push_back(me);
      }
      ended_.fetch_add(1);
    });
    EXPECT_TRUE(eventually([&] { return published_.load() == me + 1; }));
    return me;
  }
  bool ended(int n) {
    return eventually([&] { return ended_.load() >= n; }) && ended_.load() == n;
  }
  std::vector<int> order() {
    std::lock_guard<std::mutex> hold(mutex_);
    return order_;
  }
  Wake how(int i) const { return how_[i]; }
  pthread_t id(int i) const { return ids_[i]; }

 private:
  std::vector<std::thread> threads_;
  std::atomic<int> published_{0}, ended_{0};
  std::mutex mutex_;
  std::vector<int> order_;
  Wake how_[256] = {};
  pthread_t ids_[256] = {};
};

}  // namespace vthr
