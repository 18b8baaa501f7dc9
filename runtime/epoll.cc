// The epoll engine, for where io_uring is refused (DESIGN D5). An epoll instance for each carrier: whoever owns the carrier
// sees the events of all requests on it, also while a former owner is blocked. A request is registered when it is queued, once
// for the next event (EPOLLONESHOT), and done without blocking when its descriptor is ready (emulate.h). So, as with the
// ring, its result is the outcome, and of many that wait for the same thing only one is woken.
//
// Rejected: edge-triggered registrations that last as long as the descriptor. They save one call a wait, but a number that
// was closed where no hook sees it (fclose) would never wake again; EPOLL_CTL_MOD says whether the file is still the same.
// Letting the fiber do the call once it runs: between event and call anybody may have closed the number.
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <cerrno>
#include <initializer_list>

#include "runtime/emulate.h"
#include "runtime/engine.h"
#include "runtime/lock.h"
#include "runtime/ownfd.h"
#include "runtime/registration.h"
#include "runtime/sys.h"

namespace vthr {

namespace {

constexpr int64_t kShortNap = kMilli, kLongNap = 16 * kMilli;

// Descriptors that are being closed, by a hash, and ranges of them.
//   count n -> n + 1   engine_close_begins (seq_cst), before it looks for requests that wait
//   count n -> n - 1   engine_close_ends, after the close
// Pairs: a request is counted in Registration::waiting (seq_cst) before queue() reads these: one of the two sees the other.
constexpr unsigned kClosing = 256;
std::atomic<uint32_t> closing[kClosing];
std::atomic<uint32_t> closing_ranges{0};

}  // namespace

class EpollEngine final : public Engine {
 public:
  int open() {
    epoll_ = static_cast<int>(sys_call(SYS_epoll_create1, EPOLL_CLOEXEC));
    if (epoll_ < 0) return -epoll_;
    bell_ = static_cast<int>(sys_call(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (bell_ < 0) {
      sys_call(SYS_close, epoll_);
      return -bell_;
    }
    fd_adopt(&epoll_);
    fd_adopt(&bell_);
    watch_fd_ = epoll_;
    epoll_event e{};
    e.events = EPOLLIN | EPOLLET;  // each ring is an edge: nobody reads the counter
    long r = sys_call(SYS_epoll_ctl, epoll_, EPOLL_CTL_ADD, bell_, sys_arg(&e));
    timespec now{};
    exact_ = sys_call(SYS_epoll_pwait2, epoll_, sys_arg(events_), kEvents, sys_arg(&now), 0, 8) >= 0;
    if (r < 0) abandon();
    return static_cast<int>(-r);
  }

  void queue(const Request& r, Op* op) override {
    bool out_of_memory = false;
    {
      Locked hold(lock_);
      Waiting* w = waitings_.take();
      if (w == nullptr) {
        out_of_memory = true;
      } else {
        in_flight_.store(in_flight_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        w->op = op;
        w->request = r;
        op->state = w;
        start(w);
      }
    }
    if (out_of_memory) op_finish(op, -ENOMEM);
  }

  void queue_cancel(Op* op) override {
    Locked hold(lock_);
    auto* w = static_cast<Waiting*>(op->state);
    if (!op->done && w != nullptr && !w->ended) end(w, -ECANCELED);
  }

  unsigned round() override {
    unsigned n = finish_ended();
    if (in_flight_.load(std::memory_order_relaxed) == 0) return n;
    return n + collect(0);
  }

  unsigned sleep(int64_t deadline) override {
    unsigned n = finish_ended();
    if (n != 0) return n;
    int64_t nap = next_nap_.load(std::memory_order_relaxed);
    return collect(nap < deadline ? nap : deadline);
  }

  void ring_bell() override {
    uint64_t one = 1;
    sys_call(SYS_write, __atomic_load_n(&bell_, __ATOMIC_RELAXED), sys_arg(&one), sizeof one);
  }

  void new_owner() override {}  // nothing of it belongs to a thread, but the timer, which moves by itself

  bool has_work() const override {
    return ended_count_.load(std::memory_order_relaxed) != 0 ||
           (in_flight_.load(std::memory_order_relaxed) != 0 && poll_now(watch_fd_, POLLIN) != 0);
  }
  bool has_unsubmitted(int) const override { return false; }
  uint32_t submissions() const override { return 0; }
  void submit_for_owner() override {}
  uint32_t in_flight() const override { return in_flight_.load(std::memory_order_relaxed); }
  int watch_fd() const override { return watch_fd_; }
  const char* name() const override { return "epoll"; }

  void abandon() override {
    timer_.drop();
    fd_disown(&epoll_);
    fd_disown(&bell_);
  }

  // The waiter of the last request has closed g's copy.
  void recycle(Registration* g) {
    Locked hold(lock_);
    registrations_.give(g);
  }

  // engine_close_begins for this engine.
  void keep_files(int first, int last) {
    if (first == last) {
      Registration* g = table_.get(first);
      if (g != nullptr && g->waiting.load(std::memory_order_seq_cst) != 0) keep_file(g);
    } else {
      table_.each(first, last, [this](Registration* g) {
        if (g->waiting.load(std::memory_order_seq_cst) != 0) keep_file(g);
      });
    }
  }

 private:
  static constexpr int kEvents = 256;

  // ---- queueing ----

  void start(Waiting* w) {
    Waits kind = waits_for(w->request);
    if (kind == Waits::nothing || kind == Waits::unknown) {
      end(w, kind == Waits::nothing ? 0 : -EINVAL);
      return;
    }
    Registration* g = registration_of(w->request.fd);
    if (g == nullptr) {
      end(w, w->request.fd < 0 ? -EBADF : -ENOMEM);
      return;
    }
    if (begins_with_a_try(w->request) && attempt(w, w->request.fd, false)) return;
    join(g, w, kind);
    if (VTHR_UNLIKELY(is_closing(g->fd))) g = set_aside(g, w);
    if (is_blind(w->request)) g->look = Registration::by_trying;
    arm(g, w);
  }

  Registration* new_registration() {
    Registration* g = registrations_.take();
    if (g != nullptr) g->engine = this;
    return g;
  }

  Registration* registration_of(int fd) {
    if (fd < 0) return nullptr;
    Registration* g = table_.get(fd);
    if (g != nullptr) return g;
    g = new_registration();
    if (g == nullptr) return nullptr;
    g->fd = fd;
    if (table_.set(fd, g)) return g;
    registrations_.give(g);
    return nullptr;
  }

  static void join(Registration* g, Waiting* w, Waits kind) {
    w->home = g;
    if (kind == Waits::polls) g->poll_events |= w->request.flags;
    (kind == Waits::readable ? g->readers : kind == Waits::writable ? g->writers : g->pollers).push_back(w);
    g->waiting.fetch_add(1, std::memory_order_seq_cst);
  }

  static bool is_closing(int fd) {
    return closing[static_cast<unsigned>(fd) % kClosing].load(std::memory_order_seq_cst) != 0 ||
           closing_ranges.load(std::memory_order_seq_cst) != 0;
  }

  static uint32_t events_of(const Registration* g) {
    return (g->readers.empty() ? 0u : EPOLLIN) | (g->writers.empty() ? 0u : EPOLLOUT) |
           (g->pollers.empty() ? 0u : g->poll_events & 0xffffu);
  }

  // Asks for the next event of what waits for g. The kernel looks at once, so nothing is missed that came before. newest: the
  // request that has just named the number, if that is why.
  void arm(Registration* g, Waiting* newest = nullptr) {
    if (g->fd < 0) return;
    if (g->look != Registration::on_events) {
      take_nap(g);
      return;
    }
    epoll_event e{};
    e.events = events_of(g) | EPOLLONESHOT;
    e.data.ptr = g;
    long r = control(g->known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, g->fd, &e);
    if (r == -ENOENT) {  // our copy has moved, or another file has the number and no hook saw it
      g->known = false;
      if (!g->kept) strand_others(g, newest);
      if (g->waiting.load(std::memory_order_relaxed) == 0) return;
      e.events = events_of(g) | EPOLLONESHOT;
      r = control(EPOLL_CTL_ADD, g->fd, &e);
    } else if (r == -EEXIST) {
      r = control(EPOLL_CTL_MOD, g->fd, &e);
    }
    g->known = r == 0;
    if (r == 0) return;
    if (r == -EPERM) {
      always_ready(g);
    } else if (r == -EBADF) {
      end_all(g, -EBADF);
    } else {  // no memory for it, or an epoll descriptor nested too deeply
      g->look = Registration::by_looking;
      take_nap(g);
    }
  }

  long control(int what, int fd, epoll_event* e) {
    for (;;) {
      int epoll = __atomic_load_n(&epoll_, __ATOMIC_RELAXED);
      long r = sys_call(SYS_epoll_ctl, epoll, what, fd, sys_arg(e));
      if (r >= 0 || epoll == __atomic_load_n(&epoll_, __ATOMIC_RELAXED)) return r;
    }
  }

  // A file without poll: never waits.
  void always_ready(Registration* g) {
    serve(&g->readers, true);
    serve(&g->writers, true);
    while (auto* w = static_cast<Waiting*>(g->pollers.front()))
      end(w, static_cast<int32_t>(w->request.flags & (POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM)));
  }

  void end_all(Registration* g, int32_t res) {
    for (List* list : {&g->readers, &g->writers, &g->pollers}) {
      while (auto* w = static_cast<Waiting*>(list->front())) end(w, res);
    }
  }

  // ---- events ----

  unsigned collect(int64_t deadline) {
    unsigned n = 0;
    long got;
    do {
      got = wait(deadline);
      if (got > 0) {
        Locked hold(lock_);
        for (long i = 0; i < got; i++) {
          auto* g = static_cast<Registration*>(events_[i].data.ptr);
          if (g != nullptr) happened(g, events_[i].events);
        }
      }
      if (VTHR_UNLIKELY(next_nap_.load(std::memory_order_relaxed) != kNever)) end_naps();
      n += finish_ended();
      deadline = 0;
    } while (got == kEvents);
    return n;
  }

  long wait(int64_t deadline) {
    int epoll = __atomic_load_n(&epoll_, __ATOMIC_RELAXED);
    int64_t left = deadline == kNever || deadline == 0 ? deadline : deadline - now_ns();
    if (left < 0) left = 0;
    if (left == 0 || left == kNever)
      return sys_call(SYS_epoll_pwait, epoll, sys_arg(events_), kEvents, left == 0 ? 0 : -1, 0, 8);
    if (exact_) {
      timespec ts{left / kSecond, left % kSecond};
      return sys_call(SYS_epoll_pwait2, epoll, sys_arg(events_), kEvents, sys_arg(&ts), 0, 8);
    }
    int64_t ms = (left + kMilli - 1) / kMilli;
    return sys_call(SYS_epoll_pwait, epoll, sys_arg(events_), kEvents, ms < INT32_MAX ? ms : INT32_MAX, 0, 8);
  }

  void happened(Registration* g, uint32_t what) {
    if (g->waiting.load(std::memory_order_relaxed) == 0) return;
    bool any = false;
    if ((what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) any |= serve(&g->readers, false);
    if ((what & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) any |= serve(&g->writers, false);
    uint32_t left = 0;
    for (ListNode* node = g->pollers.head.next; node != &g->pollers.head;) {
      auto* w = static_cast<Waiting*>(node);
      node = node->next;
      uint32_t hit = what & (w->request.flags | EPOLLERR | EPOLLHUP);
      if (hit != 0) {
        end(w, static_cast<int32_t>(hit));
        any = true;
      } else {
        left |= w->request.flags;
      }
    }
    if (g->waiting.load(std::memory_order_relaxed) == 0) return;
    g->poll_events = left;
    if (any) {
      g->fruitless = 0;
      g->nap_ns = 0;
    } else if (g->fruitless < 2) {
      g->fruitless++;
    }
    // A state that lasts and helps nobody (an error queue that is not read) would be told again and again.
    if (g->look != Registration::on_events ||
        (g->fruitless == 2 && (poll_now(g->fd, events_of(g)) & ~POLLNVAL) != 0)) {
      take_nap(g);
    } else {
      arm(g);
    }
  }

  // Does what the first ones want until it would block. all: what cannot be done here goes back to the hook.
  bool serve(List* list, bool all) {
    bool any = false;
    while (auto* w = static_cast<Waiting*>(list->front())) {
      if (!attempt(w, w->home->fd, w->home->kept)) {
        if (!all) break;
        end(w, -EAGAIN);
      }
      any = true;
    }
    return any;
  }

  bool attempt(Waiting* w, int fd, bool kept) {
    bool native = false;
    long r = try_request(w->request, fd, kept, &timer_, &native);
    if (r == -EAGAIN && !native) return false;
    end(w, static_cast<int32_t>(r));
    return true;
  }

  void end(Waiting* w, int32_t res) {
    w->res = res;
    w->ended = true;
    Registration* g = w->home;
    if (g != nullptr) {
      List::remove(w);
      if (is_blind(w->request)) g->look = Registration::on_events;
      if (g->waiting.fetch_sub(1, std::memory_order_relaxed) == 1 && (g->kept || g->fd < 0))
        discard(g, w->op);
    }
    ended_.push_back(w);
    ended_count_.store(ended_count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  unsigned finish_ended() {
    unsigned n = 0;
    while (ended_count_.load(std::memory_order_relaxed) != 0) {
      Op* op;
      int32_t res;
      {
        Locked hold(lock_);
        auto* w = static_cast<Waiting*>(ended_.pop_front());
        ended_count_.store(ended_count_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
        op = w->op;
        res = w->res;
        op->state = nullptr;
        waitings_.give(w);
      }
      in_flight_.store(in_flight_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
      op_finish(op, res);
      n++;
    }
    return n;
  }

  // ---- naps: looking again after a while ----

  void take_nap(Registration* g) {
    if (g->nap.linked()) return;
    g->nap_ns = g->nap_ns == 0 ? kShortNap : g->nap_ns < kLongNap ? g->nap_ns * 2 : kLongNap;
    g->due = now_ns() + g->nap_ns;
    look_again_at(g->due);
    naps_.push_back(&g->nap);
  }

  void look_again_at(int64_t due) {
    if (due < next_nap_.load(std::memory_order_relaxed)) next_nap_.store(due, std::memory_order_relaxed);
  }

  void end_naps() {
    int64_t now = now_ns();
    Locked hold(lock_);
    if (now < next_nap_.load(std::memory_order_relaxed)) return;
    List due;
    next_nap_.store(kNever, std::memory_order_relaxed);
    for (ListNode* node = naps_.head.next; node != &naps_.head;) {
      Registration* g = napping(node);
      node = node->next;
      if (g->due > now) {
        look_again_at(g->due);
        continue;
      }
      List::remove(&g->nap);
      due.push_back(&g->nap);
    }
    while (ListNode* node = due.pop_front()) {
      Registration* g = napping(node);
      if (g->waiting.load(std::memory_order_relaxed) == 0) {
        g->look = Registration::on_events;
        g->nap_ns = 0;
      } else if (g->look == Registration::by_trying) {
        happened(g, EPOLLOUT | poll_now(g->fd, events_of(g)));
      } else if (g->look == Registration::by_looking) {
        happened(g, poll_now(g->fd, events_of(g)));
      } else {
        arm(g);
      }
    }
  }
  static Registration* napping(ListNode* node) {
    return reinterpret_cast<Registration*>(reinterpret_cast<char*>(node) - offsetof(Registration, nap));
  }

  // ---- descriptors that go away under a request ----

  // The requests that wait for g go on with a copy of its file. Without a free number that is out of reach: then only
  // time-outs, signals and cancels end them. Any thread.
  void keep_file(Registration* g) {
    {
      Locked hold(lock_);
      if (g->waiting.load(std::memory_order_relaxed) == 0) return;
      Registration* copy = new_registration();
      if (copy == nullptr) return;
      copy->kept = fd_copy_own(g->fd, &copy->fd);
      move_all(g, copy);
      epoll_event unused{};
      if (g->known) control(EPOLL_CTL_DEL, g->fd, &unused);
      g->known = false;
      g->look = Registration::on_events;
      arm(copy);
    }
    ring_bell();  // for what arm() may have ended, or wants to look at again
  }

  // The same for the one request that comes while its number is being closed: whichever file that is now, it stays that.
  Registration* set_aside(Registration* g, Waiting* w) {
    Registration* copy = new_registration();
    if (copy == nullptr) return g;
    copy->kept = fd_copy_own(g->fd, &copy->fd);
    if (!copy->kept) {
      registrations_.give(copy);
      return g;
    }
    move(w, g, copy);
    return copy;
  }

  // What waits for g waits for a file that has no number any more; not `newest`, which is for the one that has it now.
  void strand_others(Registration* g, Waiting* newest) {
    Registration* old = new_registration();
    if (old == nullptr) return;
    move_all(g, old);
    if (newest != nullptr) move(newest, old, g);
    if (old->waiting.load(std::memory_order_relaxed) == 0) registrations_.give(old);
  }

  static void move(Waiting* w, Registration* from, Registration* to) {
    List::remove(w);
    from->waiting.fetch_sub(1, std::memory_order_relaxed);
    join(to, w, waits_for(w->request));
  }

  static void move_all(Registration* from, Registration* to) {
    for (List Registration::*list :
         {&Registration::readers, &Registration::writers, &Registration::pollers}) {
      while (auto* w = static_cast<Waiting*>((from->*list).pop_front())) {
        w->home = to;
        (to->*list).push_back(w);
      }
    }
    to->poll_events = from->poll_events;
    to->look = from->look;
    to->waiting.store(from->waiting.load(std::memory_order_relaxed), std::memory_order_relaxed);
    from->waiting.store(0, std::memory_order_relaxed);
    from->poll_events = 0;
  }

  // The last request of a file whose number the program has taken away. Its waiter closes the copy.
  void discard(Registration* g, Op* last) {
    if (g->nap.linked()) List::remove(&g->nap);
    if (!g->kept) {
      registrations_.give(g);
      return;
    }
    epoll_event unused{};
    if (g->known) control(EPOLL_CTL_DEL, g->fd, &unused);
    last->keeps = &g->fd;
  }

  int epoll_ = -1, bell_ = -1;  // rewritten by fd_make_room
  int watch_fd_ = -1;           // the number that epoll_ had at start, and still has in sysmon's table
  bool exact_ = false;          // epoll_pwait2 is there: time-outs in nanoseconds
  std::atomic<uint32_t> in_flight_{0}, ended_count_{0};
  std::atomic<int64_t> next_nap_{kNever};

  // Registrations, requests and pools: the owner, and whoever closes a descriptor. Held across calls that do not block.
  Lock lock_;
  Table table_;
  Pool<Registration> registrations_;
  Pool<Waiting> waitings_;
  List ended_, naps_;
  BriefTimer timer_;
  epoll_event events_[kEvents];
};

namespace {

constexpr int kMostEngines = 64;
EpollEngine* engines[kMostEngines];
std::atomic<int> engine_count{0};

bool is_range(int first, int last) { return first != last; }

}  // namespace

EngineFeatures engine_features;

Engine* epoll_make(int* err) {
  *err = ENOMEM;
  int n = engine_count.load(std::memory_order_relaxed);
  void* memory = n < kMostEngines ? sys_map(round_up(sizeof(EpollEngine), kPage)) : nullptr;
  if (memory == nullptr) return nullptr;
  auto* e = new (memory) EpollEngine;
  *err = e->open();
  if (*err != 0) return nullptr;
  engine_features = {true, false};
  engines[n] = e;
  engine_count.store(n + 1, std::memory_order_release);
  return e;
}

void engine_close_begins(int first, int last) {
  if (engine_features.holds_files || first < 0) return;
  std::atomic<uint32_t>& mark =
      is_range(first, last) ? closing_ranges : closing[static_cast<unsigned>(first) % kClosing];
  mark.fetch_add(1, std::memory_order_seq_cst);
  int n = engine_count.load(std::memory_order_acquire);
  for (int i = 0; i < n; i++) engines[i]->keep_files(first, last);
}

void engine_close_ends(int first, int last) {
  if (engine_features.holds_files || first < 0) return;
  std::atomic<uint32_t>& mark =
      is_range(first, last) ? closing_ranges : closing[static_cast<unsigned>(first) % kClosing];
  mark.fetch_sub(1, std::memory_order_seq_cst);
}

void engine_kept_release(int* kept) {
  auto* g = reinterpret_cast<Registration*>(reinterpret_cast<char*>(kept) - offsetof(Registration, fd));
  fd_disown(kept);
  g->engine->recycle(g);
}

void epoll_after_fork() {
  engine_count.store(0, std::memory_order_relaxed);
  for (auto& mark : closing) mark.store(0, std::memory_order_relaxed);
  closing_ranges.store(0, std::memory_order_relaxed);
}

}  // namespace vthr
