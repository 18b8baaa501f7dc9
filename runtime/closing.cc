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
// Index of the keeper at which a descriptor was registered steadily last, + 1. A hint.
std::atomic<uint8_t> steady_at[kEpochs];
int keeper_count;  // grows before there are fibers

}  // namespace

int file_keeper_add(FileKeeper* k) {
  for (int i = 0; i < kMostKeepers; i++) {
    if (keepers[i] != nullptr) continue;
    keepers[i] = k;
    if (i == keeper_count) keeper_count++;
    return i;
  }
  return -1;
}

void file_keeper_remove(int index) { keepers[index] = nullptr; }

FileKeeper* steady_keeper(int fd, int index) {
  int before = steady_at[fd].exchange(static_cast<uint8_t>(index + 1), std::memory_order_relaxed) - 1;
  return before < 0 || before == index || before >= keeper_count ? nullptr : keepers[before];
}

bool fd_is_closing(int fd) {
  return mark_of(fd, fd).load(std::memory_order_seq_cst) != 0 ||
         closing_ranges.load(std::memory_order_seq_cst) != 0;
}

void engine_close_begins(int first, int last) {
  if (engine_features.holds_files || first < 0) return;
  mark_of(first, last).fetch_add(1, std::memory_order_seq_cst);
  for (int fd = first; fd <= last && fd < kEpochs; fd++) fd_new_file(fd);
  for (int i = 0; i < keeper_count; i++) {
    if (keepers[i] != nullptr) keepers[i]->keep_files(first, last);
  }
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
  for (auto& k : keepers) k = nullptr;
  keeper_count = 0;
  for (auto& mark : closing) mark.store(0, std::memory_order_relaxed);
  closing_ranges.store(0, std::memory_order_relaxed);
}

}  // namespace vthr
