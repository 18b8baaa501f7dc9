// TCB and TLS block of a fiber: everything that glibc keeps per thread, made, used under its own FS base, and recycled.
#include "runtime/tls.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <netdb.h>
#include <pthread.h>
#include <resolv.h>
#include <stdlib.h>
#include <string.h>

#include <memory>

#include "runtime/context.h"
#include "tests/unit/support.h"

namespace vthr {
namespace {

__thread int initialised = 42;
__thread char zeroed[100];

// A fiber without a scheduler: a stack, a TCB, and a thread that runs it until it switches out for the last time.
class Bare {
 public:
  explicit Bare(int tid) : block_(static_cast<char*>(aligned_alloc(4096, round_up(tls_block_size(), 4096)))) {
    memset(block_, 0, round_up(tls_block_size(), 4096));
    tcb = static_cast<char*>(tls_create(block_, tid));
  }
  // Runs `body` on the fiber to its end, from this thread.
  void run(std::function<void()> body) {
    body_ = std::move(body);
    over_ = false;
    context_make(&fiber_, stack_.get() + kStack, kStack, enter, this);
    while (!over_) context_switch_in(&fiber_, &thread_, tcb, tls_self());
  }
  void out() { context_switch_out(&fiber_, &thread_); }
  char* tcb;

 private:
  static void enter(void* p) {
    auto* self = static_cast<Bare*>(p);
    tls_first_run();
    self->body_();
    self->over_ = true;
    for (;;) self->out();
  }
  static constexpr size_t kStack = 128 << 10;
  std::unique_ptr<char[]> stack_{new char[kStack]};
  char* block_;  // for ever: glibc's list has it
  Context fiber_, thread_;
  std::function<void()> body_;
  bool over_ = false;
};

class TlsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_EQ(start_tls(), nullptr); }
};

TEST_F(TlsTest, AFiberHasAnIdentityAndVariablesOfItsOwn) {
  Bare f(4194400);
  ASSERT_NE(f.tcb, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(f.tcb) % 64, 0u);
  EXPECT_EQ(tls_tid(f.tcb), 4194400);
  initialised = 7;
  errno = 33;
  void* thread = tls_self();
  int seen = 0, seen_errno = -1, letters = 0;
  bool all_zero = true, same_self = false;
  f.run([&] {
    same_self = reinterpret_cast<char*>(pthread_self()) == f.tcb && tls_self() == f.tcb;
    seen = initialised;
    for (char c : zeroed) all_zero = all_zero && c == 0;
    seen_errno = errno;
    letters = isalpha('x') != 0 && toupper('x') == 'X';  // glibc's character tables are found through TLS
    initialised = 9;
    errno = 44;
    f.out();
    seen += initialised;
    EXPECT_EQ(errno, 44) << "kept over a switch";
  });
  EXPECT_TRUE(same_self);
  EXPECT_EQ(seen, 42 + 9);
  EXPECT_TRUE(all_zero);
  EXPECT_EQ(seen_errno, 0);
  EXPECT_TRUE(letters);
  EXPECT_EQ(initialised, 7);
  EXPECT_EQ(errno, 33);
  EXPECT_EQ(tls_self(), thread);
  EXPECT_EQ(*tls_elsewhere(f.tcb, &initialised), 9);
  EXPECT_EQ(tls_elsewhere(tls_self(), &initialised), &initialised);
}

TEST_F(TlsTest, GuardsOfStackAndPointersAreTheProcess) {
  Bare f(4194401);
  auto guard = [] {
    uint64_t stack, pointer;
    __asm__("mov %%fs:0x28, %0\n mov %%fs:0x30, %1" : "=r"(stack), "=r"(pointer));
    return std::make_pair(stack, pointer);
  };
  auto here = guard(), there = here;
  there.first = 0;
  f.run([&] { there = guard(); });
  EXPECT_EQ(here, there);
}

pthread_key_t keys[4];
std::vector<int> destroyed;

TEST_F(TlsTest, KeysAndTheirDestructors) {
  for (auto& k : keys) {
    ASSERT_EQ(pthread_key_create(&k,
                                 [](void* v) {
                                   destroyed.push_back(static_cast<int>(reinterpret_cast<intptr_t>(v)));
                                   // the first key's value counts down: each round of destructors finds a new one
                                   auto n = reinterpret_cast<intptr_t>(v);
                                   if (n > 100) pthread_setspecific(keys[0], reinterpret_cast<void*>(n - 1));
                                 }),
              0);
  }
  // a key whose block is not inside the TCB
  std::vector<pthread_key_t> more(40);
  for (auto& k : more) ASSERT_EQ(pthread_key_create(&k, nullptr), 0);
  pthread_setspecific(keys[1], reinterpret_cast<void*>(1));
  destroyed.clear();
  Bare f(4194402);
  f.run([&] {
    for (auto k : keys) EXPECT_EQ(pthread_getspecific(k), nullptr);
    EXPECT_EQ(pthread_setspecific(keys[0], reinterpret_cast<void*>(110)), 0);
    EXPECT_EQ(pthread_setspecific(keys[2], reinterpret_cast<void*>(22)), 0);
    EXPECT_EQ(pthread_setspecific(more.back(), &destroyed), 0);
    EXPECT_EQ(pthread_getspecific(more.back()), &destroyed);
    tls_run_destructors();
    EXPECT_EQ(pthread_getspecific(keys[2]), nullptr);
    tls_recycle();
    // one was set again in the last round: the next fiber of this block must not see it
    for (auto k : keys) EXPECT_EQ(pthread_getspecific(k), nullptr);
    EXPECT_EQ(pthread_getspecific(more.back()), nullptr);
  });
  EXPECT_EQ(destroyed, (std::vector<int>{110, 22, 109, 108, 107})) << "four rounds, as pthreads do";
  EXPECT_EQ(pthread_getspecific(keys[1]), reinterpret_cast<void*>(1)) << "the thread's own values stay";
  pthread_setspecific(keys[1], nullptr);
  for (auto k : keys) pthread_key_delete(k);
  for (auto k : more) pthread_key_delete(k);
}

