// Replacement of "user N" and of UUIDs.
#include "broker/daemon/named.h"

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

}  // namespace sluice::daemon
