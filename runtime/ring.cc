#include "runtime/ring.h"

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime/lock.h"
#include "runtime/sys.h"

// liburing's own step from "prepared" to "visible to the kernel": in its archive, not in its header.
extern "C" int __io_uring_flush_sq(struct io_uring* ring);

namespace vthr {

namespace {

RingFeatures features;
// valgrind runs one thread at a time and does not know that io_uring_enter may block: it would stand still.
bool under_valgrind;

// Descriptors of the runtime, few: written at start, at hand-offs and when the program wants the number; read by the
// hooks of close and its like.
//   number: 0 (a free place) -> fd + 1   adopt(), under own_lock, after `users` (release)
//           fd + 1 -> another + 1        fd_make_room(), under own_lock
//           fd + 1 -> 0                  disown(): the ring is abandoned
// Pairs: release with own()'s acquire.
struct OwnFd {
  std::atomic<int> number{0};
  int* users[2] = {};  // where the runtime keeps it
};
constexpr size_t kMaxFds = 512;
OwnFd own_fds[kMaxFds];
std::atomic<size_t> own_fd_places{0};  // used so far
Lock own_lock;

// Above what programs use, but below 1008: a larger table of descriptors makes select() with a large first argument
// touch memory beyond an fd_set, which it natively does not.
constexpr int kAbove = 1008;

// A copy of `fd` with the highest free number; -1 when that is not higher than `floor`.
int copy_high(int fd, int floor) {
  rlimit lim{};
  sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, sys_arg(&lim));
  int target = lim.rlim_cur < static_cast<rlim_t>(kAbove) ? static_cast<int>(lim.rlim_cur) : kAbove;
  while (--target > floor) {
    if (sys_call(SYS_fcntl, target, F_GETFD) >= 0) continue;  // in use
    long r = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, target);
    if (r == target) return target;
    if (r < 0) return -1;
    sys_call(SYS_close, r);  // another thread took the number meanwhile
  }
  return -1;
}

// Moves *where high and remembers it as the runtime's.
void adopt(int* where, int* where_too = nullptr) {
  int high = copy_high(*where, *where);
  if (high >= 0) {
    sys_call(SYS_close, *where);
    *where = high;
  }
  if (where_too != nullptr) *where_too = *where;
  Locked hold(own_lock);
  size_t n = own_fd_places.load(std::memory_order_relaxed), i = 0;
  while (i < n && own_fds[i].number.load(std::memory_order_relaxed) != 0) i++;
  if (i == kMaxFds) return;
  own_fds[i].users[0] = where;
  own_fds[i].users[1] = where_too;
  own_fds[i].number.store(*where + 1, std::memory_order_release);
  if (i == n) own_fd_places.store(n + 1, std::memory_order_release);
}

OwnFd* own(int fd) {
  if (fd < 0) return nullptr;
  size_t n = own_fd_places.load(std::memory_order_acquire);
  for (size_t i = 0; i < n; i++) {
    if (own_fds[i].number.load(std::memory_order_acquire) == fd + 1) return &own_fds[i];
  }
  return nullptr;
}

void disown(int fd) {
  if (OwnFd* o = own(fd)) o->number.store(0, std::memory_order_release);
  sys_call(SYS_close, fd);
}

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
  adopt(&b->fd);
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
    p.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL;
    p.cq_entries = kCompletions;
    int r = io_uring_queue_init_params(kEntries, &ring_, &p);
    if (r == -EINVAL) {  // SUBMIT_ALL and COOP_TASKRUN came with Linux 5.18 and 5.19
      memset(&p, 0, sizeof p);
      p.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
      p.cq_entries = kCompletions;
      r = io_uring_queue_init_params(kEntries, &ring_, &p);
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
    probe();
    adopt(&ring_.ring_fd, &ring_.enter_ring_fd);
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

  void abandon() override {
    disown(ring_.ring_fd);
    disown(bell_.load(std::memory_order_relaxed)->fd);
  }

 private:
  // On the ring itself: the end of a temporary one would interrupt the next calls of the thread that started us.
  void probe() {
    io_uring_probe* p = io_uring_get_probe_ring(&ring_);
    if (p == nullptr) return;
    // POLL_FIRST came with Linux 5.19, as did IORING_OP_SOCKET; an unknown flag in ioprio gives -EINVAL before
    features.poll_first = io_uring_opcode_supported(p, IORING_OP_SOCKET) != 0;
    features.waitid = io_uring_opcode_supported(p, kOpWaitid) != 0;
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

const RingFeatures& ring_features() { return features; }

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

bool fd_is_ours(int fd) { return own(fd) != nullptr; }

int fd_next_own(int from) {
  int next = -1;
  size_t n = own_fd_places.load(std::memory_order_acquire);
  for (size_t i = 0; i < n; i++) {
    int fd = own_fds[i].number.load(std::memory_order_relaxed) - 1;
    if (fd >= from && (next < 0 || fd < next)) next = fd;
  }
  return next;
}

bool fd_make_room(int fd) {
  int other = copy_high(fd, 2);
  if (other < 0) return false;
  {
    Locked hold(own_lock);
    if (OwnFd* o = own(fd)) {
      for (int* user : o->users) {
        if (user != nullptr) __atomic_store_n(user, other, __ATOMIC_RELAXED);
      }
      o->number.store(other + 1, std::memory_order_release);
      return true;
    }
  }
  sys_call(SYS_close, other);  // another thread was faster
  return true;
}

void ring_after_fork() {
  own_lock.reset();
  bells_lock.reset();
  free_bells = nullptr;
  size_t n = own_fd_places.load(std::memory_order_relaxed);
  for (size_t i = 0; i < n; i++) {
    int number = own_fds[i].number.load(std::memory_order_relaxed);
    if (number != 0) disown(number - 1);
  }
}

}  // namespace vthr
