// What the epoll engine keeps: for each descriptor who waits for it, and the memory for that.
#pragma once
#include <sys/epoll.h>
#include <initializer_list>
#include <new>

#include "runtime/emulate.h"
#include "runtime/engine.h"
#include "runtime/list.h"
#include "runtime/sys.h"

namespace vthr {

struct Registration;

// An engine that waits for numbers and must keep files that lose theirs.
class FileKeeper {
 public:
  virtual void keep_files(int first, int last) = 0;  // engine_close_begins
  virtual void let_go(
      int fd) = 0;  // it is waited for elsewhere: no more events here, unless somebody waits here too
  virtual void recycle(Registration* g) = 0;  // the waiter of its last request has closed its copy

 protected:
  ~FileKeeper() = default;
};
int file_keeper_add(FileKeeper* k);  // before there are fibers; its index, or -1
void file_keeper_remove(int index);  // it is abandoned
// The keeper has registered fd steadily: nullptr, or the one that did so before it. Any thread.
FileKeeper* steady_keeper(int fd, int index);
bool fd_is_closing(int fd);  // between engine_close_begins and _ends, perhaps

struct Waiting : ListNode {
  Op* op = nullptr;
  Request request;
  Registration* home = nullptr;
  int32_t res = 0;
  bool ended = false;
};

// What waits for one descriptor on one engine. Never freed: the kernel may hold a pointer to it in a registration that can
// no longer be named. An event too many only makes it look again.
//
// Registered with the kernel (`known`) for one event (EPOLLONESHOT), newly for each wait, which also says whether the
// number still is the same file; or steadily (`steady`), for the usual wait of a connection: a lone reader of a TCP
// socket. Then edges are told once, and who comes later goes by `may_read`. What a steady one rests on, that the number is
// still the same file, the epoch of the number says, and for a wait that lasts, the kernel after a while (`unsure`).
struct Registration {
  int fd = -1;  // a number of the program, a copy of ours (`kept`), or -1: the file is out of reach
  bool known = false;
  bool kept = false;
  bool steady = false;
  bool may_read = false;  // steady: something came since a read found nothing more
  bool tcp = false;       // in `epoch`
  uint8_t unheard = 0;    // steady: events in a row for which nobody waited
  uint8_t fruitless = 0;  // events in a row after which nobody got anything
  enum Look : uint8_t { on_events, by_looking, by_trying } look = on_events;  // what epoll cannot tell
  uint32_t epoch = UINT32_MAX;       // of the number, when it was added
  std::atomic<uint32_t> waiting{0};  // read without the lock by those who close
  List readers, writers, pollers;
  uint32_t poll_events = 0;  // of all pollers, or more
  ListNode nap;              // looked at again at `due`
  int64_t due = 0, nap_ns = 0;
  ListNode unsure;  // checked at `check_at`
  int64_t check_at = 0;
  FileKeeper* keeper = nullptr;

  static Registration* napping(ListNode* n) {
    return reinterpret_cast<Registration*>(reinterpret_cast<char*>(n) - offsetof(Registration, nap));
  }
  static Registration* doubted(ListNode* n) {
    return reinterpret_cast<Registration*>(reinterpret_cast<char*>(n) - offsetof(Registration, unsure));
  }
  bool nobody_waits() const { return waiting.load(std::memory_order_relaxed) == 0; }
  uint32_t events() const {
    return (readers.empty() ? 0u : EPOLLIN) | (writers.empty() ? 0u : EPOLLOUT) |
           (pollers.empty() ? 0u : poll_events & 0xffffu);
  }
  void join(Waiting* w) {
    Waits kind = waits_for(w->request);
    w->home = this;
    if (kind == Waits::polls) poll_events |= w->request.flags;
    (kind == Waits::readable ? readers : kind == Waits::writable ? writers : pollers).push_back(w);
    waiting.fetch_add(1, std::memory_order_seq_cst);
  }
  void leave(Waiting* w) {
    List::remove(w);
    waiting.fetch_sub(1, std::memory_order_relaxed);
  }
  void take_all_of(Registration* from) {
    for (List Registration::*list :
         {&Registration::readers, &Registration::writers, &Registration::pollers}) {
      while (auto* w = static_cast<Waiting*>((from->*list).pop_front())) {
        w->home = this;
        (this->*list).push_back(w);
      }
    }
    poll_events = from->poll_events;
    look = from->look;
    waiting.store(from->waiting.load(std::memory_order_relaxed), std::memory_order_relaxed);
    from->waiting.store(0, std::memory_order_relaxed);
    from->poll_events = 0;
  }
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
