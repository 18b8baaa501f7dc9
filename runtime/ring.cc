// The io_uring engine (DESIGN D5). Default task work, or COOP_TASKRUN; never DEFER_TASKRUN or SINGLE_ISSUER: a worker that
// takes a carrier over must see the completions of what its predecessor submitted (D3, measured there).
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime/engine.h"
#include "runtime/lock.h"
#include "runtime/options.h"
#include "runtime/sys.h"

// liburing's own step from "prepared" to "visible to the kernel": in its archive, not in its header.
extern "C" int __io_uring_flush_sq(struct io_uring* ring);

namespace vthr {

namespace {

// What came later than io_uring itself and is used where it is there. Probed with the first ring, which all others resemble.
struct Optional {
  bool coop_taskrun = true;  // and SUBMIT_ALL: by asking for a ring that has them
  bool poll_first = false;
  bool waitid = false;  // kOpWaitid, Linux 6.7
} optional;
bool probed;
// valgrind runs one thread at a time and does not know that io_uring_enter may block: it would stand still.
bool under_valgrind;

// An eventfd with one read armed on a ring, so that another thread can end the owner's sleep. Each owner arms a bell
// of its own: a read that a blocked predecessor submitted completes only through that task.
struct Bell {
  int fd = -1;
  uint64_t value = 0;
  bool armed = false;
  Bell* next_free = nullptr;
};
Lock bells_lock;
Bell* free_bells;

Bell* bell_take() {
  {
    Locked hold(bells_lock);
    if (free_bells != nullptr) {
      Bell* b = free_bells;
      free_bells = b->next_free;
      return b;
    }
  }
  int fd = static_cast<int>(sys_call(SYS_eventfd2, 0, EFD_CLOEXEC));
  if (fd < 0) return nullptr;
  void* memory = sys_map(sizeof(Bell));
  if (memory == nullptr) {
    sys_call(SYS_close, fd);
    return nullptr;
  }
  auto* b = new (memory) Bell;
  b->fd = fd;
  fd_adopt(&b->fd);
  return b;
}

void bell_give(Bell* b) {
  Locked hold(bells_lock);
  b->next_free = free_bells;
  free_bells = b;
}

// The low bits of user_data say what completed.
constexpr uint64_t kTagMask = 3, kTagOp = 0, kTagBell = 1, kTagIgnore = 2;

class Ring final : public Engine {
 public:
  static constexpr unsigned kEntries = 512, kCompletions = 8192;

  int open() {
    io_uring_params p{};
    int r = -EINVAL;
    if (options.ring_features == kRingNone) optional.coop_taskrun = false;
    if (optional.coop_taskrun) r = init(&p, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL);
    if (r == -EINVAL) {
      optional.coop_taskrun = false;
      r = init(&p, 0);
    }
    if (r < 0) return -r;
    if ((p.features & IORING_FEAT_NODROP) == 0 || (p.features & IORING_FEAT_EXT_ARG) == 0 ||
        (p.features & IORING_FEAT_FAST_POLL) == 0) {
      io_uring_queue_exit(&ring_);
      return ENOSYS;
    }
    Bell* bell = bell_take();
    if (bell == nullptr) {
      io_uring_queue_exit(&ring_);
      return EMFILE;
    }
    bell_.store(bell, std::memory_order_release);
    io_uring_ring_dontfork(&ring_);
    if (!probed && options.ring_features != kRingNone) {
      probe_poll_first();
      probe_waitid();
    }
    probed = true;
    engine_features = {optional.poll_first, true, optional.waitid};
    fd_adopt(&ring_.ring_fd, &ring_.enter_ring_fd);
    return 0;
  }

