#include "diag/calls.h"

#include <cstddef>
#include <cstring>

namespace vthr {

namespace {

enum Kind { none, fd, file };
struct Call {
  int number;
  const char* name;
  Kind kind;
};
constexpr Call kCalls[] = {
#define CALL(number, name, kind) {number, #name, kind},
#include "diag/calls.def"
#undef CALL
};

const Call* find(long number) {
  for (const Call& c : kCalls) {
    if (c.number == number) return &c;
  }
  return nullptr;
}

Kind kind_of(long number) {
  const Call* c = find(number);
  return c != nullptr ? c->kind : none;
}

}  // namespace

const char* call_name(long number) {
  const Call* c = find(number);
  return c != nullptr ? c->name : nullptr;
}

long call_number(const char* name) {
  for (const Call& c : kCalls) {
    if (strcmp(c.name, name) == 0) return c.number;
  }
  return -1;
}

bool call_takes_fd(long number) { return kind_of(number) != none; }
bool call_is_file_io(long number) { return kind_of(number) == file; }

}  // namespace vthr
