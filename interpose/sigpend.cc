// Pending signals of fibers: a bit each in the fiber's record, and a queue of siginfo for those that carry more than
// pthread_kill tells, and for real-time signals, of which each counts.
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <new>

#include "interpose/signal.h"

namespace vthr {

struct SignalRecord {
  SignalRecord* next;
  siginfo_t info;
  bool shared;
};

namespace {

// Guards the records of all fibers, and the pool. Nobody may be interrupted by a handler that holds it: Hushed.
Lock records_lock;
SignalRecord* pool;
constexpr size_t kPoolBytes = 16 * kPage;

SignalRecord* take_record() {
  if (pool == nullptr) {
    auto* fresh = static_cast<SignalRecord*>(sys_map(kPoolBytes));
    if (fresh == nullptr) return nullptr;
    for (size_t i = 0; i < kPoolBytes / sizeof *fresh; i++) {
      fresh[i].next = pool;
      pool = &fresh[i];
    }
  }
  SignalRecord* r = pool;
  pool = r->next;
  return r;
}

void give_record(SignalRecord* r) {
  r->next = pool;
  pool = r;
}

void fill_plain(int sig, siginfo_t* info) {
  memset(info, 0, sizeof *info);
  info->si_signo = sig;
  info->si_code = SI_TKILL;
  info->si_pid = static_cast<pid_t>(sys_call(SYS_getpid));
  info->si_uid = static_cast<uid_t>(sys_call(SYS_getuid));
}

// The first record that `match` likes, out of the list; nullptr: none.
template <class Match>
SignalRecord* unlink(Fiber* f, Match match) {
  for (SignalRecord** p = &f->signal_records; *p != nullptr; p = &(*p)->next) {
    SignalRecord* r = *p;
    if (!match(r)) continue;
    *p = r->next;
    return r;
  }
  return nullptr;
}

// After a record of `sig` left the list: the bits say what is left.
void settle_bits(Fiber* f, int sig) {
  bool more = false, shared = false;
  for (SignalRecord* r = f->signal_records; r != nullptr; r = r->next) {
    if (r->info.si_signo != sig) continue;
    more = true;
    shared |= r->shared;
  }
  if (!shared) f->shared_pending.fetch_and(~sig_bit(sig), std::memory_order_relaxed);
  if (!more) f->pending.fetch_and(~sig_bit(sig), std::memory_order_acq_rel);
}

}  // namespace

int signal_post(Fiber* f, int sig, const siginfo_t* info, bool shared) {
  if (info == nullptr && sig < kFirstRealtime) {
    f->pending.fetch_or(sig_bit(sig), std::memory_order_seq_cst);
    return 0;
  }
  Hushed hushed;
  Locked hold(records_lock);
  if (sig < kFirstRealtime && (f->pending.load(std::memory_order_relaxed) & sig_bit(sig)) != 0) return 0;
  SignalRecord* r = take_record();
  if (r == nullptr) return EAGAIN;
  r->next = nullptr;
  r->shared = shared;
  if (info != nullptr) {
    r->info = *info;
    r->info.si_signo = sig;
  } else {
    fill_plain(sig, &r->info);
  }
  SignalRecord** last = &f->signal_records;
  while (*last != nullptr) last = &(*last)->next;
  *last = r;
  if (shared) f->shared_pending.fetch_or(sig_bit(sig), std::memory_order_relaxed);
  f->pending.fetch_or(sig_bit(sig), std::memory_order_seq_cst);
  return 0;
}

int signal_take(Fiber* f, uint64_t set, siginfo_t* info) {
  for (;;) {
    uint64_t due = f->pending.load(std::memory_order_seq_cst) & set;
    if (due == 0) return 0;
    int sig = __builtin_ctzll(due) + 1;
    Hushed hushed;
    Locked hold(records_lock);
    if ((f->pending.load(std::memory_order_relaxed) & sig_bit(sig)) == 0)
      continue;  // a handler took it, or it was taken back
    SignalRecord* r = unlink(f, [=](SignalRecord* x) { return x->info.si_signo == sig; });
    if (r != nullptr) {
      *info = r->info;
      give_record(r);
    } else {
      fill_plain(sig, info);
    }
    settle_bits(f, sig);
    return sig;
  }
}

bool signal_take_back(Fiber* f, int sig) {
  Hushed hushed;
  Locked hold(records_lock);
  SignalRecord* r = unlink(f, [=](SignalRecord* x) { return x->shared && x->info.si_signo == sig; });
  if (r == nullptr) return false;
  give_record(r);
  settle_bits(f, sig);
  return true;
}

void signals_give_back(Fiber* f) {
  if (VTHR_LIKELY(f->shared_pending.load(std::memory_order_seq_cst) == 0)) return;
  for (;;) {
    siginfo_t info;
    {
      Hushed hushed;
      Locked hold(records_lock);
      SignalRecord* r = unlink(f, [=](SignalRecord* x) { return x->shared && refuses(f, x->info.si_signo); });
      if (r == nullptr) return;
      info = r->info;
      give_record(r);
      settle_bits(f, info.si_signo);
    }
    send_to_process(info.si_signo, &info);
  }
}

void signals_to_kernel(Fiber* f) {
  int tid = f->signal_tid.load(std::memory_order_seq_cst);
  if (tid == 0) return;
  long process = sys_call(SYS_getpid);
  siginfo_t info;
  while (int sig = signal_take(f, ~0ull, &info)) {
    // Only to itself may a thread send a siginfo that says kill or tgkill.
    if (sys_call(SYS_rt_tgsigqueueinfo, process, tid, sig, sys_arg(&info)) != 0)
      sys_call(SYS_tgkill, process, tid, sig);
  }
}

void signals_fiber_bound(Fiber* f) {
  uint64_t mask = f->sigmask.exchange(~0ull, std::memory_order_seq_cst);  // nobody chooses it any more
  f->handler_blocks.store(0, std::memory_order_seq_cst);
  signals_give_back(f);
  stack_t stack{};
  stack.ss_sp = f->altstack.sp;
  stack.ss_size = f->altstack.size;
  stack.ss_flags = f->altstack.sp != nullptr ? f->altstack.flags : SS_DISABLE;
  sys_call(SYS_sigaltstack, sys_arg(&stack), 0);
  f->signal_tid.store(sys_gettid(), std::memory_order_seq_cst);
  signals_to_kernel(f);
  sys_set_sigmask(mask);
}

// The end of a fiber: from here on it takes none, and what it had to itself is lost.
void signals_fiber_ends(Fiber* f) {
  if (f->signal_tid.exchange(0, std::memory_order_seq_cst) != 0) sys_set_sigmask(kWorkerMask);
  uint64_t before = f->sigmask.exchange(~0ull, std::memory_order_seq_cst);
  f->handler_blocks.store(0, std::memory_order_seq_cst);
  signals_give_back(f);
  signals_reconsider(~before);
  if (f->signal_records != nullptr) {
    Hushed hushed;
    Locked hold(records_lock);
    while (SignalRecord* r = unlink(f, [](SignalRecord*) { return true; })) give_record(r);
  }
  f->pending.store(0, std::memory_order_relaxed);
}

void signal_records_after_fork() {
  records_lock.reset();
  pool = nullptr;
}

}  // namespace vthr