  void queue(const Request& r, Op* op) override {
    io_uring_sqe* sqe = get_sqe();
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = r.code;
    sqe->ioprio = r.ioprio;
    sqe->fd = r.fd;
    sqe->off = r.off;
    sqe->addr = r.addr;
    sqe->len = r.len;
    if (VTHR_UNLIKELY(r.code == kOpWaitid)) {
      sqe->file_index = r.flags;
    } else {
      sqe->rw_flags = static_cast<int>(r.flags);
    }
    sqe->user_data = reinterpret_cast<uint64_t>(op) | kTagOp;
    unsubmitted_fds_.store(unsubmitted_fds_.load(std::memory_order_relaxed) | fd_bit(r.fd),
                           std::memory_order_release);
    __io_uring_flush_sq(&ring_);  // published at once, so that submit_for_owner finds it
    queued(1);
    in_flight_.store(in_flight_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  void queue_cancel(Op* op) override { cancel(reinterpret_cast<uint64_t>(op) | kTagOp); }

  unsigned round() override {
    if (unsubmitted_.load(std::memory_order_relaxed) != 0) {
      submit();
    } else if ((__atomic_load_n(ring_.sq.kflags, __ATOMIC_RELAXED) &
                (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0) {
      io_uring_get_events(&ring_);
    }
    return reap();
  }

  unsigned sleep(int64_t deadline) override {
    arm_bell();
    io_uring_cqe* cqe;
    submit();  // the requests are in the kernel before others may see that nothing is queued
    if (under_valgrind) {
      wait_by_poll(deadline);
    } else if (deadline == kNever) {
      io_uring_submit_and_wait(&ring_, 1);
    } else {
      int64_t left = deadline - now_ns();
      if (left < 0) left = 0;
      __kernel_timespec ts{left / kSecond, left % kSecond};
      io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &ts, nullptr);
    }
    return reap();
  }

  void wait_by_poll(int64_t deadline) {
    pollfd ready{ring_.ring_fd, POLLIN, 0};
    int64_t left = deadline == kNever ? 0 : deadline - now_ns();
    if (left < 0) left = 0;
    timespec ts{left / kSecond, left % kSecond};
    sys_call(SYS_ppoll, sys_arg(&ready), 1, deadline == kNever ? 0 : sys_arg(&ts), 0, 8);
    io_uring_get_events(&ring_);
  }

  void ring_bell() override {
    uint64_t one = 1;
    Bell* b = bell_.load(std::memory_order_acquire);
    sys_call(SYS_write, b->fd, sys_arg(&one), sizeof one);
  }

  int bell_fd() const override { return bell_.load(std::memory_order_acquire)->fd; }

  void new_owner() override {
    Bell* mine = bell_take();
    if (mine == nullptr) return;  // no descriptor left: the old bell still works, only later
    Bell* old = bell_.exchange(mine, std::memory_order_acq_rel);
    if (old->armed) {
      cancel(reinterpret_cast<uint64_t>(old) | kTagBell);  // its completion gives it back
    } else {
      bell_give(old);
    }
  }

  bool has_work() const override {
    return unsubmitted_.load(std::memory_order_relaxed) != 0 ||
           __atomic_load_n(ring_.cq.ktail, __ATOMIC_RELAXED) !=
               __atomic_load_n(ring_.cq.khead, __ATOMIC_RELAXED);
  }
  void submit_for_owner() override {
    // the kernel takes the ring's lock and what was published; the owner finds the head moved
    sys_call(SYS_io_uring_enter, ring_.ring_fd, kEntries, 0, 0, 0, 0);
  }
  bool has_unsubmitted(int fd) const override {
    return (unsubmitted_fds_.load(std::memory_order_acquire) & fd_bit(fd)) != 0;
  }
  uint32_t submissions() const override { return submissions_.load(std::memory_order_acquire); }
  uint32_t in_flight() const override { return in_flight_.load(std::memory_order_relaxed); }

  int watch_fd() const override { return -1; }
  const char* name() const override { return "uring"; }
  void abandon() override {
    fd_disown(&ring_.ring_fd);
    fd_disown(&bell_.load(std::memory_order_relaxed)->fd);
  }

 private:
  int init(io_uring_params* p, unsigned more_flags) {
    memset(p, 0, sizeof *p);
    p->flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP | more_flags;
    p->cq_entries = kCompletions;
    return io_uring_queue_init_params(kEntries, &ring_, p);
  }

  // Receives a byte that is there. On the ring itself: the end of a temporary one would interrupt the next calls of the
  // thread that started us.
  void probe_poll_first() {
    int pair[2];
    char byte = 0;
    if (sys_call(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sys_arg(pair)) != 0) return;
    io_uring_cqe* cqe;
    if (sys_call(SYS_write, pair[1], sys_arg(&byte), 1) == 1) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      io_uring_prep_recv(sqe, pair[0], &byte, 1, 0);
      sqe->ioprio = IORING_RECVSEND_POLL_FIRST;
      io_uring_submit(&ring_);
      if (io_uring_wait_cqe(&ring_, &cqe) == 0) {
        optional.poll_first = cqe->res == 1;
        io_uring_cqe_seen(&ring_, cqe);
      }
    }
    sys_call(SYS_close, pair[0]);
    sys_call(SYS_close, pair[1]);
  }

  void probe_waitid() {
    io_uring_probe* p = io_uring_get_probe_ring(&ring_);
    if (p == nullptr) return;
    optional.waitid = io_uring_opcode_supported(p, kOpWaitid) != 0;
    io_uring_free_probe(p);
  }

  io_uring_sqe* get_sqe() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    while (VTHR_UNLIKELY(sqe == nullptr)) {
      submit();
      if (unsubmitted_.load(std::memory_order_relaxed) != 0) reap();
      sqe = io_uring_get_sqe(&ring_);
    }
    return sqe;
  }

  void queued(uint32_t n) {
    unsubmitted_.store(unsubmitted_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }

  // What the kernel has not taken stays counted: without SUBMIT_ALL it stops at a request that it refuses.
  void note_submitted() {
    unsigned left = io_uring_sq_ready(&ring_);
    submissions_.store(submissions_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    unsubmitted_.store(left, std::memory_order_release);
    if (left == 0) unsubmitted_fds_.store(0, std::memory_order_release);
  }

  void submit() {
    int r;
    do {
      r = io_uring_submit(&ring_);
      note_submitted();
    } while (r > 0 && unsubmitted_.load(std::memory_order_relaxed) != 0);
    // -EBUSY, -EAGAIN: the completion side is full or memory is short; the caller reaps and comes again
    if (r == -EBUSY || r == -EAGAIN) io_uring_get_events(&ring_);
  }

  void cancel(uint64_t user_data) {
    io_uring_sqe* sqe = get_sqe();
    io_uring_prep_cancel64(sqe, user_data, 0);
    sqe->user_data = kTagIgnore;
    queued(1);
  }

  void arm_bell() {
    Bell* b = bell_.load(std::memory_order_relaxed);
    if (b->armed) return;
    io_uring_sqe* sqe = get_sqe();
    io_uring_prep_read(sqe, b->fd, &b->value, sizeof b->value, 0);
    sqe->user_data = reinterpret_cast<uint64_t>(b) | kTagBell;
    b->armed = true;
    queued(1);
  }

  unsigned reap() {
    unsigned head, n = 0, ops = 0;
    io_uring_cqe* cqe;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      n++;
      uint64_t data = cqe->user_data;
      switch (data & kTagMask) {
        case kTagOp:
          ops++;
          in_flight_.store(in_flight_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
          op_finish(reinterpret_cast<Op*>(data), cqe->res);
          break;
        case kTagBell: {
          auto* b = reinterpret_cast<Bell*>(data & ~kTagMask);
          b->armed = false;
          if (b != bell_.load(std::memory_order_relaxed)) bell_give(b);
          break;
        }
        default:
          break;
      }
    }
    if (n != 0) io_uring_cq_advance(&ring_, n);
    return ops;
  }

  static uint64_t fd_bit(int fd) { return 1ull << (static_cast<unsigned>(fd) & 63); }

  io_uring ring_{};
  std::atomic<uint64_t> unsubmitted_fds_{0};  // bit fd % 64
  std::atomic<Bell*> bell_{nullptr};
  std::atomic<uint32_t> unsubmitted_{0}, submissions_{0}, in_flight_{0};
};

}  // namespace

Engine* ring_make(int* err) {
  const char* preload = getenv("LD_PRELOAD");
  under_valgrind = preload != nullptr && strstr(preload, "vgpreload") != nullptr;
  void* memory = sys_map(round_up(sizeof(Ring), kPage));
  if (memory == nullptr) {
    *err = ENOMEM;
    return nullptr;
  }
  auto* ring = new (memory) Ring;
  *err = ring->open();
  return *err == 0 ? ring : nullptr;
}

void ring_after_fork() {
  bells_lock.reset();
  free_bells = nullptr;
}

}  // namespace vthr
