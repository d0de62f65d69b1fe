// A writer of JSON: two spaces of indent, keys in the order given, strings escaped. Only output is
// needed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace sluice::cli {

class JsonWriter {
 public:
  void object_begin(std::string_view key = {});
  void object_end() { end('}'); }
  void array_begin(std::string_view key);
  void array_end() { end(']'); }
  void value(std::string_view key, std::string_view text);
  void value(std::string_view key, const char* text) { value(key, std::string_view(text)); }
  void value(std::string_view key, const std::string& text) { value(key, std::string_view(text)); }
  void value(std::string_view key, bool truth) { raw(key, truth ? "true" : "false"); }
  void value(std::string_view key, double number);
  template <class T>
  requires std::is_integral_v<T>
  void value(std::string_view key, T number) { raw(key, std::to_string(number)); }
  /// The text so far, ended by a newline.
  std::string text() const { return out_ + "\n"; }

 private:
  void begin(std::string_view key, char bracket);
  void end(char bracket);
  void raw(std::string_view key, std::string_view text);
  void item(std::string_view key);
  void quoted(std::string_view text);

  std::string out_;
  int depth_ = 0;
  bool first_ = true;  // nothing in the present container yet
};

}  // namespace sluice::cli
