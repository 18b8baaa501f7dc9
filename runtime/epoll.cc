// The epoll engine, for where io_uring is refused (DESIGN D5). An epoll instance for each carrier: whoever owns the carrier
// sees the events of all requests on it, also while a former owner is blocked. A request is registered when it is queued, once
// for the next event (EPOLLONESHOT), and done without blocking when its descriptor is ready (emulate.h). So, as with the
// ring, its result is the outcome, and of many that wait for the same thing only one is woken.
//
// Rejected: edge-triggered registrations for all that last as long as the descriptor. They save one call a wait, but a number
// that was closed where no hook sees it (fclose) would never wake again; EPOLL_CTL_MOD says whether the file is still the
// same. For connections they are worth it (registration.h).
// Letting the fiber do the call once it runs: between event and call anybody may have closed the number.
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
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

constexpr int64_t kSureAfter = kSecond;
constexpr uint32_t kSteady = EPOLLIN | EPOLLRDHUP | EPOLLET;
constexpr int64_t kShortNap = kMilli, kLongNap = 16 * kMilli;

class EpollEngine final : public Engine, public FileKeeper {
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
    index_ = r == 0 ? file_keeper_add(this) : -1;
    if (index_ < 0) abandon();
    return r < 0 ? static_cast<int>(-r) : index_ < 0 ? ENOMEM : 0;
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
    if (VTHR_UNLIKELY(steady_before_ != nullptr)) end_steady_before();
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
    for (auto* due : {&next_nap_, &check_at_}) {
      int64_t at = due->load(std::memory_order_relaxed);
      if (at < deadline) deadline = at;
    }
    return collect(deadline);
  }

  void ring_bell() override {
    uint64_t one = 1;
    sys_call(SYS_write, __atomic_load_n(&bell_, __ATOMIC_RELAXED), sys_arg(&one), sizeof one);
  }

  int bell_fd() const override { return __atomic_load_n(&bell_, __ATOMIC_RELAXED); }
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
    if (index_ >= 0) file_keeper_remove(index_);
    timer_.drop();
    fd_disown(&epoll_);
    fd_disown(&bell_);
  }

  void let_go(int fd) override {
    Locked hold(lock_);
    Registration* g = table_.get(fd);
    if (g != nullptr && g->steady && g->nobody_waits()) stop_events(g);
  }

  // The waiter of the last request has closed g's copy.
  void recycle(Registration* g) override {
    Locked hold(lock_);
    registrations_.give(g);
  }

  // engine_close_begins for this engine.
  void keep_files(int first, int last) override {
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
    g->join(w);
    if (VTHR_UNLIKELY(fd_is_closing(g->fd))) g = set_aside(g, w);
    if (is_blind(w->request)) g->look = Registration::by_trying;
    arm(g, w);
  }

  Registration* new_registration() {
    Registration* g = registrations_.take();
    if (g != nullptr) g->keeper = this;
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

  // Asks for the next event of what waits for g. The kernel looks at once, so nothing is missed that came before. newest: the
  // request that has just named the number, if that is why.
  void arm(Registration* g, Waiting* newest = nullptr) {
    if (g->fd < 0) return;
    if (g->look != Registration::on_events) {
      take_nap(g);
      return;
    }
    bool steadily = newest != nullptr && may_be_steady(g, newest);
    if (steadily && g->steady) {
      wait_steadily(g);
      return;
    }
    g->steady = steadily;
    g->may_read = false;
    epoll_event e{};
    e.events = steadily ? kSteady : g->events() | EPOLLONESHOT;
    e.data.ptr = g;
    long r = control(g->known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, g->fd, &e);
    if (r == -ENOENT) {  // our copy has moved, or another file has the number and no hook saw it
      g->known = false;
      if (!g->kept) strand_others(g, newest);
      if (g->nobody_waits()) return;
      if (!steadily) e.events = g->events() | EPOLLONESHOT;
      r = control(EPOLL_CTL_ADD, g->fd, &e);
    } else if (r == -EEXIST) {
      r = control(EPOLL_CTL_MOD, g->fd, &e);
    }
    g->known = r == 0;
    if (r == 0) {
      if (!steadily) return;
      steady_before_ = steady_keeper(g->fd, index_);
      steady_fd_ = g->fd;
      return;
    }
    g->steady = false;
    if (r == -EPERM) {
      always_ready(g);
    } else if (r == -EBADF) {
      end_all(g, -EBADF);
    } else {  // no memory for it, or an epoll descriptor nested too deeply
      g->look = Registration::by_looking;
      take_nap(g);
    }
  }

  // ---- steady registrations ----

  bool may_be_steady(Registration* g, const Waiting* w) {
    if (w->request.code != IORING_OP_RECV || g->waiting.load(std::memory_order_relaxed) != 1 || g->kept)
      return false;
    if (g->fd >= kEpochs) return false;
    uint32_t epoch = fd_epochs[g->fd].load(std::memory_order_relaxed);
    if (g->epoch != epoch) {
      g->epoch = epoch;
      g->known = g->steady = false;
      g->tcp = is_tcp(g->fd);
    }
    return g->tcp;
  }

  void wait_steadily(Registration* g) {
    g->unheard = 0;
    if (g->may_read && serve_steadily(g, EPOLLIN)) return;
    if (g->unsure.linked()) List::remove(&g->unsure);
    g->check_at = now_ns() + kSureAfter;
    if (unsure_.empty()) check_at_.store(g->check_at, std::memory_order_relaxed);
    unsure_.push_back(&g->unsure);
  }

  // A read that found less than it asked for has emptied the socket, but for its end, which may have come before.
  bool serve_steadily(Registration* g, uint32_t what) {
    auto* w = static_cast<Waiting*>(g->readers.front());
    bool done = attempt(w, g->fd, false);
    g->may_read =
        done && (w->res <= 0 || static_cast<uint32_t>(w->res) == w->request.len ||
                 (w->request.flags & MSG_PEEK) != 0 || (what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
    if (done && g->unsure.linked()) List::remove(&g->unsure);
    return done;
  }

  void happened_steadily(Registration* g, uint32_t what) {
    if (!g->nobody_waits()) {
      serve_steadily(g, what);
      return;
    }
    g->may_read = true;
    if (++g->unheard == 2) stop_events(g);
  }

  void stop_events(Registration* g) {
    epoll_event e{};
    e.events = EPOLLONESHOT;
    e.data.ptr = g;
    control(EPOLL_CTL_MOD, g->fd, &e);
    g->steady = false;
  }

  // A fiber took its connection along to this engine: the former one would be woken by each of its events. Not under the
  // lock, for that one does the same.
  void end_steady_before() {
    FileKeeper* before = steady_before_;
    steady_before_ = nullptr;
    before->let_go(steady_fd_);
  }

  void check_unsure() {
    int64_t now = now_ns();
    Locked hold(lock_);
    while (ListNode* node = unsure_.front()) {
      Registration* g = Registration::doubted(node);
      check_at_.store(g->check_at, std::memory_order_relaxed);
      if (g->check_at > now) return;
      List::remove(node);
      if (g->nobody_waits()) continue;
      g->steady = false;
      arm(g, static_cast<Waiting*>(
                 g->readers.front()));  // the kernel looks again, or says that it is another file
    }
    check_at_.store(kNever, std::memory_order_relaxed);
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
      if (VTHR_UNLIKELY(check_at_.load(std::memory_order_relaxed) != kNever)) check_unsure();
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
    if (VTHR_LIKELY(g->steady)) {
      happened_steadily(g, what);
      return;
    }
    if (g->nobody_waits()) return;
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
    if (g->nobody_waits()) return;
    g->poll_events = left;
    if (any) {
      g->fruitless = 0;
      g->nap_ns = 0;
    } else if (g->fruitless < 2) {
      g->fruitless++;
    }
    // A state that lasts and helps nobody (an error queue that is not read) would be told again and again.
    if (g->look != Registration::on_events ||
        (g->fruitless == 2 && (poll_now(g->fd, g->events()) & ~POLLNVAL) != 0)) {
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
      Registration* g = Registration::napping(node);
      node = node->next;
      if (g->due > now) {
        look_again_at(g->due);
        continue;
      }
      List::remove(&g->nap);
      due.push_back(&g->nap);
    }
    while (ListNode* node = due.pop_front()) {
      Registration* g = Registration::napping(node);
      if (g->nobody_waits()) {
        g->look = Registration::on_events;
        g->nap_ns = 0;
      } else if (g->look == Registration::by_trying) {
        happened(g, EPOLLOUT | poll_now(g->fd, g->events()));
      } else if (g->look == Registration::by_looking) {
        happened(g, poll_now(g->fd, g->events()));
      } else {
        arm(g);
      }
    }
  }
  // ---- descriptors that go away under a request ----

  // The requests that wait for g go on with a copy of its file. Without a free number that is out of reach: then only
  // time-outs, signals and cancels end them. Any thread.
  void keep_file(Registration* g) {
    {
      Locked hold(lock_);
      if (g->nobody_waits()) return;
      Registration* copy = new_registration();
      if (copy == nullptr) return;
      copy->kept = fd_copy_own(g->fd, &copy->fd);
      copy->take_all_of(g);
      forget(g);
      g->look = Registration::on_events;
      arm(copy);
    }
    ring_bell();  // for what arm() may have ended, or wants to look at again
  }

  void forget(Registration* g) {
    epoll_event unused{};
    if (g->known) control(EPOLL_CTL_DEL, g->fd, &unused);
    g->known = g->steady = g->may_read = false;
    if (g->unsure.linked()) List::remove(&g->unsure);
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
    g->leave(w);
    copy->join(w);
    return copy;
  }

  // What waits for g waits for a file that has no number any more; not `newest`, which is for the one that has it now.
  void strand_others(Registration* g, Waiting* newest) {
    Registration* old = new_registration();
    if (old == nullptr) return;
    old->take_all_of(g);
    if (newest != nullptr) {
      old->leave(newest);
      g->join(newest);
    }
    if (old->nobody_waits()) registrations_.give(old);
  }

  // The last request of a file whose number the program has taken away. Its waiter closes the copy.
  void discard(Registration* g, Op* last) {
    if (g->nap.linked()) List::remove(&g->nap);
    if (!g->kept) {
      registrations_.give(g);
      return;
    }
    forget(g);
    last->keeps = &g->fd;
  }

  int epoll_ = -1, bell_ = -1;  // rewritten by fd_make_room
  int watch_fd_ = -1;           // the number that epoll_ had at start, and still has in sysmon's table
  bool exact_ = false;          // epoll_pwait2 is there: time-outs in nanoseconds
  std::atomic<uint32_t> in_flight_{0}, ended_count_{0};
  std::atomic<int64_t> next_nap_{kNever}, check_at_{kNever};

  // Registrations, requests and pools: the owner, and whoever closes a descriptor. Held across calls that do not block.
  Lock lock_;
  Table table_;
  Pool<Registration> registrations_;
  Pool<Waiting> waitings_;
  List ended_, naps_, unsure_;
  FileKeeper* steady_before_ = nullptr;
  int steady_fd_ = -1, index_ = -1;
  BriefTimer timer_;
  epoll_event events_[kEvents];
};

}  // namespace

Engine* epoll_make(int* err) {
  *err = ENOMEM;
  void* memory = sys_map(round_up(sizeof(EpollEngine), kPage));
  if (memory == nullptr) return nullptr;
  auto* e = new (memory) EpollEngine;
  *err = e->open();
  if (*err != 0) return nullptr;
  engine_features = {true, false};
  return e;
}

}  // namespace vthr
