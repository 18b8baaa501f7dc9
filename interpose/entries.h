// What a redirected entry of libc runs (libc_entry.def): the hook's own code for a fiber; for any other thread what libc's
// code did, by the system call itself. The hooks (layer 1) call libc's function for other threads as ever, which another
// preloaded library may stand in front of, and come here at its end: nothing here may call a function of the table.
#pragma once
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ctime>

namespace vthr {

// A system call as libc makes it in a cancellation point, on a thread that is not a fiber. -errno.
long cancellable(long nr, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0);

ssize_t entry_read(int fd, void* buf, size_t n);
ssize_t entry_write(int fd, const void* buf, size_t n);
ssize_t entry_readv(int fd, const iovec* iov, int n);
ssize_t entry_writev(int fd, const iovec* iov, int n);
ssize_t entry_read_nocancel(int fd, void* buf, size_t n);
ssize_t entry_write_nocancel(int fd, const void* buf, size_t n);
ssize_t entry_recv(int fd, void* buf, size_t n, int flags);
ssize_t entry_recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* from, socklen_t* from_len);
ssize_t entry_recvmsg(int fd, msghdr* m, int flags);
int entry_recvmmsg(int fd, mmsghdr* v, unsigned n, int flags, timespec* limit);
ssize_t entry_send(int fd, const void* buf, size_t n, int flags);
ssize_t entry_sendto(int fd, const void* buf, size_t n, int flags, const sockaddr* to, socklen_t to_len);
ssize_t entry_sendmsg(int fd, const msghdr* m, int flags);
int entry_sendmmsg(int fd, mmsghdr* v, unsigned n, int flags);
int entry_connect(int fd, const sockaddr* addr, socklen_t len);
int entry_accept(int fd, sockaddr* addr, socklen_t* len);
int entry_accept4(int fd, sockaddr* addr, socklen_t* len, int flags);
int entry_poll(pollfd* fds, nfds_t n, int ms);
int entry_ppoll(pollfd* fds, nfds_t n, const timespec* limit, const sigset_t* mask);
int entry_select(int n, fd_set* in, fd_set* out, fd_set* ex, timeval* limit);
int entry_pselect(int n, fd_set* in, fd_set* out, fd_set* ex, const timespec* limit, const sigset_t* mask);
int entry_epoll_wait(int ep, epoll_event* events, int most, int ms);
int entry_epoll_pwait(int ep, epoll_event* events, int most, int ms, const sigset_t* mask);
int entry_epoll_pwait2(int ep, epoll_event* events, int most, const timespec* limit, const sigset_t* mask);
int entry_clock_nanosleep(clockid_t clock, int flags, const timespec* req, timespec* rem);
int entry_sched_yield();
pid_t entry_wait4(pid_t pid, int* status, int options, rusage* usage);   // child.cc
int entry_waitid(idtype_t type, id_t id, siginfo_t* info, int options);  // child.cc
void entry_lock_wait_private(int* word);
void entry_lock_wake_private(int* word);
void entry_lock_wait(int* word, int shared);
void entry_lock_wake(int* word, int shared);

}  // namespace vthr

// The hooks by names that are ours alone: a program may have a function of its own that is called `send`, which libc's
// callers never meet. VTHR_HOOK_NAME(send) in the file of the hook.
#define VTHR_HOOK_NAME(name) \
  extern "C" __attribute__((visibility("hidden"), alias(#name), copy(name))) decltype(name) hook_##name
