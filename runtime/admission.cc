#include "runtime/admission.h"

#include <cerrno>

#include "runtime/options.h"
#include "runtime/parking.h"
#include "runtime/sched.h"

namespace vthr {

namespace {

constexpr int64_t kGiveUpAfter = kSecond;

// Guarded by `lock`: who holds slots, who waits for one. A fiber is in one list at most, by Fiber::admission.
Lock lock;
List holders;    // slotting held
List again;      // slotting readmit: unparked without a slot; served first
List newcomers;  // slotting queued: not started
int in_use;
std::atomic<uint64_t> queued_count{0};

Fiber* fiber_of_node(ListNode* n) {
  return reinterpret_cast<Fiber*>(reinterpret_cast<char*>(n) - offsetof(Fiber, admission));
}

void hold_slot(Fiber* f) {
  f->slotting = Slotting::held;
  f->hold_since = 0;
  holders.push_back(&f->admission);
  in_use++;
}

// Hands free slots out; returns the fibers that may run now, linked by q_next. Call with the lock held.
Fiber* grant() {
  Fiber* run = nullptr;
  while (in_use < options.max_concurrency) {
    ListNode* n = again.pop_front();
    if (n == nullptr) n = newcomers.pop_front();
    if (n == nullptr) break;
    Fiber* f = fiber_of_node(n);
    queued_count.fetch_sub(1, std::memory_order_relaxed);
    hold_slot(f);
    f->q_next = run;
    run = f;
  }
  return run;
}

void run_all(Fiber* f) {
  while (f != nullptr) {
    Fiber* next = f->q_next;
    if (!f->regains_slot || f->park.unpark()) {
      f->regains_slot = false;
      ready(f);
    }
    // Under `block` its creator waits for this. f may have ended by now: its record stays.
    if (options.admission == kAdmitBlock) unpark_all(&f->slotting);
    f = next;
  }
}

}  // namespace

bool admission_active() { return options.max_concurrency > 0; }

int admission_enter(Fiber* f) {
  if (VTHR_LIKELY(!admission_active())) return 0;
  uint64_t id = f->id;
  Fiber* self = fiber_here();
  Fiber* run = nullptr;
  {
    Locked hold(lock);
    if (in_use < options.max_concurrency && again.empty() && newcomers.empty()) {
      hold_slot(f);
      return 0;
    }
    if (options.admission == kAdmitReject) return -EAGAIN;
    f->slotting = Slotting::queued;
    f->hold_since = now_ns();
    newcomers.push_back(&f->admission);
    queued_count.fetch_add(1, std::memory_order_relaxed);
    if (options.admission == kAdmitBlock && self != nullptr && self->slotting == Slotting::held) {
      // A creator that waits does no work: its slot serves the head of the queue at once, not only after a second.
      List::remove(&self->admission);
      self->slotting = Slotting::released;
      in_use--;
      run = grant();
    }
  }
  run_all(run);
  if (options.admission == kAdmitQueue) return 1;
  // The creator waits until the new fiber got a slot. (Waiting for a free slot and then taking it starves: creators
  // that gave up their own slots meanwhile need one each to look.)
  ParkArgs args;
  args.reason = Reason::create;
  args.deaf = true;
  args.still = [](const void* key, void* want) {
    auto* waiting = reinterpret_cast<const Fiber*>(static_cast<const char*>(key) - offsetof(Fiber, slotting));
    return waiting->id == *static_cast<uint64_t*>(want) && waiting->slotting == Slotting::queued;
  };
  args.still_arg = &id;
  while (park_on(&f->slotting, args) != Wake::invalid) {
  }
  if (self != nullptr) admission_regain(self);
  return 1;
}

bool admission_gate(Fiber* f) {
  if (VTHR_LIKELY(!admission_active())) return true;
  Fiber* run;
  {
    Locked hold(lock);
    if (f->slotting != Slotting::released) return true;
    f->slotting = Slotting::readmit;
    again.push_back(&f->admission);
    queued_count.fetch_add(1, std::memory_order_relaxed);
    run = grant();
  }
  run_all(run);
  return false;
}

void admission_regain(Fiber* f) {
  if (VTHR_LIKELY(!admission_active()) || f->slotting != Slotting::released) return;
  enter(f);
  Fiber* run;
  {
    Locked hold(lock);
    f->slotting = Slotting::readmit;
    f->regains_slot = true;
    again.push_back(&f->admission);
    queued_count.fetch_add(1, std::memory_order_relaxed);
    run = grant();
  }
  run_all(run);
  park(f, Reason::create, nullptr);
  f->regains_slot = false;
  leave(f);
}

void admission_leave(Fiber* f) {
  if (VTHR_LIKELY(!admission_active())) return;
  Fiber* run;
  {
    Locked hold(lock);
    if (f->slotting == Slotting::held) {
      List::remove(&f->admission);
      in_use--;
    }
    f->slotting = Slotting::none;
    run = grant();
  }
  run_all(run);
}

void admission_joined(Fiber* f, Fiber* joiner) {
  if (VTHR_LIKELY(!admission_active())) return;
  Fiber* run = nullptr;
  {
    Locked hold(lock);
    if (f->slotting != Slotting::queued) return;
    List::remove(&f->admission);
    if (joiner != nullptr && joiner->slotting == Slotting::held) {
      List::remove(&joiner->admission);
      joiner->slotting = Slotting::released;
      in_use--;
      queued_count.fetch_sub(1, std::memory_order_relaxed);
      hold_slot(f);
      f->q_next = nullptr;
      run = f;
    } else {
      newcomers.push_front(&f->admission);
      run = grant();
    }
  }
  run_all(run);
}

void admission_scan(int64_t now) {
  if (!admission_active()) return;
  Fiber* run = nullptr;
  {
    Locked hold(lock);
    // nobody waits for a slot; under `reject` the next one comes without waiting and must find it free
    if (again.empty() && newcomers.empty() && options.admission != kAdmitReject) return;
    for (ListNode *n = holders.head.next, *next; n != &holders.head; n = next) {
      next = n->next;
      Fiber* f = fiber_of_node(n);
      if (!f->park.is_parked()) continue;
      Reason r = f->reason.load(std::memory_order_relaxed);
      if (reason_is_own_request(r) || now - f->hold_since < kGiveUpAfter || f->hold_since == 0) continue;
      List::remove(n);
      f->slotting = Slotting::released;
      // An unpark before this point saw `held` and queued the fiber: then it keeps its slot.
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (!f->park.is_parked()) {
        f->slotting = Slotting::held;
        holders.push_front(n);
        continue;
      }
      in_use--;
    }
    run = grant();
  }
  run_all(run);
}

uint64_t admission_queued() { return queued_count.load(std::memory_order_relaxed); }

int64_t admission_oldest(int64_t now) {
  Locked hold(lock);
  ListNode* n = newcomers.front();
  return n == nullptr ? 0 : now - fiber_of_node(n)->hold_since;
}

void admission_after_fork() {
  lock.reset();
  holders.clear();
  again.clear();
  newcomers.clear();
  in_use = 0;
  queued_count.store(0, std::memory_order_relaxed);
}

}  // namespace vthr
