// Text and bytes of a GPU UUID. No driver, no I/O.
#include "broker/devices/uuid.h"

namespace sluice::devices {
namespace {

constexpr std::string_view kPrefix = "GPU-";
constexpr std::size_t kTextLength = 40;  // prefix, 32 digits, 4 dashes

bool dash_before(std::size_t byte) { return byte == 4 || byte == 6 || byte == 8 || byte == 10; }

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string uuid_format(const protocol::GpuUuid& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(kPrefix);
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (dash_before(i)) text += '-';
    text += kDigits[uuid.bytes[i] >> 4];
    text += kDigits[uuid.bytes[i] & 15];
  }
  return text;
}

std::optional<protocol::GpuUuid> uuid_parse(std::string_view text) {
  if (text.size() != kTextLength || text.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  protocol::GpuUuid uuid{};
  std::size_t at = kPrefix.size();
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (dash_before(i) && text[at++] != '-') return std::nullopt;
    const int high = digit_value(text[at++]);
    const int low = digit_value(text[at++]);
    if (high < 0 || low < 0) return std::nullopt;
    uuid.bytes[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return uuid;
}

}  // namespace sluice::devices
