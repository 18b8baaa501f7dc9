#include "runtime/wait.h"

namespace vthr {

namespace {
struct Row {
  const char* name;
  bool own;
};
constexpr Row kRows[] = {
#define WAIT_REASON(name, own) {#name, own != 0},
#include "runtime/wait_reasons.def"
#undef WAIT_REASON
};
}  // namespace

const char* reason_name(Reason r) { return kRows[static_cast<size_t>(r)].name; }
bool reason_is_own_request(Reason r) { return kRows[static_cast<size_t>(r)].own; }

}  // namespace vthr
