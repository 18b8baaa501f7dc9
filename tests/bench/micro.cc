// The price of single operations, by Google Benchmark.
// cflags: -lbenchmark -lpthread
//
// The whole benchmark runs inside a created thread, with a second created thread alive: the initial thread of
// a process stays a kernel thread under libvthr, and glibc takes short cuts while there is one thread only.
// Times are wall-clock; items are what one figure counts (a hop, a lock), so items_per_second is the result
// wherever it is given.

#include <benchmark/benchmark.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void check(bool good, const char* what) {
  if (good) return;
  std::perror(what);
  std::abort();
}

pthread_t start(void* (*body)(void*), void* argument) {
  pthread_t thread;
  errno = pthread_create(&thread, nullptr, body, argument);
  check(errno == 0, "pthread_create");
  return thread;
}

void* nothing(void* argument) { return argument; }

void create_join(benchmark::State& state) {
  for (auto _ : state) pthread_join(start(nothing, nullptr), nullptr);
}

void mutex_uncontended(benchmark::State& state) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  for (auto _ : state) {
    pthread_mutex_lock(&mutex);
    benchmark::ClobberMemory();
    pthread_mutex_unlock(&mutex);
  }
}

// Ping-pong: an iteration is two hops, there and back.

struct CondTable {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed[2] = {PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER};
  int turn = 0;
  bool over = false;
};

void* cond_partner(void* argument) {
  auto* table = static_cast<CondTable*>(argument);
  pthread_mutex_lock(&table->mutex);
  for (;;) {
    while (table->turn != 1) pthread_cond_wait(&table->changed[1], &table->mutex);
    if (table->over) break;
    table->turn = 0;
    pthread_cond_signal(&table->changed[0]);
  }
  pthread_mutex_unlock(&table->mutex);
  return nullptr;
}

void cond_hop(benchmark::State& state) {
  CondTable table;
  pthread_t partner = start(cond_partner, &table);
  pthread_mutex_lock(&table.mutex);
  for (auto _ : state) {
    table.turn = 1;
    pthread_cond_signal(&table.changed[1]);
    while (table.turn != 0) pthread_cond_wait(&table.changed[0], &table.mutex);
  }
  table.over = true;
  table.turn = 1;
  pthread_cond_signal(&table.changed[1]);
  pthread_mutex_unlock(&table.mutex);
  pthread_join(partner, nullptr);
  state.SetItemsProcessed(2 * state.iterations());
}

struct SemTable {
  sem_t ping, pong;
  std::atomic<bool> over{false};
};

void* sem_partner(void* argument) {
  auto* table = static_cast<SemTable*>(argument);
  for (;;) {
    sem_wait(&table->ping);
    if (table->over) return nullptr;
    sem_post(&table->pong);
  }
}

void sem_hop(benchmark::State& state) {
  SemTable table;
  sem_init(&table.ping, 0, 0);
  sem_init(&table.pong, 0, 0);
  pthread_t partner = start(sem_partner, &table);
  for (auto _ : state) {
    sem_post(&table.ping);
    sem_wait(&table.pong);
  }
  table.over = true;
  sem_post(&table.ping);
  pthread_join(partner, nullptr);
  state.SetItemsProcessed(2 * state.iterations());
}

void* socketpair_partner(void* argument) {
  int fd = *static_cast<int*>(argument);
  char byte;
  while (read(fd, &byte, 1) == 1) check(write(fd, &byte, 1) == 1, "write");
  return nullptr;
}

void socketpair_hop(benchmark::State& state) {
  int pair[2];
  check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
  pthread_t partner = start(socketpair_partner, &pair[1]);
  char byte = 1;
  for (auto _ : state) {
    check(write(pair[0], &byte, 1) == 1, "write");
    check(read(pair[0], &byte, 1) == 1, "read");
  }
  shutdown(pair[0], SHUT_RDWR);
  pthread_join(partner, nullptr);
  close(pair[0]);
  close(pair[1]);
  state.SetItemsProcessed(2 * state.iterations());
}

// Many threads on one mutex. An iteration is a round of all of them between two barriers.

struct Crowd {
  static constexpr int kThreads = 64;
  static constexpr int kLocks = 2000;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_barrier_t gate;
  long count = 0;
  bool over = false;
};

void* crowd_member(void* argument) {
  auto* crowd = static_cast<Crowd*>(argument);
  for (;;) {
    pthread_barrier_wait(&crowd->gate);
    if (crowd->over) return nullptr;
    for (int i = 0; i < Crowd::kLocks; i++) {
      pthread_mutex_lock(&crowd->mutex);
      crowd->count++;
      pthread_mutex_unlock(&crowd->mutex);
    }
    pthread_barrier_wait(&crowd->gate);
  }
}

void mutex_crowd(benchmark::State& state) {
  Crowd crowd;
  pthread_barrier_init(&crowd.gate, nullptr, Crowd::kThreads + 1);
  std::vector<pthread_t> members;
  for (int i = 0; i < Crowd::kThreads; i++) members.push_back(start(crowd_member, &crowd));
  for (auto _ : state) {
    pthread_barrier_wait(&crowd.gate);
    pthread_barrier_wait(&crowd.gate);
  }
  crowd.over = true;
  pthread_barrier_wait(&crowd.gate);
  for (pthread_t member : members) pthread_join(member, nullptr);
  pthread_barrier_destroy(&crowd.gate);
  long locks = static_cast<long>(state.iterations()) * Crowd::kThreads * Crowd::kLocks;
  if (crowd.count != locks) state.SkipWithError("the mutex did not exclude");
  state.SetItemsProcessed(locks);
}

// Calls that never block: what the way through the hooks costs. An item is one call.

void socketpair_ready(benchmark::State& state) {
  int pair[2];
  check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
  char byte = 1;
  for (auto _ : state) {
    check(write(pair[0], &byte, 1) == 1, "write");
    check(read(pair[1], &byte, 1) == 1, "read");
  }
  close(pair[0]);
  close(pair[1]);
  state.SetItemsProcessed(2 * state.iterations());
}

void poll_ready(benchmark::State& state) {
  int pair[2];
  check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
  check(write(pair[0], "", 1) == 1, "write");
  pollfd readable = {pair[1], POLLIN, 0};
  for (auto _ : state) check(poll(&readable, 1, -1) == 1, "poll");
  close(pair[0]);
  close(pair[1]);
}

BENCHMARK(create_join)->UseRealTime();
BENCHMARK(mutex_uncontended)->UseRealTime();
BENCHMARK(cond_hop)->UseRealTime();
BENCHMARK(sem_hop)->UseRealTime();
BENCHMARK(socketpair_hop)->UseRealTime();
BENCHMARK(mutex_crowd)->UseRealTime();
BENCHMARK(socketpair_ready)->UseRealTime();
BENCHMARK(poll_ready)->UseRealTime();

void* wait_for_end(void* argument) {
  sem_wait(static_cast<sem_t*>(argument));
  return nullptr;
}

void* run_all(void*) {
  benchmark::RunSpecifiedBenchmarks();
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  sem_t end;
  sem_init(&end, 0, 0);
  pthread_t second = start(wait_for_end, &end);
  pthread_join(start(run_all, nullptr), nullptr);
  sem_post(&end);
  pthread_join(second, nullptr);
  return 0;
}
