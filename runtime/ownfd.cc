#include "runtime/ownfd.h"

#include <fcntl.h>
#include <sys/resource.h>

#include "runtime/base.h"
#include "runtime/lock.h"
#include "runtime/sys.h"

namespace vthr {

namespace {

// Few: written at start, at hand-offs, when the program closes a descriptor that a fiber waits for or wants the number;
// read by the hooks of close and its like.
//   number: 0 (a free place) -> fd + 1   remember(), under own_lock, after `users` (release)
//           fd + 1 -> another + 1        fd_make_room(), under own_lock
//           fd + 1 -> 0                  fd_disown(): nobody uses it any more
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

bool remember(int* where, int* where_too) {
  Locked hold(own_lock);
  size_t n = own_fd_places.load(std::memory_order_relaxed), i = 0;
  while (i < n && own_fds[i].number.load(std::memory_order_relaxed) != 0) i++;
  if (i == kMaxFds) return false;
  own_fds[i].users[0] = where;
  own_fds[i].users[1] = where_too;
  own_fds[i].number.store(*where + 1, std::memory_order_release);
  if (i == n) own_fd_places.store(n + 1, std::memory_order_release);
  return true;
}

OwnFd* own(int fd) {
  if (fd < 0) return nullptr;
  size_t n = own_fd_places.load(std::memory_order_acquire);
  for (size_t i = 0; i < n; i++) {
    if (own_fds[i].number.load(std::memory_order_acquire) == fd + 1) return &own_fds[i];
  }
  return nullptr;
}

}  // namespace

void fd_adopt(int* where, int* where_too) {
  int high = copy_high(*where, *where);
  if (high >= 0) {
    sys_call(SYS_close, *where);
    *where = high;
  }
  if (where_too != nullptr) *where_too = *where;
  remember(where, where_too);
}

bool fd_copy_own(int fd, int* where) {
  *where = copy_high(fd, 2);
  if (*where < 0) return false;
  if (remember(where, nullptr)) return true;
  sys_call(SYS_close, *where);
  *where = -1;
  return false;
}

void fd_disown(int* where) {
  int fd;
  {
    Locked hold(own_lock);  // against fd_make_room
    fd = *where;
    if (OwnFd* o = own(fd)) o->number.store(0, std::memory_order_release);
  }
  sys_call(SYS_close, fd);
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

void own_fds_after_fork() {
  own_lock.reset();
  size_t n = own_fd_places.load(std::memory_order_relaxed);
  for (size_t i = 0; i < n; i++) {
    int number = own_fds[i].number.load(std::memory_order_relaxed);
    if (number == 0) continue;
    own_fds[i].number.store(0, std::memory_order_relaxed);
    sys_call(SYS_close, number - 1);
  }
}

}  // namespace vthr
