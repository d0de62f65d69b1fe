// Starting the probe and reading its lines.
#include "broker/devices/probe.h"

#include <charconv>
#include <cstring>

#include "broker/devices/child.h"
#include "broker/devices/uuid.h"

namespace sluice::devices {
namespace {

constexpr std::string_view kRemoved[] = {
    "CUDA_VISIBLE_DEVICES=",  "CUDA_DEVICE_ORDER=",    "LD_PRELOAD=",
    "SLUICE_TENANT=",         "SLUICE_TENANT_LIMITS=", "SLUICE_SOCKET=",
    "NVIDIA_VISIBLE_DEVICES="};

bool field_take(std::string_view* rest, std::string_view key, std::string_view* value) {
  if (rest->substr(0, key.size()) != key) return false;
  rest->remove_prefix(key.size());
  const std::size_t end = rest->find(' ');
  *value = rest->substr(0, end);
  rest->remove_prefix(end == std::string_view::npos ? rest->size() : end + 1);
  return !value->empty();
}

bool number_parse(std::string_view text, std::uint64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc{} && end == text.data() + text.size();
}

std::string end_text(const ChildResult& result, std::int64_t deadline_ms) {
  switch (result.end) {
    case ChildResult::End::kTimedOut:
      return "the driver did not answer within " + std::to_string(deadline_ms) + " ms";
    case ChildResult::End::kSignalled:
      return "the probe died of signal " + std::to_string(result.status);
    case ChildResult::End::kNotStarted:
      return std::string("the probe could not be started: ") + std::strerror(result.status);
    case ChildResult::End::kExited:
      break;
  }
  return result.status == 0 ? "" : "the probe ended with status " + std::to_string(result.status);
}

}  // namespace

std::string probe_line(const ProbedGpu& gpu) {
  return uuid_format(gpu.uuid) + " total_bytes=" + std::to_string(gpu.total_bytes) +
         " context_bytes=" + std::to_string(gpu.context_bytes) +
         " unlisted_bytes=" + std::to_string(gpu.unlisted_bytes) + " method=" + gpu.method;
}

bool probe_line_parse(std::string_view line, ProbedGpu* out) {
  std::string_view uuid_text;
  std::string_view total;
  std::string_view context;
  std::string_view unlisted;
  std::string_view method;
  if (!field_take(&line, "", &uuid_text) || !field_take(&line, "total_bytes=", &total) ||
      !field_take(&line, "context_bytes=", &context) ||
      !field_take(&line, "unlisted_bytes=", &unlisted) || !field_take(&line, "method=", &method) ||
      !line.empty()) {
    return false;
  }
  const auto uuid = uuid_parse(uuid_text);
  if (!uuid || !number_parse(total, &out->total_bytes) ||
      !number_parse(context, &out->context_bytes) || !number_parse(unlisted, &out->unlisted_bytes))
    return false;
  out->uuid = *uuid;
  out->method = method;
  return true;
}

std::vector<std::string> probe_environment(const char* const* environment) {
  std::vector<std::string> out;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    bool removed = false;
    for (const std::string_view name : kRemoved)
      removed = removed || entry.substr(0, name.size()) == name;
    if (!removed) out.emplace_back(entry);
  }
  out.emplace_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");
  return out;
}

ProbeResult probe_run(const std::string& program, const char* const* environment,
                      std::int64_t deadline_ms) {
  ProbeResult result;
  ChildOptions options;
  options.program = program;
  options.environment = probe_environment(environment);
  options.deadline_ms = deadline_ms;
  const ChildResult child = child_run(options);
  result.fault = end_text(child, deadline_ms);
  std::string_view rest = child.output;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    ProbedGpu gpu;
    if (probe_line_parse(line, &gpu)) {
      result.gpus.push_back(gpu);
    } else if (!line.empty() && result.fault.empty()) {
      result.fault = "the probe said something unexpected: " + std::string(line.substr(0, 120));
    }
  }
  return result;
}

}  // namespace sluice::devices
