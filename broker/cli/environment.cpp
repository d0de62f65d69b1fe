// Composing environments.
#include "broker/cli/environment.h"

#include <unistd.h>

#include <algorithm>

#include "broker/cli/paths.h"
#include "broker/devices/uuid.h"
#include "broker/protocol/tenant_limits.h"
#include "broker/protocol/wire.h"
#include "config/reader/keys.h"

namespace sluice::cli {
namespace {

constexpr char kPreload[] = "LD_PRELOAD";
constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";
constexpr char kShimName[] = "libsluice.so";

// ld.so(8): items of LD_PRELOAD are separated by spaces or colons, those of LD_LIBRARY_PATH by
// colons or semicolons.
std::vector<std::string_view> items(std::string_view list, std::string_view separators) {
  std::vector<std::string_view> out;
  while (!list.empty()) {
    const std::size_t end = list.find_first_of(separators);
    if (end != 0) out.push_back(list.substr(0, end));
    if (end == std::string_view::npos) break;
    list.remove_prefix(end + 1);
  }
  return out;
}

void item_append(std::string* list, std::string_view item) {
  if (!list->empty()) *list += ':';
  *list += item;
}

}  // namespace

Environment environment_read(const char* const* environment) {
  Environment out;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::size_t equals = entry.find('=');
    if (equals != std::string_view::npos)
      out.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return out;
}

std::vector<std::string> environment_strings(const Environment& environment) {
  std::vector<std::string> out;
  for (const auto& [name, value] : environment) out.push_back(name + "=" + value);
  return out;
}

std::string preload_without(std::string_view present, std::string_view library_name) {
  std::string out;
  for (const std::string_view item : items(present, ": ")) {
    if (file_name(item) != library_name) item_append(&out, item);
  }
  return out;
}

std::string preload_merge(std::string_view present, const std::string& library) {
  std::string out = preload_without(present, file_name(library));
  item_append(&out, library);
  return out;
}

std::string path_prepend(std::string_view present, const std::string& directory) {
  std::string out = directory;
  for (const std::string_view item : items(present, ":;")) {
    if (item != directory) item_append(&out, item);
  }
  return out;
}

void environment_enter(Environment* environment, const RunEnvironment& run) {
  (*environment)[kPreload] = preload_merge((*environment)[kPreload], run.shim);
  (*environment)[protocol::kTenantVariable] = run.tenant;
  environment->erase(protocol::kTenantLimitsVariable);
  if (!run.limits.empty()) (*environment)[protocol::kTenantLimitsVariable] = run.limits;
  environment->erase(protocol::kSocketVariable);
  if (!run.socket.empty()) (*environment)[protocol::kSocketVariable] = run.socket;
  std::string visible;
  for (const protocol::GpuUuid& gpu : run.gpus) {
    if (!visible.empty()) visible += ',';
    visible += devices::uuid_format(gpu);
  }
  (*environment)[kVisible] = visible;
}

void environment_soften(Environment* environment, const std::string& directory, unsigned count) {
  (*environment)["LD_LIBRARY_PATH"] = path_prepend((*environment)["LD_LIBRARY_PATH"], directory);
  (*environment)["SOFTGPU_COUNT"] = std::to_string(count);
}

void environment_reach_soft(Environment* environment, const std::string& directory) {
  std::string& path = (*environment)["LD_LIBRARY_PATH"];
  for (const std::string_view item : items(path, ":;"))
    if (access((std::string(item) + "/libcuda.so.1").c_str(), R_OK) == 0) return;
  path = path_prepend(path, directory);
}

std::vector<std::string> environment_unknown(const Environment& environment) {
  constexpr std::string_view kPrefix = "SLUICE_";
  const std::vector<std::string> known = {protocol::kSocketVariable, protocol::kTenantVariable,
                                          protocol::kTenantLimitsVariable, "SLUICE_MEMORY",
                                          "SLUICE_SM"};
  std::vector<std::string> lines;
  if (environment.contains(protocol::kTenantVariable)) return lines;
  for (auto at = environment.lower_bound(std::string(kPrefix));
       at != environment.end() && at->first.starts_with(kPrefix); ++at) {
    if (std::ranges::find(known, at->first) != known.end()) continue;
    const std::string near = config::word_nearest(at->first, known);
    lines.push_back(
        "the variable " + at->first + " means nothing to Sluice; " +
        (near.empty() ? "sluice run --help names those that do" : "did you mean " + near + "?"));
  }
  return lines;
}

void environment_leave(Environment* environment) {
  environment->erase(protocol::kTenantVariable);
  environment->erase(protocol::kTenantLimitsVariable);
  environment->erase(protocol::kSocketVariable);
  environment->erase(kVisible);
  const auto preload = environment->find(kPreload);
  if (preload == environment->end()) return;
  preload->second = preload_without(preload->second, kShimName);
  if (preload->second.empty()) environment->erase(preload);
}

}  // namespace sluice::cli
