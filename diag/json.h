// JSON by RapidJSON's Writer, without exceptions, malloc and asserts that abort: what it writes goes to a buffer of
// fixed size, its nesting stack lives in the allocator itself.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "diag/text.h"

// A namespace of our own: the command line tool uses RapidJSON as it comes.
#define RAPIDJSON_NAMESPACE vthr_rapidjson
#define RAPIDJSON_NAMESPACE_BEGIN namespace vthr_rapidjson {
#define RAPIDJSON_NAMESPACE_END }
#define RAPIDJSON_ASSERT(x) ((void)0)
// We always pass an allocator, so it makes none: without this the library would need operator new and with it
// libstdc++'s exceptions.
#define RAPIDJSON_NEW(x) (static_cast<decltype(x)*>(nullptr))
#define RAPIDJSON_DELETE(x) ((void)(x))
#include <rapidjson/writer.h>

namespace vthr {

// RapidJSON's Allocator concept: room for the nesting stack. Deeper nesting than fits is a mistake of ours.
class JsonArena {
 public:
  static const bool kNeedFree = false;
  void* Malloc(size_t n) { return Realloc(nullptr, 0, n); }
  void* Realloc(void* old, size_t old_size, size_t n) {
    n = (n + 15) & ~size_t{15};
    if (n > sizeof room_ - used_) used_ = 0;
    void* p = room_ + used_;
    used_ += n;
    if (old != nullptr) memmove(p, old, old_size);
    return p;
  }
  static void Free(void*) {}

 private:
  alignas(16) char room_[2048] = {};
  size_t used_ = 0;
};

// RapidJSON's output stream concept.
class JsonStream {
 public:
  using Ch = char;
  explicit JsonStream(Text* to) : to_(to) {}
  void Put(char c) { to_->put(c); }
  void Flush() {}

 private:
  Text* to_;
};

// One JSON value into a Text; if the Text was cut, the value is not well-formed and the caller must not use it.
class Json {
 public:
  explicit Json(Text* to) : stream_(to), writer_(stream_, &arena_) { writer_.SetMaxDecimalPlaces(3); }
  Json(const Json&) = delete;
  Json& operator=(const Json&) = delete;

  void object() { writer_.StartObject(); }
  void object(const char* k) {
    key(k);
    object();
  }
  void end_object() { writer_.EndObject(); }
  void array(const char* k) {
    key(k);
    writer_.StartArray();
  }
  void end_array() { writer_.EndArray(); }

  // Bytes that are not UTF-8 become U+FFFD.
  void string(const char* s) {
    char clean[1024];
    size_t n = 0;
    while (*s != 0 && n + 4 < sizeof clean) {
      size_t len = utf8_length(s);
      if (len == 0) {
        for (char c : {'\xef', '\xbf', '\xbd'}) clean[n++] = c;
        s++;
      } else {
        memcpy(clean + n, s, len);
        n += len;
        s += len;
      }
    }
    writer_.String(clean, static_cast<unsigned>(n));
  }
  void string(const char* k, const char* s) {
    key(k);
    string(s);
  }
  void number(const char* k, uint64_t n) {
    key(k);
    writer_.Uint64(n);
  }
  void ms(const char* k, uint64_t ns) {
    key(k);
    writer_.Double(static_cast<double>(ns) / 1e6);
  }
  void real(const char* k, double d) {
    key(k);
    writer_.Double(d);
  }
  void null(const char* k) {
    key(k);
    writer_.Null();
  }
  void boolean(const char* k, bool b) {
    key(k);
    writer_.Bool(b);
  }
  void hex(const char* k, uint64_t n) {
    char text[24];
    snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(n));
    string(k, text);
  }

 private:
  void key(const char* k) { writer_.Key(k, static_cast<unsigned>(strlen(k))); }

  using Utf8 = vthr_rapidjson::UTF8<>;
  JsonStream stream_;
  JsonArena arena_{};
  vthr_rapidjson::Writer<JsonStream, Utf8, Utf8, JsonArena> writer_;
};

}  // namespace vthr
