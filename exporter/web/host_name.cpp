// Host = uri-host [ ":" port ], RFC 9110, section 7.2.
#include "exporter/web/host_name.h"

#include <arpa/inet.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace sluice::exporter {
namespace {

bool is_address(int family, const std::string& text) {
  unsigned char address[sizeof(in6_addr)];
  return inet_pton(family, text.c_str(), address) == 1;
}

std::string without_port(std::string_view host) {
  const auto colon = host.rfind(':');
  if (colon != host.npos) host = host.substr(0, colon);
  if (host.ends_with('.')) host.remove_suffix(1);
  return std::string(host);
}

}  // namespace

bool host_is_ours(std::string_view host, const std::vector<std::string>& names) {
  if (host.starts_with('[')) {
    const auto end = host.find(']');
    return end != host.npos && is_address(AF_INET6, std::string(host.substr(1, end - 1)));
  }
  const std::string name = without_port(host);
  const auto is_name = [&name](const std::string& known) {
    return !known.empty() && strcasecmp(known.c_str(), name.c_str()) == 0;
  };
  return is_address(AF_INET, name) || is_name("localhost") ||
         std::any_of(names.begin(), names.end(), is_name);
}

std::string machine_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace sluice::exporter
