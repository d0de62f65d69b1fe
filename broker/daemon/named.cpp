// Replacement of "user N" and of UUIDs.
#include "broker/daemon/named.h"

#include <algorithm>
#include <charconv>

#include "broker/devices/uuid.h"

namespace sluice::daemon {

std::string people_named(const std::string& text, const std::function<std::string(uid_t)>& name) {
  constexpr std::string_view kWord = "user ";
  std::string out;
  std::size_t at = 0;
  for (std::size_t found = text.find(kWord); found != text.npos; found = text.find(kWord, at)) {
    const std::size_t begin = found + kWord.size();
    out.append(text, at, begin - at);
    uid_t uid = 0;
    const auto number = std::from_chars(text.data() + begin, text.data() + text.size(), uid);
    at = static_cast<std::size_t>(number.ptr - text.data());
    if (number.ec == std::errc{})
      out += name(uid);
    else
      at = begin;
  }
  return out.append(text, at);
}

std::string gpus_named(const std::string& text, const std::vector<protocol::GpuUuid>& gpus) {
  std::string out = text;
  for (std::size_t g = 0; g < gpus.size(); ++g) {
    const std::string uuid = devices::uuid_format(gpus[g]);
    const std::string index = "GPU " + std::to_string(g) + " (";
    for (std::size_t at = out.find(uuid); at != out.npos; at = out.find(uuid, at)) {
      if (at > 0 && out[at - 1] == '(') {
        at += uuid.size();
        continue;
      }
      out.replace(at, uuid.size(), index + uuid + ")");
      at += index.size() + uuid.size();
    }
  }
  return out;
}

std::string idle_named(const std::string& text,
                       const std::function<std::string(protocol::TenantId)>& idle) {
  constexpr std::string_view kWord = "{idle ";
  std::string out;
  std::size_t at = 0;
  for (std::size_t found = text.find(kWord); found != text.npos; found = text.find(kWord, at)) {
    out.append(text, at, found - at);
    protocol::TenantId id = 0;
    const char* const end = text.data() + text.size();
    const auto number = std::from_chars(text.data() + found + kWord.size(), end, id);
    const bool good = number.ec == std::errc{} && number.ptr != end && *number.ptr == '}';
    at = found + (good ? 0 : kWord.size());
    if (!good) {
      out += kWord;
      continue;
    }
    out += idle(id);
    at = static_cast<std::size_t>(number.ptr - text.data()) + 1;
  }
  return out.append(text, at);
}

std::string owned_text(const std::string& name, const std::string& user, std::size_t bytes_most) {
  const std::string of = " of " + user;
  std::size_t kept = std::min(name.size(), bytes_most - std::min(bytes_most, of.size()));
  const auto inside = [&] { return (static_cast<unsigned char>(name[kept]) & 0xC0) == 0x80; };
  while (kept > 0 && kept < name.size() && inside()) --kept;
  return name.substr(0, kept) + of;
}

}  // namespace sluice::daemon
