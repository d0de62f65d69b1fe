#include "trainer/lab/records.h"

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

namespace sluice::lab {
namespace {

using nlohmann::json;

// Calls `use` for every whole record; returns how many lines were not JSON objects.
std::size_t lines_read(const std::string& path,
                       const std::function<void(const std::string&, const json&)>& use) {
  std::ifstream file(path);
  std::string line;
  std::size_t bad = 0;
  while (std::getline(file, line)) {
    const json record = json::parse(line, nullptr, false);
    if (record.is_object() && record.contains("event")) {
      use(record.value("event", ""), record);
    } else if (!line.empty()) {
      ++bad;
    }
  }
  return bad;
}

double seconds(const json& object, const char* key) { return object.value(key, 0.0) * 1e-9; }

}  // namespace

TrainingLog training_log_read(const std::string& path) {
  TrainingLog out;
  out.bad_lines = lines_read(path, [&](const std::string& event, const json& r) {
    if (event == "start") out.started = true;
    if (event == "step") {
      out.steps.push_back({r.value("rank", 0u), r.value("t_ns", std::int64_t{0}),
                           r.value("duration_ns", std::int64_t{0}),
                           r.value("communication_ns", std::int64_t{0})});
    }
    if (event == "eval") {
      out.accuracy = r.value("accuracy", 0.0);
      out.loss = r.value("loss", 0.0);
    }
    if (event == "end") out.status = r.value("status", "");
  });
  return out;
}

InferenceLog inference_log_read(const std::string& path) {
  InferenceLog out;
  out.bad_lines = lines_read(path, [&](const std::string& event, const json& r) {
    if (event == "ready") out.ready = true;
    if (event != "request") return;
    Request request{r.value("arrival_ns", std::int64_t{0}), std::nullopt};
    if (r.contains("done_ns") && r["done_ns"].is_number_integer())
      request.done_ns = r["done_ns"].get<std::int64_t>();
    out.requests.push_back(request);
  });
  return out;
}

std::optional<std::int64_t> debug_log_first_result(const std::string& path) {
  std::optional<std::int64_t> out;
  lines_read(path, [&](const std::string& event, const json& r) {
    if (event == "first_result" && !out) out = r.value("t_ns", std::int64_t{0});
  });
  return out;
}

bool log_has_event(const std::string& path, const std::string& event) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.find("\"event\":\"" + event + "\"") != std::string::npos) return true;
  }
  return false;
}

std::optional<std::vector<DeviceAccount>> accounts_parse(const std::string& text) {
  const json root = json::parse(text, nullptr, false);
  const json* list = root.is_array()                                ? &root
                     : root.is_object() && root.contains("devices") ? &root["devices"]
                                                                    : nullptr;
  if (list == nullptr || !list->is_array()) return std::nullopt;
  std::vector<DeviceAccount> out;
  for (const json& d : *list) {
    DeviceAccount device;
    device.uuid = d.value("uuid", "");
    device.elapsed_s = seconds(d, "elapsed_ns");
    device.busy_s = seconds(d, "busy_ns");
    device.lag_s = seconds(d, "lag_ns");
    device.used_bytes = d.value("used_bytes", std::uint64_t{0});
    device.capacity_bytes = d.value("capacity_bytes", std::uint64_t{0});
    for (const json& p : d.value("processes", json::array())) {
      // A pid may return after a process has died; their accounts add up.
      ProcessUse& use = device.processes[p.value("pid", 0)];
      use.name = p.value("name", "");
      use.busy_s += seconds(p, "busy_ns");
      use.lag_s += seconds(p, "lag_ns");
    }
    out.push_back(std::move(device));
  }
  return out;
}

std::vector<DeviceAccount> accounts_difference(const std::vector<DeviceAccount>& earlier,
                                               const std::vector<DeviceAccount>& later) {
  std::vector<DeviceAccount> out = later;
  for (DeviceAccount& device : out) {
    for (const DeviceAccount& before : earlier) {
      if (before.uuid != device.uuid) continue;
      device.elapsed_s -= before.elapsed_s;
      device.busy_s -= before.busy_s;
      device.lag_s -= before.lag_s;
      for (auto& [pid, use] : device.processes) {
        const auto old = before.processes.find(pid);
        if (old == before.processes.end()) continue;
        use.busy_s -= old->second.busy_s;
        use.lag_s -= old->second.lag_s;
      }
    }
  }
  return out;
}

}  // namespace sluice::lab
