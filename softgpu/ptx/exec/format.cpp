// printf on the device; see format.h. Arguments lie in the buffer at their natural alignment: int
// 4, long and double 8.
#include "softgpu/ptx/exec/format.h"

#include <cstdio>
#include <cstring>

namespace softgpu::ptx {
namespace {

bool one_of(char c, const char* set) { return c != '\0' && std::strchr(set, c) != nullptr; }

class Formatter {
 public:
  Formatter(const char* format, const u8* buffer) : at_(format), buffer_(buffer) {}

  std::string run() {
    while (*at_ != '\0') {
      if (*at_ != '%') {
        out_ += *at_++;
      } else if (at_[1] == '%') {
        out_ += '%';
        at_ += 2;
      } else {
        conversion();
      }
    }
    return std::move(out_);
  }
  int arguments() const { return arguments_; }

 private:
  template <class T>
  T next() {
    offset_ = (offset_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    T value;
    std::memcpy(&value, buffer_ + offset_, sizeof value);
    offset_ += sizeof value;
    return value;
  }

  void conversion() {
    std::string spec = "%";
    ++at_;
    while (one_of(*at_, "-+ #0123456789.*'")) {
      if (*at_ == '*') {
        spec += std::to_string(next<s32>());
        ++at_;
      } else {
        spec += *at_++;
      }
    }
    bool is_long = false;
    std::string narrow;
    while (one_of(*at_, "hlLqjzt")) {
      if (*at_ == 'h') {
        narrow += 'h';
      } else {
        is_long = true;
      }
      ++at_;
    }
    const char kind = *at_;
    if (kind == '\0') {
      out_ += spec;
      return;
    }
    ++at_;
    ++arguments_;
    argument(spec, narrow, is_long, kind);
  }

  void argument(const std::string& spec, const std::string& narrow, bool is_long, char kind) {
    if (one_of(kind, "diuoxX")) {
      if (is_long) {
        print(spec + "ll" + kind, next<long long>());
      } else {
        print(spec + narrow + kind, next<s32>());
      }
    } else if (kind == 'c') {
      print(spec + kind, next<s32>());
    } else if (one_of(kind, "fFeEgGaA")) {
      print(spec + kind, next<double>());
    } else if (kind == 'p') {
      print(spec + kind, reinterpret_cast<void*>(next<u64>()));
    } else if (kind == 's') {
      const char* text = reinterpret_cast<const char*>(next<u64>());
      print(spec + kind, text != nullptr ? text : "(null)");
    } else {
      --arguments_;
      out_ += spec + kind;
    }
  }

  template <class T>
  void print(const std::string& spec, T value) {
    char small[256];
    // The format was rebuilt above from known parts: exactly one conversion, of the type of
    // `value`.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    const int length = std::snprintf(small, sizeof small, spec.c_str(), value);
    if (length < 0) return;
    if (static_cast<std::size_t>(length) < sizeof small) {
      out_.append(small, static_cast<std::size_t>(length));
      return;
    }
    std::string large(static_cast<std::size_t>(length) + 1, '\0');
    std::snprintf(large.data(), large.size(), spec.c_str(), value);
#pragma GCC diagnostic pop
    out_.append(large.data(), static_cast<std::size_t>(length));
  }

  const char* at_;
  const u8* buffer_;
  std::size_t offset_ = 0;
  int arguments_ = 0;
  std::string out_;
};

}  // namespace

std::string device_format(const char* format, const u8* buffer, int* arguments) {
  if (format == nullptr) return {};
  Formatter formatter(format, buffer);
  std::string text = formatter.run();
  *arguments = formatter.arguments();
  return text;
}

}  // namespace softgpu::ptx