std::vector<int> dtors;
struct Local {
  int value = 5;
  ~Local() { dtors.push_back(value); }
};
thread_local Local local;

TEST_F(TlsTest, ThreadLocalDestructors) {
  local.value = 1;
  dtors.clear();
  Bare f(4194403);
  f.run([&] {
    EXPECT_EQ(local.value, 5);
    local.value = 6;
    tls_run_destructors();
  });
  EXPECT_EQ(dtors, (std::vector<int>{6}));
  EXPECT_EQ(local.value, 1);
}

TEST_F(TlsTest, ExceptionsBelongToTheFiber) {
  if (kAsan) GTEST_SKIP() << "it cleans the stack of who throws, and finds none for a fiber";
  Bare f(4194404);
  int caught = 0, uncaught = -1;
  f.run([&] {
    try {
      throw 5;
    } catch (int v) {
      f.out();  // in the middle of a handler
      caught = v;
      try {
        throw;
      } catch (int again) {
        caught += again;
      }
    }
    uncaught = std::uncaught_exceptions();
  });
  EXPECT_EQ(caught, 10);
  EXPECT_EQ(uncaught, 0);
}

TEST_F(TlsTest, RecycleForgetsWhatALaterFiberMustNotSee) {
  Bare f(4194405);
  locale_t c = newlocale(LC_ALL_MASK, "C", nullptr);
  ASSERT_NE(c, nullptr);
  bool found_error = false;
  f.run([&] {
    errno = 5;
    h_errno = 6;
    uselocale(c);
    dlopen("/nonexistent/library.so", RTLD_NOW);
    *tls_cancelhandling(tls_self()) = 2;
    res_init();
    found_error = (_res.options & RES_INIT) != 0;
    tls_run_destructors();
    tls_recycle();
  });
  EXPECT_TRUE(found_error) << "res_init did nothing: the test is blind";
  f.run([&] {
    EXPECT_EQ(errno, 0);
    EXPECT_EQ(h_errno, 0);
    EXPECT_EQ(uselocale(nullptr), LC_GLOBAL_LOCALE);
    EXPECT_EQ(dlerror(), nullptr);
    EXPECT_EQ(*tls_cancelhandling(tls_self()), 0);
    EXPECT_EQ(_res.options & RES_INIT, 0u);
  });
  freelocale(c);
}

TEST_F(TlsTest, ResolverStateIsTheFibers) {
  Bare a(4194406), b(4194407);
  struct __res_state *ra = nullptr, *rb = nullptr;
  a.run([&] { ra = &_res; });
  b.run([&] { rb = &_res; });
  EXPECT_NE(ra, rb);
  EXPECT_NE(ra, &_res);
}

// Linked into glibc's list from several threads at once; run by a thread that made none of them.
TEST_F(TlsTest, MadeFromManyThreadsAndRunOnAnother) {
  std::vector<Bare*> all(200);
  together(4, [&](int me) {
    for (size_t i = me; i < all.size(); i += 4) all[i] = new Bare(4195000 + static_cast<int>(i));
  });
  for (size_t i = 0; i < all.size(); i++) {
    int value = 0, tid = 0;
    std::thread([&] {
      all[i]->run([&] {
        value = initialised;
        tid = tls_tid(tls_self());
        free(malloc(100));
      });
    }).join();
    ASSERT_EQ(value, 42);
    ASSERT_EQ(tid, 4195000 + static_cast<int>(i));
  }
}

// The kernel's way, for CPUs or kernels without wrfsbase.
TEST_F(TlsTest, SlowFsSwitch) {
  bool fast = tls_fast_fs;
  Bare f(4194408);
  for (bool way : {false, fast}) {
    tls_fast_fs = way;
    bool there = false;
    f.run([&] {
      there = tls_self() == f.tcb;
      f.out();
      there = there && tls_self() == f.tcb;
    });
    EXPECT_TRUE(there);
    EXPECT_NE(tls_self(), f.tcb);
  }
  tls_fast_fs = fast;
}

TEST_F(TlsTest, AnUnknownGlibcIsNamed) {
  int status = in_child([] {
    const char* why = nullptr;
    auto without = [](const char* name) -> void* {
      return strcmp(name, "_thread_db_pthread_list") == 0 ? nullptr : dlsym(RTLD_DEFAULT, name);
    };
    if (tls_init(without, &why) || strstr(why, "_thread_db_pthread_list") == nullptr) return 1;
    if (tls_init([](const char*) -> void* { return nullptr; }, &why) || why == nullptr) return 2;
    return 0;
  });
  EXPECT_TRUE(exited(status, 0)) << WEXITSTATUS(status);
}

}  // namespace
}  // namespace vthr
