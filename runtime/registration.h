// What the epoll engine keeps: for each descriptor who waits for it, and the memory for that.
#pragma once
#include <new>

#include "runtime/engine.h"
#include "runtime/list.h"
#include "runtime/sys.h"

namespace vthr {

struct Registration;
class EpollEngine;

struct Waiting : ListNode {
  Op* op = nullptr;
  Request request;
  Registration* home = nullptr;
  int32_t res = 0;
  bool ended = false;
};

// What waits for one descriptor on one engine. Never freed: the kernel may hold a pointer to it in a registration that can
// no longer be named. An event too many only makes it look again.
struct Registration {
  int fd = -1;         // a number of the program, a copy of ours (`kept`), or -1: the file is out of reach
  bool known = false;  // epoll_ctl has added it: the next is a change
  bool kept = false;
  enum Look : uint8_t { on_events, by_looking, by_trying } look = on_events;  // what epoll cannot tell
  uint8_t fruitless = 0;             // events in a row after which nobody got anything
  std::atomic<uint32_t> waiting{0};  // read without the lock by those who close
  List readers, writers, pollers;
  uint32_t poll_events = 0;  // of all pollers, or more
  ListNode nap;              // looked at again at `due`
  int64_t due = 0, nap_ns = 0;
  EpollEngine* engine = nullptr;
};

// Slabs of T, never given back.
template <class T>
class Pool {
 public:
  T* take() {
    if (free_ == nullptr && !grow()) return nullptr;
    T* t = free_;
    free_ = *link(t);
    return new (t) T;
  }
  void give(T* t) {
    *link(t) = free_;
    free_ = t;
  }

 private:
  static T** link(T* t) { return reinterpret_cast<T**>(t); }
  bool grow() {
    constexpr size_t kBytes = 64 << 10;
    auto* slab = static_cast<T*>(sys_map(kBytes));
    if (slab == nullptr) return false;
    for (size_t i = kBytes / sizeof(T); i-- > 0;) give(slab + i);
    return true;
  }
  T* free_ = nullptr;
};

// Descriptor -> registration, in chunks that are made when needed.
class Table {
 public:
  Registration* get(int fd) const {
    auto i = static_cast<unsigned>(fd);
    if (i >= kChunks * kChunk) return nullptr;
    auto* chunk = chunks_[i / kChunk].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : chunk[i % kChunk].load(std::memory_order_acquire);
  }
  // Under the engine's lock. False: no memory, or beyond what any program uses.
  bool set(int fd, Registration* g) {
    auto i = static_cast<unsigned>(fd);
    if (i >= kChunks * kChunk) return false;
    auto* chunk = chunks_[i / kChunk].load(std::memory_order_relaxed);
    if (chunk == nullptr) {
      chunk = static_cast<Place*>(sys_map(kChunk * sizeof(Place)));
      if (chunk == nullptr) return false;
      chunks_[i / kChunk].store(chunk, std::memory_order_release);
    }
    chunk[i % kChunk].store(g, std::memory_order_release);
    return true;
  }
  // Calls visit(registration) for those from `first` to `last`.
  template <class F>
  void each(int first, int last, F visit) const {
    auto from = static_cast<size_t>(first), to = static_cast<size_t>(last);
    for (size_t c = from / kChunk; c < kChunks && c * kChunk <= to; c++) {
      if (chunks_[c].load(std::memory_order_acquire) == nullptr) continue;
      size_t i = c * kChunk < from ? from : c * kChunk;
      for (; i < (c + 1) * kChunk && i <= to; i++) {
        if (Registration* g = get(static_cast<int>(i))) visit(g);
      }
    }
  }

 private:
  using Place = std::atomic<Registration*>;
  static constexpr size_t kChunk = 4096, kChunks = 4096;
  std::atomic<Place*> chunks_[kChunks] = {};
};

}  // namespace vthr
