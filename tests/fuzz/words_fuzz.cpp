// Everything that reads a short text, under arbitrary bytes: sizes, durations, addresses, the
// tenant's variable, GPU names, the lines of helper programs, and what is cleaned for a terminal.
//
// The first byte chooses the reader. Holds for every text: reading ends, and what is believed can
// be written and read again as the same.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "broker/daemon/validate.h"
#include "broker/devices/checkpoint_lines.h"
#include "broker/devices/probe.h"
#include "broker/devices/uuid.h"
#include "broker/protocol/wire.h"
#include "config/reader/config.h"
#include "tests/fuzz/target.h"

namespace {

using namespace sluice;
using fuzz::require;

void size_try(std::string_view text) {
  const auto bytes = config::size_parse(text);
  if (!bytes) return;
  require(config::size_parse(std::to_string(*bytes) + "B") == bytes);
  require(config::size_format(*bytes).size() < 16);
}

void duration_try(std::string_view text) {
  const auto ns = config::duration_parse(text);
  if (!ns) return;
  require(*ns >= 0);
  require(config::duration_parse(std::to_string(*ns) + "ns") == ns);
  require(config::duration_parse(config::duration_format(*ns)).has_value());
}

void listen_try(std::string_view text) {
  const auto address = config::listen_parse(text);
  if (!address) return;
  const auto again = config::listen_parse(config::listen_format(*address));
  require(again && again->host == address->host && again->port == address->port);
}

void tenant_try(const std::string& text) {
  protocol::TenantId tenant = 0;
  protocol::JoinKey key = 0;
  if (!protocol::tenant_parse(text.c_str(), &tenant, &key)) return;
  char again[protocol::kTenantTextBytes];
  protocol::tenant_format(tenant, key, again);
  require(std::strcmp(again, text.c_str()) == 0);
}

void uuid_try(std::string_view text) {
  const auto uuid = devices::uuid_parse(text);
  if (!uuid) return;
  const auto again = devices::uuid_parse(devices::uuid_format(*uuid));
  require(again && *again == *uuid);
}

void probe_try(std::string_view text) {
  devices::ProbedGpu gpu;
  if (!devices::probe_line_parse(text, &gpu)) return;
  devices::ProbedGpu again;
  require(devices::probe_line_parse(devices::probe_line(gpu), &again));
  require(again.uuid == gpu.uuid && again.total_bytes == gpu.total_bytes &&
          again.context_bytes == gpu.context_bytes && again.method == gpu.method);
}

void checkpoint_line_try(std::string_view text) {
  devices::CheckpointLine line;
  if (!devices::checkpoint_line_parse(text, &line)) return;
  const std::string written = devices::checkpoint_line(line);
  require(devices::checkpoint_line_parse(written, &line));
  require(devices::checkpoint_line(line) == written);
  require(!devices::checkpoint_fault_text(line, 1).empty());
}

void checkpoint_arguments_try(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = text.find(' ');
    words.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  devices::CheckpointArguments arguments;
  if (!devices::checkpoint_arguments_parse(words, &arguments)) return;
  const std::vector<std::string> written = devices::checkpoint_arguments(arguments);
  devices::CheckpointArguments again;
  require(devices::checkpoint_arguments_parse({written.begin(), written.end()}, &again));
  require(devices::checkpoint_arguments(again) == written);
}

void clean_try(std::string_view text) {
  const std::string clean = daemon::text_clean(text.data(), text.size());
  require(clean.size() <= text.size());
  for (const char c : clean) require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
  require(daemon::text_clean(clean.data(), clean.size()) == clean);
}

}  // namespace

FUZZ_TARGET(words) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 9) {
    case 0:
      size_try(text);
      break;
    case 1:
      duration_try(text);
      break;
    case 2:
      listen_try(text);
      break;
    case 3:
      tenant_try(text);
      break;
    case 4:
      uuid_try(text);
      break;
    case 5:
      probe_try(text);
      break;
    case 6:
      checkpoint_line_try(text);
      break;
    case 7:
      checkpoint_arguments_try(text);
      break;
    default:
      clean_try(text);
  }
  return 0;
}
