// pthread_rwlock_*: glibc's object (56 bytes, static initialisers, __flags is the preference), a word of our own in it,
// the parking lot behind it. Process-shared locks are glibc's own.
#include <cerrno>

#include "interpose/mutex.h"

namespace vthr {

namespace {

// The first eight bytes of the object hold the whole state; every change is one compare-and-swap.
//
//   readers   threads that hold it to read          writer    it is held to write
//   reading   threads that wait to read             writing   threads that wait to write
//   for_readers, for_writers: it is free, but reserved for threads of that sort that wait already
//
// read:   readers + 1, for_readers cleared (acquire); refused while there is a writer or a reservation for writers, and
//         under PREFER_WRITER_NONRECURSIVE while a thread waits to write and nothing is reserved for readers
// write:  writer set, for_writers cleared (acquire); refused while there are readers, a writer or for_readers
// unlock of the last reader (release): threads wait to write: for_writers, wake one of them
// unlock of the writer (release): for_readers, wake all who wait to read; or for_writers, wake one who waits to write;
//         readers first, except under PREFER_WRITER_NONRECURSIVE
// A waiter counts itself in `reading` or `writing` before it parks, and out of it in the same step in which it gets the
// lock or gives up. So a reservation always has a thread that comes for it; the last one to give up cancels it and wakes
// the other sort. The reservations keep both sorts from starving each other, which fibers would: a thread that unlocks
// and locks again does not leave its carrier.
//
// Pairs: unlock's release with the next acquire. No wake-up is lost: waiters publish themselves under the bucket lock
// only while they are refused, and whoever ends the reason for it changes the word before it takes that lock.
constexpr int kReaderBits = 21, kWaiterBits = 20;
constexpr uint64_t kReader = 1, kReaders = (1ull << kReaderBits) - 1;
constexpr uint64_t kReadingOne = 1ull << kReaderBits, kReading = ((1ull << kWaiterBits) - 1) << kReaderBits;
constexpr uint64_t kWritingOne = kReadingOne << kWaiterBits, kWriting = kReading << kWaiterBits;
constexpr uint64_t kWriter = 1ull << 61, kForReaders = 1ull << 62, kForWriters = 1ull << 63;
static_assert((kWriting << 1 & ~kWriting) == kWriter);

static_assert(offsetof(pthread_rwlock_t, __data.__readers) == 0 &&
              offsetof(pthread_rwlock_t, __data.__writers) == 4);
std::atomic<uint64_t>& word_of(pthread_rwlock_t* l) {
  return *static_cast<std::atomic<uint64_t>*>(static_cast<void*>(l));
}
// Keys of the parking lot, one for each sort.
const void* read_key(const pthread_rwlock_t* l) { return &l->__data.__readers; }
const void* write_key(const pthread_rwlock_t* l) { return &l->__data.__writers; }
pthread_rwlock_t* lock_of_write_key(const void* key) {
  return reinterpret_cast<pthread_rwlock_t*>(const_cast<char*>(static_cast<const char*>(key)) -
                                             offsetof(pthread_rwlock_t, __data.__writers));
}

bool is_native(const pthread_rwlock_t* l) {
  return (__atomic_load_n(&l->__data.__shared, __ATOMIC_RELAXED) | native_all) != 0;
}
bool prefers_writers(const pthread_rwlock_t* l) {
  return l->__data.__flags == PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP;
}
// Who holds it to write: only for EDEADLK, and only the holder finds its own id there.
std::atomic<int>& writer_of(pthread_rwlock_t* l) { return atomic_at(&l->__data.__cur_writer); }

bool may_read(pthread_rwlock_t* l, uint64_t s) {
  if ((s & (kWriter | kForWriters)) != 0) return false;
  return (s & kWriting) == 0 || (s & kForReaders) != 0 || !prefers_writers(l);
}
bool may_write(uint64_t s) { return (s & (kReaders | kWriter | kForReaders)) == 0; }

void wake_readers(pthread_rwlock_t* l) { unpark_all(read_key(l)); }
void wake_writer(pthread_rwlock_t* l) { unpark_one(write_key(l)); }

// Takes it if the word allows it. `waits`: the caller's own share of the word as a waiter, or 0. 0, EBUSY or EAGAIN.
int try_read(pthread_rwlock_t* l, uint64_t waits) {
  std::atomic<uint64_t>& word = word_of(l);
  uint64_t s = word.load(std::memory_order_relaxed);
  while (may_read(l, s)) {
    if ((s & kReaders) == kReaders) return EAGAIN;
    if (word.compare_exchange_weak(s, ((s + kReader) & ~kForReaders) - waits, std::memory_order_acquire,
                                   std::memory_order_relaxed))
      return 0;
  }
  return EBUSY;
}
int try_write(pthread_rwlock_t* l, uint64_t waits) {
  std::atomic<uint64_t>& word = word_of(l);
  uint64_t s = word.load(std::memory_order_relaxed);
  while (may_write(s)) {
    if (word.compare_exchange_weak(s, ((s | kWriter) & ~kForWriters) - waits, std::memory_order_acquire,
                                   std::memory_order_relaxed)) {
      writer_of(l).store(self_tid(), std::memory_order_relaxed);
      return 0;
    }
  }
  return EBUSY;
}

// Counts the caller among the waiters; false: there are too many.
bool begin_waiting(std::atomic<uint64_t>& word, uint64_t field, uint64_t one) {
  uint64_t s = word.load(std::memory_order_relaxed);
  do {
    if ((s & field) == field) return false;
  } while (!word.compare_exchange_weak(s, s + one, std::memory_order_relaxed));
  return true;
}

void stop_reading(pthread_rwlock_t* l) {
  std::atomic<uint64_t>& word = word_of(l);
  uint64_t s = word.load(std::memory_order_relaxed), to;
  do {
    to = s - kReadingOne;
    if ((to & kReading) == 0 && (to & kForReaders) != 0) {
      to &= ~kForReaders;
      if ((to & kWriting) != 0) to |= kForWriters;
    }
  } while (!word.compare_exchange_weak(s, to, std::memory_order_relaxed));
  if ((s & ~to & kForReaders) != 0 && (to & kWriting) != 0) wake_writer(l);
}

void stop_writing(pthread_rwlock_t* l) {
  std::atomic<uint64_t>& word = word_of(l);
  uint64_t s = word.load(std::memory_order_relaxed), to;
  do {
    to = s - kWritingOne;
    if ((to & kWriting) == 0) to &= ~kForWriters;
  } while (!word.compare_exchange_weak(s, to, std::memory_order_relaxed));
  if ((to & kWriting) == 0 && (to & kWriter) == 0 && (to & kReading) != 0) wake_readers(l);
}

VTHR_NOINLINE int read_slow(pthread_rwlock_t* l, const Until& until) {
  if (!begin_waiting(word_of(l), kReading, kReadingOne)) return EAGAIN;
  ParkArgs args;
  args.reason = Reason::rwlock;
  args.deaf = waits_deaf();
  args.still = [](const void* key, void*) {
    auto* lock = static_cast<pthread_rwlock_t*>(const_cast<void*>(key));
    return !may_read(lock, word_of(lock).load(std::memory_order_relaxed));
  };
  args.deadline = until.deadline();
  for (;;) {
    int r = try_read(l, kReadingOne);
    if (r == 0) return 0;
    if (r == EBUSY) {
      if (park_uncancelled(read_key(l), args) != Wake::timed_out) continue;
      args.deadline = until.deadline();
      if (!until.over()) continue;
      r = ETIMEDOUT;
    }
    stop_reading(l);
    return r;
  }
}

VTHR_NOINLINE int write_slow(pthread_rwlock_t* l, const Until& until) {
  std::atomic<uint64_t>& word = word_of(l);
  if (!begin_waiting(word, kWriting, kWritingOne)) return EAGAIN;
  ParkArgs args;
  args.reason = Reason::rwlock;
  args.deaf = waits_deaf();
  // Reserved for writers, but others were there first: step back once (mutex.h).
  if ((word.load(std::memory_order_relaxed) & kForWriters) != 0) {
    args.still = [](const void* key, void*) {
      return (word_of(lock_of_write_key(key)).load(std::memory_order_relaxed) & kForWriters) != 0;
    };
    args.deadline = now_ns() + kStepBack;
    park_uncancelled(write_key(l), args);
  }
  args.still = [](const void* key, void*) {
    return !may_write(word_of(lock_of_write_key(key)).load(std::memory_order_relaxed));
  };
  args.deadline = until.deadline();
  for (;;) {
    if (try_write(l, kWritingOne) == 0) return 0;
    if (park_uncancelled(write_key(l), args) != Wake::timed_out) continue;
    args.deadline = until.deadline();
    if (!until.over()) continue;
    stop_writing(l);
    return ETIMEDOUT;
  }
}

bool is_writer(pthread_rwlock_t* l) { return writer_of(l).load(std::memory_order_relaxed) == self_tid(); }

// glibc looks at clock and time before anything else.
int read_lock(pthread_rwlock_t* l, const Until& until) {
  if (!until.valid()) return EINVAL;
  int r = try_read(l, 0);
  if (VTHR_LIKELY(r != EBUSY)) return r;
  return is_writer(l) ? EDEADLK : read_slow(l, until);
}

int write_lock(pthread_rwlock_t* l, const Until& until) {
  if (!until.valid()) return EINVAL;
  uint64_t s = 0;
  if (VTHR_LIKELY(word_of(l).compare_exchange_strong(s, kWriter, std::memory_order_acquire,
                                                     std::memory_order_relaxed))) {
    writer_of(l).store(self_tid(), std::memory_order_relaxed);
    return 0;
  }
  return is_writer(l) ? EDEADLK : write_slow(l, until);
}

void unlock_write(pthread_rwlock_t* l) {
  writer_of(l).store(0, std::memory_order_relaxed);
  std::atomic<uint64_t>& word = word_of(l);
  bool writers_first = prefers_writers(l);
  uint64_t s = word.load(std::memory_order_relaxed), to;
  do {
    to = s & ~kWriter;
    bool reading = (s & kReading) != 0, writing = (s & kWriting) != 0;
    if (reading && !(writing && writers_first)) {
      to |= kForReaders;
    } else if (writing) {
      to |= kForWriters;
    }
  } while (!word.compare_exchange_weak(s, to, std::memory_order_release, std::memory_order_relaxed));
  if ((to & kForReaders) != 0) wake_readers(l);
  if ((to & kForWriters) != 0) wake_writer(l);
}

void unlock_read(pthread_rwlock_t* l, uint64_t s) {
  std::atomic<uint64_t>& word = word_of(l);
  uint64_t to;
  do {
    if ((s & kReaders) == 0) return;  // nobody holds it: undefined, and harmless here
    to = s - kReader;
    if ((to & kReaders) == 0 && (to & kWriting) != 0) to |= kForWriters;
  } while (!word.compare_exchange_weak(s, to, std::memory_order_release, std::memory_order_relaxed));
  if ((to & kForWriters) != 0) wake_writer(l);
}

}  // namespace

}  // namespace vthr

