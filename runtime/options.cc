#include "runtime/options.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace vthr {

Options options;

namespace {

enum class Type { count, size, time, choice, path };
struct Row {
  Type type;
  const char* name;
  void* field;
  long min, max;
  const char* shown_default;
  const char* help;
  const char* values;
};

Row kRows[] = {
#define OPTION_COUNT(field, name, def, min, max, help) \
  {Type::count, name, &options.field, min, max, #def, help, nullptr},
#define OPTION_SIZE(field, name, text, help) {Type::size, name, &options.field, 0, 0, text, help, nullptr},
#define OPTION_TIME(field, name, def, text, help) \
  {Type::time, name, &options.field, 0, 0, text, help, nullptr},
#define OPTION_ENUM(field, name, def, help, values) \
  {Type::choice, name, &options.field, def, 0, nullptr, help, values},
#define OPTION_PATH(field, name, text, help) {Type::path, name, &options.field, 0, 0, text, help, nullptr},
#include "runtime/options.def"
#undef OPTION_COUNT
#undef OPTION_SIZE
#undef OPTION_TIME
#undef OPTION_ENUM
#undef OPTION_PATH
};

constexpr size_t kMaxErrors = 8;
char errors[kMaxErrors][256];
size_t error_count;

__attribute__((format(printf, 1, 2))) void add_error(const char* format, ...) {
  if (error_count == kMaxErrors) return;
  va_list ap;
  va_start(ap, format);
  char* line = errors[error_count++];
  vsnprintf(line, sizeof errors[0], format, ap);
  va_end(ap);
  for (; *line != 0; line++) {
    if (static_cast<unsigned char>(*line) < ' ' || *line == 127)
      *line = '?';  // one line, whatever the value holds
  }
}

// Digits and a suffix out of `units` ("k\0m\0"), pairs of text and factor.
struct Unit {
  const char* text;
  int64_t factor;
};
bool parse_number(const char* s, const Unit* units, int64_t* out) {
  if (*s < '0' || *s > '9') return false;
  int64_t n = 0;
  for (; *s >= '0' && *s <= '9'; s++) {
    if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *s - '0', &n)) return false;
  }
  for (const Unit* u = units; u->text != nullptr; u++) {
    if (strcmp(s, u->text) == 0) return !__builtin_mul_overflow(n, u->factor, out);
  }
  return false;
}

constexpr Unit kPlain[] = {{"", 1}, {nullptr, 0}};
constexpr Unit kSizes[] = {{"", 1},        {"k", 1 << 10}, {"K", 1 << 10}, {"m", 1 << 20},
                           {"M", 1 << 20}, {"g", 1 << 30}, {nullptr, 0}};
constexpr Unit kTimes[] = {{"us", 1000}, {"ms", 1000000}, {"s", 1000000000}, {nullptr, 0}};

// Index of `value` in "a|b|c", or -1.
int choice_index(const char* values, const char* value) {
  size_t len = strlen(value);
  for (int i = 0;; i++) {
    const char* end = strchrnul(values, '|');
    if (static_cast<size_t>(end - values) == len && memcmp(values, value, len) == 0) return i;
    if (*end == 0) return -1;
    values = end + 1;
  }
}

void choice_text(const char* values, long index, char* out, size_t size) {
  for (; index > 0; index--) values = strchrnul(values, '|') + 1;
  snprintf(out, size, "%.*s", static_cast<int>(strchrnul(values, '|') - values), values);
}

void parse_row(const Row& row, const char* value) {
  int64_t n = 0;
  switch (row.type) {
    case Type::count:
      if (!parse_number(value, kPlain, &n) || n < row.min || n > row.max) {
        add_error("%s=%.60s: allowed are %ld to %ld; using the default", row.name, value, row.min, row.max);
        return;
      }
      *static_cast<int*>(row.field) = static_cast<int>(n);
      return;
    case Type::size:
      if (!parse_number(value, kSizes, &n) || n < 16384) {
        add_error("%s=%.60s: allowed are bytes from 16384 with an optional k, m or g; using the default",
                  row.name, value);
        return;
      }
      *static_cast<uint64_t*>(row.field) = static_cast<uint64_t>(n);
      return;
    case Type::time:
      if (strcmp(value, "off") == 0 && strcmp(row.shown_default, "off") == 0) return;
      if (!parse_number(value, kTimes, &n) || n == 0) {
        add_error("%s=%.60s: allowed are numbers above 0 with us, ms or s; using the default %s", row.name,
                  value, row.shown_default);
        return;
      }
      *static_cast<int64_t*>(row.field) = n;
      return;
    case Type::choice: {
      int i = choice_index(row.values, value);
      if (i < 0) {
        char shown[32];
        choice_text(row.values, row.min, shown, sizeof shown);
        add_error("%s=%.60s: allowed are %s; using the default %s", row.name, value, row.values, shown);
        return;
      }
      *static_cast<int*>(row.field) = i;
      return;
    }
    case Type::path:
      if (*value == 0 || strlen(value) >= kPathMax - 64) {
        add_error("%s=%.60s: allowed are file names of 1 to %zu bytes; using the default %s", row.name, value,
                  kPathMax - 65, row.shown_default);
        return;
      }
      strcpy(static_cast<char*>(row.field), value);
      return;
  }
}

}  // namespace

void options_parse(char** envp) {
  for (; envp != nullptr && *envp != nullptr; envp++) {
    if (strncmp(*envp, "VTHR_", 5) != 0) continue;
    const char* eq = strchr(*envp, '=');
    if (eq == nullptr) continue;
    size_t len = static_cast<size_t>(eq - *envp);
    const Row* found = nullptr;
    for (const Row& row : kRows) {
      if (strlen(row.name) == len && memcmp(row.name, *envp, len) == 0) found = &row;
    }
    if (found != nullptr) {
      parse_row(*found, eq + 1);
    } else {
      add_error("%.*s: unknown variable (value %.40s), ignored; `vthr options` lists what is allowed",
                static_cast<int>(len < 60 ? len : 60), *envp, eq + 1);
    }
  }
}

const char* options_error(size_t i) { return i < error_count ? errors[i] : nullptr; }

void options_table(bool markdown, void (*put)(const char* line)) {
  char line[600], shown[64];
  if (markdown) {
    put("| variable | default | meaning |");
    put("|---|---|---|");
  }
  for (const Row& row : kRows) {
    if (row.type == Type::choice) {
      choice_text(row.values, row.min, shown, sizeof shown);
    } else {
      snprintf(shown, sizeof shown, "%s", row.field == &options.carriers ? "CPUs" : row.shown_default);
    }
    const char* values = row.values != nullptr ? row.values : "";
    char escaped[128];
    size_t n = 0;
    for (const char* v = values; *v != 0 && n + 3 < sizeof escaped; v++) {
      if (*v == '|' && markdown) escaped[n++] = '\\';
      escaped[n++] = *v;
    }
    escaped[n] = 0;
    if (markdown) {
      snprintf(line, sizeof line, "| `%s` | `%s` | %s%s%s%s |", row.name, shown, row.help, n ? " (`" : "",
               escaped, n ? "`)" : "");
    } else {
      snprintf(line, sizeof line, "%-22s %-13s %s%s%s%s", row.name, shown, row.help, n ? " (" : "", escaped,
               n ? ")" : "");
    }
    put(line);
  }
}

}  // namespace vthr
