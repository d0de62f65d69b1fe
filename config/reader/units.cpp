// Sizes, durations and addresses as people write them. Integer arithmetic throughout, so that
// "1.5GiB" is exact and an overflow is seen. Knows nothing of files or keys.
#include <arpa/inet.h>
#include <time.h>

#include <array>
#include <limits>

#include "config/reader/config.h"

namespace sluice::config {
namespace {

__extension__ using Wide = unsigned __int128;

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

// Binary and decimal units. A bare "K", "M", "G" is binary, as in what drivers and schedulers print
// of memory.
constexpr std::array<Unit, 17> kSizeUnits{{{"B", 1},
                                           {"K", 1ULL << 10},
                                           {"M", 1ULL << 20},
                                           {"G", 1ULL << 30},
                                           {"T", 1ULL << 40},
                                           {"P", 1ULL << 50},
                                           {"KiB", 1ULL << 10},
                                           {"MiB", 1ULL << 20},
                                           {"GiB", 1ULL << 30},
                                           {"TiB", 1ULL << 40},
                                           {"PiB", 1ULL << 50},
                                           {"kB", 1'000ULL},
                                           {"KB", 1'000ULL},
                                           {"MB", 1'000'000ULL},
                                           {"GB", 1'000'000'000ULL},
                                           {"TB", 1'000'000'000'000ULL},
                                           {"PB", 1'000'000'000'000'000ULL}}};

// The larger first: that is the order in which they may follow one another.
constexpr std::array<Unit, 7> kTimeUnits{{{"d", 86'400'000'000'000ULL},
                                          {"h", 3'600'000'000'000ULL},
                                          {"m", 60'000'000'000ULL},
                                          {"s", 1'000'000'000ULL},
                                          {"ms", 1'000'000ULL},
                                          {"us", 1'000ULL},
                                          {"ns", 1ULL}}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// A decimal number as whole + fraction / scale.
struct Decimal {
  std::uint64_t whole = 0;
  std::uint64_t fraction = 0;
  std::uint64_t scale = 1;
  bool zero() const { return whole == 0 && fraction == 0; }
};

std::optional<std::uint64_t> digits_take(std::string_view& text) {
  std::uint64_t value = 0;
  std::size_t count = 0;
  for (; count < text.size() && is_digit(text[count]); ++count) {
    if (__builtin_mul_overflow(value, 10U, &value)) return std::nullopt;
    const auto digit = static_cast<std::uint64_t>(text[count] - '0');
    if (__builtin_add_overflow(value, digit, &value)) return std::nullopt;
  }
  if (count == 0) return std::nullopt;
  text.remove_prefix(count);
  return value;
}

std::optional<Decimal> decimal_take(std::string_view& text) {
  Decimal out;
  const auto whole = digits_take(text);
  if (!whole) return std::nullopt;
  out.whole = *whole;
  if (text.empty() || text.front() != '.') return out;
  text.remove_prefix(1);
  const std::size_t before = text.size();
  const auto fraction = digits_take(text);
  if (!fraction) return std::nullopt;
  out.fraction = *fraction;
  constexpr std::size_t kFractionDigitsMax = 18;  // scale stays within 64 bits
  if (before - text.size() > kFractionDigitsMax) return std::nullopt;
  for (std::size_t i = before - text.size(); i > 0; --i) out.scale *= 10;
  return out;
}

/// decimal * factor, rounded down; nothing if it does not fit or a number above zero would become
/// zero.
std::optional<std::uint64_t> decimal_scale(const Decimal& decimal, std::uint64_t factor) {
  const Wide value = static_cast<Wide>(decimal.whole) * factor +
                     static_cast<Wide>(decimal.fraction) * factor / decimal.scale;
  if (value > std::numeric_limits<std::uint64_t>::max()) return std::nullopt;
  if (value == 0 && !decimal.zero()) return std::nullopt;
  return static_cast<std::uint64_t>(value);
}

std::string_view word_take(std::string_view& text) {
  std::size_t count = 0;
  while (count < text.size() && is_letter(text[count])) ++count;
  const std::string_view word = text.substr(0, count);
  text.remove_prefix(count);
  return word;
}

void blanks_skip(std::string_view& text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
}

/// "1.5" from 150 hundredths; zeros at the end are left out.
std::string hundredths_format(std::uint64_t hundredths) {
  std::string out = std::to_string(hundredths / 100);
  const std::uint64_t rest = hundredths % 100;
  if (rest == 0) return out;
  out += '.';
  out += static_cast<char>('0' + rest / 10);
  if (rest % 10 != 0) out += static_cast<char>('0' + rest % 10);
  return out;
}

std::uint64_t hundredths_of(std::uint64_t value, std::uint64_t unit) {
  return static_cast<std::uint64_t>((static_cast<Wide>(value) * 100 + unit / 2) / unit);
}

}  // namespace

std::optional<std::uint64_t> size_parse(std::string_view text) {
  const auto number = decimal_take(text);
  if (!number) return std::nullopt;
  // Only nothing needs no unit: "2048" was meant to be MiB as often as bytes.
  if (text.empty())
    return number->zero() && number->scale == 1 ? std::optional<std::uint64_t>(0) : std::nullopt;
  blanks_skip(text);
  const std::string_view word = word_take(text);
  if (!text.empty()) return std::nullopt;
  for (const Unit& unit : kSizeUnits) {
    if (unit.name == word) return decimal_scale(*number, unit.factor);
  }
  return std::nullopt;
}

std::optional<std::int64_t> duration_parse(std::string_view text) {
  std::uint64_t total = 0;
  std::size_t next_unit = 0;  // units must come in falling order
  do {
    const auto number = decimal_take(text);
    if (!number) return std::nullopt;
    blanks_skip(text);
    const std::string_view word = word_take(text);
    while (next_unit < kTimeUnits.size() && kTimeUnits[next_unit].name != word) ++next_unit;
    if (next_unit == kTimeUnits.size()) return std::nullopt;
    const auto part = decimal_scale(*number, kTimeUnits[next_unit++].factor);
    if (!part || __builtin_add_overflow(total, *part, &total)) return std::nullopt;
    if (!text.empty()) {
      blanks_skip(text);
      if (text.empty()) return std::nullopt;
    }
    if (number->scale != 1 && !text.empty()) return std::nullopt;  // a fraction only at the end
  } while (!text.empty());
  if (total > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(total);
}

std::string size_format(std::uint64_t bytes) {
  constexpr std::array<const char*, 7> kNames{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  while (unit + 1 < kNames.size() && (bytes >> (10 * (unit + 1))) != 0) ++unit;
  std::uint64_t hundredths = hundredths_of(bytes, 1ULL << (10 * unit));
  if (hundredths >= 1024 * 100 && unit + 1 < kNames.size()) {  // 1023.999 KiB reads 1 MiB
    hundredths = 100;
    ++unit;
  }
  return hundredths_format(hundredths) + " " + kNames[unit];
}

std::string duration_format(std::int64_t ns) {
  const bool negative = ns < 0;
  std::uint64_t left =
      negative ? 0 - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
  constexpr std::uint64_t kMinute = 60'000'000'000ULL;
  std::string out = negative ? "-" : "";
  if (left < kMinute) {
    const Unit unit = left >= 1'000'000'000ULL ? Unit{"s", 1'000'000'000ULL}
                      : left >= 1'000'000ULL   ? Unit{"ms", 1'000'000ULL}
                      : left >= 1'000ULL       ? Unit{"us", 1'000ULL}
                                               : Unit{"ns", 1ULL};
    out += hundredths_format(hundredths_of(left, unit.factor));
    return out.append(" ").append(unit.name);
  }
  left -=
      left % (left < 60 * kMinute ? 1'000'000'000ULL : kMinute);  // two units are enough to read
  int written = 0;
  for (const Unit& unit : kTimeUnits) {
    if (left >= unit.factor && written < 2) {
      out.append(std::to_string(left / unit.factor)).append(unit.name);
      ++written;
    }
    left %= unit.factor;
  }
  return out;
}

namespace {

constexpr std::size_t kHostMax = 253;  // of the domain name system

/// Takes the brackets off an IPv6 address. False for what is neither an address nor a name.
bool host_parse(std::string* host) {
  unsigned char binary[sizeof(in6_addr)];
  if (host->size() > 2 && host->front() == '[' && host->back() == ']') {
    *host = host->substr(1, host->size() - 2);
    return inet_pton(AF_INET6, host->c_str(), binary) == 1;
  }
  // What has only digits and points is meant as an address; a resolver would take "1" for 0.0.0.1.
  if (host->find_first_not_of("0123456789.") == host->npos)
    return inet_pton(AF_INET, host->c_str(), binary) == 1;
  const auto part = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  bool good = host->size() <= kHostMax && part(host->front()) && part(host->back());
  for (const char c : *host) good = good && (part(c) || c == '-' || c == '.');
  return good;
}

}  // namespace

std::string listen_format(const ListenAddress& address) {
  const bool v6 = address.host.find(':') != address.host.npos;
  return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

std::optional<ListenAddress> listen_parse(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == text.npos) return std::nullopt;
  std::string host(text.substr(0, colon));
  std::string_view port = text.substr(colon + 1);
  if (!host_parse(&host)) return std::nullopt;
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos) {
    return std::nullopt;
  }
  const unsigned long number = std::stoul(std::string(port));
  if (number > 65535) return std::nullopt;
  return ListenAddress{std::move(host), static_cast<std::uint16_t>(number)};
}

std::string time_format(std::int64_t epoch_s, std::int64_t now_s) {
  if (epoch_s == 0) return "";
  const time_t when = epoch_s;
  const time_t now = now_s;
  tm local{};
  tm today{};
  char text[32];
  if (localtime_r(&when, &local) == nullptr || localtime_r(&now, &today) == nullptr)
    return std::to_string(epoch_s);
  const bool same_day = local.tm_year == today.tm_year && local.tm_yday == today.tm_yday;
  const char* format = same_day && when > now ? "%H:%M" : "%Y-%m-%d %H:%M";
  return std::string(text, strftime(text, sizeof text, format, &local));
}

std::string time_format(std::int64_t epoch_s) { return time_format(epoch_s, time(nullptr)); }

}  // namespace sluice::config
