// Descriptors that go away under requests of an engine that waits for numbers; and the features of engines.
#include "runtime/registration.h"

namespace vthr {

EngineFeatures engine_features;
std::atomic<uint32_t> fd_epochs[kEpochs];

namespace {

// Descriptors that are being closed, by a hash, and ranges of them.
//   count n -> n + 1   engine_close_begins (seq_cst), before it looks for requests that wait
//   count n -> n - 1   engine_close_ends, after the close
// Pairs: a request is counted in Registration::waiting (seq_cst) before queue() reads these: one of the two sees the other.
constexpr unsigned kHashes = 256;
std::atomic<uint32_t> closing[kHashes];
std::atomic<uint32_t> closing_ranges{0};

std::atomic<uint32_t>& mark_of(int first, int last) {
  return first != last ? closing_ranges : closing[static_cast<unsigned>(first) % kHashes];
}

constexpr int kMostKeepers = 64;
FileKeeper* keepers[kMostKeepers];
int keeper_count;  // grows before there are fibers

}  // namespace

void file_keeper_add(FileKeeper* k) {
  if (keeper_count < kMostKeepers) keepers[keeper_count++] = k;
}

bool fd_is_closing(int fd) {
  return mark_of(fd, fd).load(std::memory_order_seq_cst) != 0 ||
         closing_ranges.load(std::memory_order_seq_cst) != 0;
}

void engine_close_begins(int first, int last) {
  if (engine_features.holds_files || first < 0) return;
  mark_of(first, last).fetch_add(1, std::memory_order_seq_cst);
  for (int fd = first; fd <= last && fd < kEpochs; fd++) fd_new_file(fd);
  for (int i = 0; i < keeper_count; i++) keepers[i]->keep_files(first, last);
}

void engine_close_ends(int first, int last) {
  if (engine_features.holds_files || first < 0) return;
  mark_of(first, last).fetch_sub(1, std::memory_order_seq_cst);
}

void engine_kept_release(int* kept) {
  auto* g = reinterpret_cast<Registration*>(reinterpret_cast<char*>(kept) - offsetof(Registration, fd));
  fd_disown(kept);
  g->keeper->recycle(g);
}

void epoll_after_fork() {
  keeper_count = 0;
  for (auto& mark : closing) mark.store(0, std::memory_order_relaxed);
  closing_ranges.store(0, std::memory_order_relaxed);
}

}  // namespace vthr
