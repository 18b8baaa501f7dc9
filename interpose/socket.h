// read and write on sockets, for io.cc.
#pragma once
#include <sys/uio.h>

namespace vthr {

struct Fiber;
// Result or -errno; -ENOTSOCK when fd is not a socket. own: the vector is the hook's, of one part that is not empty.
long socket_readv(Fiber* f, int fd, const iovec* iov, int n, bool own);
long socket_writev(Fiber* f, int fd, const iovec* iov, int n, bool own);

}  // namespace vthr
