// Text in a buffer of fixed size: what does not fit is cut, and noticed.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace vthr {

// Length of the well-formed UTF-8 sequence at s (Unicode 3.9, table 3-7), 0 when there is none. s ends with 0.
inline size_t utf8_length(const char* s) {
  auto byte = [s](size_t i) { return static_cast<unsigned char>(s[i]); };
  auto tail = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  unsigned char b = byte(0);
  if (b < 0x80) return b != 0;
  if (b < 0xc2 || b > 0xf4) return 0;
  if (b < 0xe0) return tail(1) ? 2 : 0;
  if (!tail(1)) return 0;
  unsigned char second = byte(1);
  if (b < 0xf0) {
    if ((b == 0xe0 && second < 0xa0) || (b == 0xed && second > 0x9f)) return 0;
    return tail(2) ? 3 : 0;
  }
  if ((b == 0xf0 && second < 0x90) || (b == 0xf4 && second > 0x8f)) return 0;
  return tail(2) && tail(3) ? 4 : 0;
}

class Text {
 public:
  Text(char* buffer, size_t size) : data_(buffer), room_(size) {}

  void put(const char* s, size_t n) {
    if (n > room_ - size_) {
      n = room_ - size_;
      cut_ = true;
    }
    memcpy(data_ + size_, s, n);
    size_ += n;
  }
  void put(const char* s) { put(s, strlen(s)); }
  void put(char c) { put(&c, 1); }

  __attribute__((format(printf, 2, 3))) void format(const char* f, ...) {
    va_list ap;
    va_start(ap, f);
    vformat(f, ap);
    va_end(ap);
  }
  void vformat(const char* f, va_list ap) {
    size_t left = room_ - size_;
    if (left == 0) {
      cut_ = true;
      return;
    }
    int n = vsnprintf(data_ + size_, left, f, ap);
    if (n < 0) return;
    if (static_cast<size_t>(n) < left) {
      size_ += static_cast<size_t>(n);
    } else {
      size_ += left - 1;
      cut_ = true;
    }
  }

  // A name of the program's: control characters, quotes and bytes that are not UTF-8 are shown as \xNN, so that no
  // name can forge or break a line.
  void put_name(const char* s) {
    while (*s != 0) {
      size_t n = utf8_length(s);
      auto c = static_cast<unsigned char>(*s);
      if (n == 0 || c < 0x20 || c == 0x7f || c == '"' || c == '\\') {
        format("\\x%02x", c);
        n = 1;
      } else {
        put(s, n);
      }
      s += n;
    }
  }

  // A line that may hold such a name: only what would break the line is replaced.
  void put_line(const char* s) {
    for (; *s != 0; s++) {
      auto c = static_cast<unsigned char>(*s);
      if (c < 0x20 || c == 0x7f) {
        format("\\x%02x", c);
      } else {
        put(*s);
      }
    }
  }

  void end_line() {
    if (size_ == room_ && size_ > 0) size_--;
    put('\n');
  }
  void end_line_if_cut() {
    if (cut_) end_line();
  }
  void pad_to(size_t column, size_t line_start) {
    while (size_ - line_start < column && size_ < room_) data_[size_++] = ' ';
  }
  void shrink(size_t size) {
    size_ = size;
    cut_ = false;
  }

  const char* data() const { return data_; }
  size_t size() const { return size_; }
  size_t left() const { return room_ - size_; }
  bool cut() const { return cut_; }

 private:
  char* data_;
  size_t room_, size_ = 0;
  bool cut_ = false;
};

// One decimal, with a point whatever the program's locale says.
inline void put_tenths(Text* out, uint64_t tenths) {
  out->format("%llu.%llu", static_cast<unsigned long long>(tenths / 10),
              static_cast<unsigned long long>(tenths % 10));
}

// Milliseconds for people: "213 ms", "0.8 ms".
inline void put_ms(Text* out, uint64_t ns) {
  if (ns >= 10000000) {
    out->format("%llu ms", static_cast<unsigned long long>((ns + 500000) / 1000000));
  } else {
    put_tenths(out, (ns + 50000) / 100000);
    out->put(" ms");
  }
}

}  // namespace vthr
