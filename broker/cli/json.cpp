// RFC 8259, as far as a writer needs it.
#include "broker/cli/json.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace sluice::cli {

void JsonWriter::item(std::string_view key) {
  if (depth_ > 0) {
    out_ += first_ ? "\n" : ",\n";
    out_.append(static_cast<std::size_t>(depth_) * 2, ' ');
  }
  first_ = false;
  if (key.empty()) return;
  quoted(key);
  out_ += ": ";
}

void JsonWriter::begin(std::string_view key, char bracket) {
  item(key);
  out_ += bracket;
  ++depth_;
  first_ = true;
}

void JsonWriter::object_begin(std::string_view key) { begin(key, '{'); }
void JsonWriter::array_begin(std::string_view key) { begin(key, '['); }

void JsonWriter::end(char bracket) {
  --depth_;
  if (!first_) {
    out_ += '\n';
    out_.append(static_cast<std::size_t>(depth_) * 2, ' ');
  }
  out_ += bracket;
  first_ = false;
}

void JsonWriter::value(std::string_view key, std::string_view text) {
  item(key);
  quoted(text);
}

void JsonWriter::value(std::string_view key, double number) {
  if (!std::isfinite(number)) {
    raw(key, "null");
    return;
  }
  char buffer[32];
  const auto [end_of, error] = std::to_chars(buffer, buffer + sizeof buffer, number);
  raw(key, std::string_view(buffer, static_cast<std::size_t>(end_of - buffer)));
}

void JsonWriter::raw(std::string_view key, std::string_view text) {
  item(key);
  out_ += text;
}

void JsonWriter::quoted(std::string_view text) {
  out_ += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\u%04x",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
      out_ += buffer;
    } else {
      out_ += c;
    }
  }
  out_ += '"';
}

}  // namespace sluice::cli
