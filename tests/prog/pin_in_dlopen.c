/* A thread sleeps in the kernel, unseen, in the constructor of a library that it loads: 20 others go on. */
#include "pin.h"

#include <dlfcn.h>

static void* load(void* path) {
  before_pin();
  void* handle = dlopen(path, RTLD_NOW);
  after_pin();
  CHECK(handle != NULL, "dlopen: %s", dlerror());
  return handle;
}

int main(int argc, char** argv) {
  check_begin();
  static char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 4);
  NEED(length > 0);
  strcpy(path + length, ".so");
  start_tickers();
  STAGE("pin in a constructor");
  join_thread(start_thread(load, path));
  linger(argc, argv);
  stop_tickers();
  return check_end();
}
