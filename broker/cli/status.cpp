// Fetch and print; the words both forms share.
#include "broker/cli/status.h"

#include <cstdio>
#include <cstring>

namespace sluice::cli {

const char* class_name(protocol::TenantClass tenant_class) {
  constexpr const char* kNames[] = {"inference", "debug", "batch", "exclusive"};
  const auto index = static_cast<std::size_t>(tenant_class);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

const char* sm_kind_name(protocol::SmKind kind) {
  return kind == protocol::SmKind::kGuaranteed ? "guaranteed" : "weight";
}

const char* sm_mode_name(protocol::SmMode mode) {
  constexpr const char* kNames[] = {"best-effort", "equal", "fixed"};
  const auto index = static_cast<std::size_t>(mode);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

const char* state_name(protocol::TenantState state) {
  constexpr const char* kNames[] = {"queued", "running", "swapped", "suspended"};
  const auto index = static_cast<std::size_t>(state);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

std::string distrust_text(std::uint8_t distrust) {
  std::string text;
  for (std::size_t kind = 0; kind < protocol::kDistrusts; ++kind)
    if ((distrust >> kind & 1) != 0)
      text += (text.empty() ? "" : ", ") + std::string(protocol::kDistrustNames[kind]);
  return text;
}

std::string seconds_text(std::uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ns) / 1e9);
  return text;
}

std::string field_text(const char* field, std::size_t size) {
  return std::string(field, strnlen(field, size));
}

int status_command(const StatusOptions& options) {
  const SocketChoice choice = socket_choose(options.socket);
  std::string error;
  auto client = Client::connect(choice.path, &error);
  const auto snapshot = client ? snapshot_fetch(*client, &error) : std::nullopt;
  if (!snapshot) {
    std::fprintf(stderr, "sluice: %s\n", error.c_str());
    return 1;
  }
  std::fputs((options.json ? status_json(*snapshot, choice.path) : status_table(*snapshot)).c_str(),
             stdout);
  return 0;
}

}  // namespace sluice::cli
