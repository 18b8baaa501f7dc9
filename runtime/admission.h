// The cap (DESIGN section 5): a fiber needs a slot to run; it gives it up while it waits long for others.
#pragma once
#include "runtime/fiber.h"

namespace vthr {

// A new fiber: 0 it has a slot (or there is no cap) and may be queued, 1 it waits for admission and will be queued
// later, -EAGAIN refused (reject). Under `block` the caller waits here. Fiber (not entered) or foreign thread.
int admission_enter(Fiber* f);
// An unparked fiber: true, it may be queued now; false, it gave its slot up and will be queued when it has one again.
bool admission_gate(Fiber* f);
// The caller gave its slot to a fiber that it joins and then did not have to wait: takes a slot again. Fiber.
void admission_regain(Fiber* f);
// A fiber ended. Scheduler.
void admission_leave(Fiber* f);
// The caller joins f: a queued f gets the caller's slot, or the head of the queue. joiner nullptr: foreign thread.
void admission_joined(Fiber* f, Fiber* joiner);
// Takes slots from fibers that waited for others for a second. The service thread, several times a second.
void admission_scan(int64_t now);
uint64_t admission_queued();            // fibers queued, not started or waiting for a slot again. Any thread
int64_t admission_oldest(int64_t now);  // age of the oldest queued fiber in ns; 0 when none
bool admission_active();                // there is a cap
void admission_after_fork();

}  // namespace vthr
