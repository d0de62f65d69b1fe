// Reading what the jobs and the devices wrote down: JSON lines of the trainer, the inference
// service and the debug jobs, and the software devices' accounts.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/lab/metrics.h"

namespace sluice::lab {

struct TrainingLog {
  bool started = false;
  std::vector<Step> steps;
  std::optional<double> accuracy;  // of the last evaluation
  std::optional<double> loss;
  std::string status;         // of the end record; empty = it never said that it ended
  std::size_t bad_lines = 0;  // not JSON: a line cut by a kill
};
TrainingLog training_log_read(const std::string& path);

struct InferenceLog {
  bool ready = false;
  std::vector<Request> requests;
  std::size_t bad_lines = 0;
};
InferenceLog inference_log_read(const std::string& path);

/// First-result time of one debug job's log.
std::optional<std::int64_t> debug_log_first_result(const std::string& path);

/// True when the log at `path` holds an event of this name (progress checks while a job runs).
bool log_has_event(const std::string& path, const std::string& event);

struct ProcessUse {
  std::string name;
  double busy_s = 0;
  double lag_s = 0;
};
struct DeviceAccount {
  std::string uuid;
  double elapsed_s = 0, busy_s = 0, lag_s = 0;
  std::uint64_t used_bytes = 0, capacity_bytes = 0;
  std::map<int, ProcessUse> processes;  // by pid
};
/// Parses `softgpu-ctl accounts --json`; nothing when it is not that.
std::optional<std::vector<DeviceAccount>> accounts_parse(const std::string& text);
/// later - earlier, GPU by GPU and process by process.
std::vector<DeviceAccount> accounts_difference(const std::vector<DeviceAccount>& earlier,
                                               const std::vector<DeviceAccount>& later);

}  // namespace sluice::lab
