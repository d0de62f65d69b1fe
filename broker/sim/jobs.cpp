#include "broker/sim/jobs.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "broker/sim/scenarios.h"
#include "broker/sim/units.h"

namespace sluice::sim {
namespace {

using nlohmann::json;

constexpr Nanos kMicro = 1'000;
constexpr Nanos kWindowDefaultNs = 20'000'000;  // [class.*] window, but for inference
constexpr Nanos kSyncHostNs = 5 * kMicro;

[[noreturn]] void refuse(const std::string& text) { throw std::runtime_error(text); }

/// Returns the whole number `key`, from `least` to `most`.
std::uint32_t number(const json& job, const char* key, std::uint32_t most,
                     std::optional<std::uint32_t> otherwise = std::nullopt,
                     std::uint32_t least = 1) {
  const auto found = job.find(key);
  if (found == job.end()) {
    if (!otherwise) refuse(std::string(key) + " is missing");
    return *otherwise;
  }
  if (!found->is_number_integer() || *found < least || *found > most)
    refuse(std::string(key) + " is a whole number from " + std::to_string(least) + " to " +
           std::to_string(most));
  return found->get<std::uint32_t>();
}

template <class Value>
Value named(const json& job, const char* key, const std::map<std::string, Value>& values,
            const char* otherwise) {
  const auto word = job.value(key, std::string(otherwise));
  const auto found = values.find(word);
  if (found != values.end()) return found->second;
  std::string all;
  for (const auto& [name, value] : values) all += (all.empty() ? "" : ", ") + name;
  refuse(std::string(key) + " is one of " + all);
}

constexpr std::uint32_t kTimeMostUs = 600'000'000;
constexpr std::uint32_t kKernelsMost = 10'000;
constexpr std::uint32_t kGpusMost = 64;
constexpr std::uint32_t kWindowMostMs = 600'000;

Nanos time_of(const json& job, const char* key,
              std::optional<std::uint32_t> otherwise = std::nullopt) {
  return number(job, key, kTimeMostUs, otherwise, otherwise == 0 ? 0 : 1) * kMicro;
}

/// A gang: one process on each of its GPUs.
void training_read(const json& job, std::uint32_t gpus, JobSpec& out) {
  out.behaviour = Behaviour::kTraining;
  out.gpu_count = number(job, "gpus", gpus, gpus);
  out.kernels = number(job, "kernels", kKernelsMost, 10);
  out.communication_ns = time_of(job, "collective_us", 500);
  out.collective_host_ns = time_of(job, "host_us", 0);
}

void program_read(const json& job, std::uint32_t gpus, JobSpec& out) {
  const auto program = job.value("program", std::string());
  out.kernel_ns = time_of(job, "kernel_us");
  if (program == "loop") {
    out.queue_depth = number(job, "depth", kKernelsMost, 4);
  } else if (program == "bursts") {
    out.behaviour = Behaviour::kBursts;
    out.kernels = out.queue_depth = number(job, "kernels", kKernelsMost, 10);
    out.think_ns = time_of(job, "pause_us");
  } else if (program == "graphs") {
    out.launch_kernels = number(job, "kernels", kKernelsMost);
    out.queue_depth = number(job, "depth", kKernelsMost, 2);
  } else if (program == "sync") {
    out.queue_depth = 1;
    out.host_ns = kSyncHostNs;
  } else if (program == "requests") {
    out.behaviour = Behaviour::kRequests;
    out.kernels = out.queue_depth = number(job, "kernels", kKernelsMost, 10);
    out.rate_hz = 1e9 / static_cast<double>(time_of(job, "gap_us"));
  } else if (program == "training") {
    training_read(job, gpus, out);
  } else {
    refuse("program is one of bursts, graphs, loop, requests, sync, training");
  }
}

/// A word that is written wrong would else be left out in silence.
void keys_check(const json& job) {
  const std::set<std::string> known = {"class",     "collective_us", "depth",   "gap_us",
                                       "gpu",       "gpus",          "host_us", "jitter_percent",
                                       "kernel_us", "kernels",       "mode",    "name",
                                       "pause_us",  "percent",       "program", "weight"};
  std::string all;
  for (const std::string& key : known) all += (all.empty() ? "" : ", ") + key;
  for (const auto& [key, value] : job.items())
    if (!known.contains(key)) refuse("there is no " + key + "; there are " + all);
}

JobSpec job_read(const json& job, std::uint32_t gpus) {
  if (!job.is_object()) refuse("it is no object");
  keys_check(job);
  JobSpec out;
  out.name = job.value("name", std::string("job"));
  out.sm_percent = number(job, "percent", 100);
  out.tenant_class = named<TenantClass>(job, "class",
                                        {{"inference", TenantClass::kInference},
                                         {"batch", TenantClass::kBatch},
                                         {"debug", TenantClass::kDebug}},
                                        "batch");
  out.sm_mode = named<SmMode>(
      job, "mode",
      {{"best-effort", SmMode::kBestEffort}, {"equal", SmMode::kEqual}, {"fixed", SmMode::kFixed}},
      "best-effort");
  program_read(job, gpus, out);
  out.sm_weight = job.value("weight", false);
  out.kernel_jitter = number(job, "jitter_percent", 100, 0, 0) / 100.0;
  if (job.contains("gpu")) out.pinned = {number(job, "gpu", gpus - 1, std::nullopt, 0)};
  if (out.gpu_count > 1 && !out.pinned.empty()) refuse("gpu is for programs on one GPU");
  return out;
}

Experiment experiment_read(const json& text, std::uint64_t seed) {
  const auto jobs = text.is_object() ? text.find("jobs") : text.end();
  if (jobs == text.end() || !jobs->is_array() || jobs->empty()) refuse("it has no list \"jobs\"");
  Experiment setup;
  setup.seed = seed;
  setup.gpus.resize(number(text, "gpus", kGpusMost, 1));
  setup.window_ns = Nanos{number(text, "window_ms", kWindowMostMs, 1000)} * 1000 * kMicro;
  setup.policy = policy_usual();
  for (core::ClassPolicy& policy : setup.policy.classes) policy.sm = core::SmRule::kAsked;
  for (const TenantClass narrow : {TenantClass::kBatch, TenantClass::kDebug})
    setup.policy.classes[static_cast<std::size_t>(narrow)].window_ns = kWindowDefaultNs;
  for (std::size_t i = 0; i < jobs->size(); ++i) {
    try {
      setup.jobs.push_back(job_read((*jobs)[i], static_cast<std::uint32_t>(setup.gpus.size())));
    } catch (const std::exception& problem) {
      refuse("job " + std::to_string(i + 1) + ": " + problem.what());
    }
  }
  if (text.value("busy_host", false))
    for (JobSpec& job : setup.jobs) job.busy_host = true;
  return setup;
}

}  // namespace

std::optional<Experiment> jobs_read(std::istream& text, std::uint64_t seed, std::string* error) {
  try {
    return experiment_read(json::parse(text), seed);
  } catch (const std::exception& problem) {
    const std::string said = problem.what();
    // The library says its own numbers first: "[json.exception.parse_error.101] ".
    *error = said.substr(said.starts_with('[') ? said.find("] ") + 2 : 0);
    return std::nullopt;
  }
}

}  // namespace sluice::sim