using namespace vthr;

VTHR_EXPORT int pthread_rwlock_init(pthread_rwlock_t* l, const pthread_rwlockattr_t* attr) {
  return REAL(pthread_rwlock_init)(l, attr);
}

VTHR_EXPORT int pthread_rwlock_destroy(pthread_rwlock_t* l) { return REAL(pthread_rwlock_destroy)(l); }

VTHR_EXPORT int pthread_rwlock_rdlock(pthread_rwlock_t* l) {
  if (is_native(l)) return pinned("pthread_rwlock_rdlock", [l] { return REAL(pthread_rwlock_rdlock)(l); });
  return read_lock(l, Until{});
}

VTHR_EXPORT int pthread_rwlock_tryrdlock(pthread_rwlock_t* l) {
  return is_native(l) ? REAL(pthread_rwlock_tryrdlock)(l) : try_read(l, 0);
}

VTHR_EXPORT int pthread_rwlock_clockrdlock(pthread_rwlock_t* l, clockid_t clock, const timespec* abs) {
  if (is_native(l))
    return pinned("pthread_rwlock_clockrdlock",
                  [=] { return REAL(pthread_rwlock_clockrdlock)(l, clock, abs); });
  return lock_clock(clock) ? read_lock(l, Until{clock, abs}) : EINVAL;
}

