// The parking lot (DESIGN D4): wait on an address, wake by address. Every lock of the program, its futex calls and
// joins meet here; fibers park, foreign threads sleep on a futex of their own.
#pragma once
#include "runtime/base.h"
#include "runtime/list.h"
#include "runtime/lock.h"
#include "runtime/wait.h"

namespace vthr {

struct Fiber;

struct ParkArgs {
  Reason reason = Reason::none;
  // Under the bucket lock, before the wait begins: must it still be waited for? nullptr: yes. Must not block.
  bool (*still)(const void* key, void* arg) = nullptr;
  void* still_arg = nullptr;
  // After the waiter is published and before it sleeps: cond_wait unlocks its mutex here.
  void (*before_sleep)(void* arg) = nullptr;
  void* before_arg = nullptr;
  int64_t deadline = kNever;  // CLOCK_MONOTONIC, ns
  bool deaf = false;          // signals and cancels do not end this wait (mutexes and their like)
  bool point = false;         // a cancellation point: cancel_foreign_wait may end it even when it is deaf
  uint32_t tag = 1;           // compared with the waker's mask
};

// Waits until a waker of `key` chooses the caller. Fiber (not entered) or foreign thread.
Wake park_on(const void* key, const ParkArgs& args);

// Wakes the longest waiting one, or all, on `key` whose tag meets `mask`; returns how many. Any thread.
size_t unpark_one(const void* key, uint32_t mask = ~0u);
size_t unpark_some(const void* key, size_t most, uint32_t mask = ~0u);
inline size_t unpark_all(const void* key) { return unpark_some(key, SIZE_MAX); }
// Wakes up to `wake` waiters of `from` and moves up to `move` others to `to` (FUTEX_REQUEUE). `still`, under both
// bucket locks, may refuse: then -1. Returns woken + moved; *woken: how many were woken.
long unpark_requeue(const void* from, size_t wake, const void* to, size_t move,
                    bool (*still)(const void*, void*), void* still_arg, size_t* woken = nullptr);
// Is anybody waiting on `key`? A snapshot.
bool anybody_parked_on(const void* key);

// For pthread_kill and pthread_cancel: ends the wait of a parked fiber, if that wait allows it. Any thread.
void interrupt_wait(Fiber* f, bool cancel);

// The same for pthread_cancel of a thread that parks on a futex: foreign, or a bound fiber. Its cancelhandling word says
// already that it is cancelled. Any thread.
void cancel_foreign_wait(void* tcb);

void parking_after_fork();

}  // namespace vthr
