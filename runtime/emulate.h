// The requests of engine.h as system calls that do not block, for an engine that learns only when a descriptor is ready.
#pragma once
#include "runtime/brief.h"
#include "runtime/engine.h"

namespace vthr {

enum class Waits : uint8_t { readable, writable, polls, nothing, unknown };
Waits waits_for(const Request& r);

// Does it with `fd` in place of r.fd: its result or -errno; -EAGAIN: it would block. *native: it would, or might, block in a way
// that only the caller of the request can bear, on a thread that may sleep. own_fd: the program's number is gone, so it
// cannot; then it is made briefly.
long try_request(const Request& r, int fd, bool own_fd, BriefTimer* timer, bool* native);

// Is it to be tried before it waits? A connect, which has to begin; an accept that is in error. Others were tried by their hooks.
bool begins_with_a_try(const Request& r);

// Is it a connect that has to be tried again and again: no event tells when it would not block?
bool is_blind(const Request& r);

bool is_tcp(int fd);
uint32_t poll_now(int fd, uint32_t events);  // what of `events` is there, with POLLERR, POLLHUP, POLLNVAL

}  // namespace vthr