VTHR_EXPORT int pthread_rwlock_timedrdlock(pthread_rwlock_t* l, const timespec* abs) {
  return pthread_rwlock_clockrdlock(l, CLOCK_REALTIME, abs);
}

VTHR_EXPORT int pthread_rwlock_wrlock(pthread_rwlock_t* l) {
  if (is_native(l)) return pinned("pthread_rwlock_wrlock", [l] { return REAL(pthread_rwlock_wrlock)(l); });
  return write_lock(l, Until{});
}

VTHR_EXPORT int pthread_rwlock_trywrlock(pthread_rwlock_t* l) {
  return is_native(l) ? REAL(pthread_rwlock_trywrlock)(l) : try_write(l, 0);
}

VTHR_EXPORT int pthread_rwlock_clockwrlock(pthread_rwlock_t* l, clockid_t clock, const timespec* abs) {
  if (is_native(l))
    return pinned("pthread_rwlock_clockwrlock",
                  [=] { return REAL(pthread_rwlock_clockwrlock)(l, clock, abs); });
  return lock_clock(clock) ? write_lock(l, Until{clock, abs}) : EINVAL;
}

VTHR_EXPORT int pthread_rwlock_timedwrlock(pthread_rwlock_t* l, const timespec* abs) {
  return pthread_rwlock_clockwrlock(l, CLOCK_REALTIME, abs);
}

VTHR_EXPORT int pthread_rwlock_unlock(pthread_rwlock_t* l) {
  if (is_native(l)) return REAL(pthread_rwlock_unlock)(l);
  uint64_t s = word_of(l).load(std::memory_order_relaxed);
  if ((s & kWriter) != 0) {
    unlock_write(l);
  } else {
    unlock_read(l, s);
  }
  return 0;
}

VTHR_ALIAS(__pthread_rwlock_rdlock, pthread_rwlock_rdlock);
VTHR_ALIAS(__pthread_rwlock_tryrdlock, pthread_rwlock_tryrdlock);
VTHR_ALIAS(__pthread_rwlock_wrlock, pthread_rwlock_wrlock);
VTHR_ALIAS(__pthread_rwlock_trywrlock, pthread_rwlock_trywrlock);
VTHR_ALIAS(__pthread_rwlock_unlock, pthread_rwlock_unlock);
