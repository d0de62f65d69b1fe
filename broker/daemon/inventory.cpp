// NVML first, then the probe beside the program.
#include "broker/daemon/inventory.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>

#include "broker/devices/probe.h"
#include "broker/devices/uuid.h"

extern char** environ;

namespace sluice::daemon {
namespace {

// A cold driver initialises eight large GPUs in some seconds; a hung one never.
constexpr std::int64_t kProbeDeadline_ms = 60'000;
/// What an H100's driver has. Where no process used the GPU before, the probe's own context takes
/// what the driver has for itself, too.
constexpr std::uint64_t kUnlistedMost = 8 << 20;

void probe_apply(const devices::ProbedGpu& probed, std::vector<ServedGpu>* gpus) {
  for (ServedGpu& gpu : *gpus) {
    if (!(gpu.uuid == probed.uuid)) continue;
    gpu.context_bytes = probed.context_bytes;
    gpu.lists_processes = probed.method == "process";
    gpu.unlisted_bytes = std::min(probed.unlisted_bytes, kUnlistedMost);
    // What the driver hands out is less than what NVML counts: it keeps a part of the memory for
    // itself.
    if (probed.total_bytes != 0 && probed.total_bytes < gpu.capacity_bytes)
      gpu.capacity_bytes = probed.total_bytes;
  }
}

/// Takes `bytes` off what is promised of each GPU. False = none has anything left.
bool reserve_keep(std::uint64_t bytes, Log& log, std::vector<ServedGpu>* gpus, std::string* error) {
  bool any = gpus->empty();
  for (ServedGpu& gpu : *gpus) {
    const bool all = bytes != 0 && gpu.capacity_bytes <= bytes;
    if (all) {
      *error = "[memory] reserve keeps back all " + std::to_string(gpu.capacity_bytes >> 20) +
               " MiB of " + devices::uuid_format(gpu.uuid) + ", so no job gets any; lower it";
      log.message(Level::kWarning, "reserve_too_large", *error, {});
    }
    any |= !all;
    gpu.capacity_bytes -= all ? gpu.capacity_bytes : bytes;
  }
  return any;
}

}  // namespace

std::string program_beside(const char* name) {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return name;
  std::string text(path, static_cast<std::size_t>(length));
  return text.substr(0, text.rfind('/') + 1) + name;
}

bool inventory_take(std::uint64_t reserve_bytes, Log& log, std::vector<ServedGpu>* out,
                    std::string* error) {
  devices::DeviceError fault;
  std::vector<devices::GpuInfo> listed;
  {
    const auto nvml = devices::Nvml::open(devices::kNvmlLibrary, &fault);
    if (nvml == nullptr || !nvml->gpus(&listed, &fault)) {
      *error = fault.text;
      return false;
    }
    if (!fault.text.empty()) log.message(Level::kWarning, "gpus_lost", fault.text, {});
  }
  out->clear();
  for (const devices::GpuInfo& gpu : listed)
    out->push_back(
        {gpu.uuid, gpu.name, gpu.total_bytes, 0, gpu.software, gpu.total_bytes, false, 0});
  const devices::ProbeResult probed =
      devices::probe_run(program_beside("sluice-probe"), environ, kProbeDeadline_ms);
  if (!probed.fault.empty()) {
    log.message(Level::kWarning, "probe_failed",
                "the cost of a context could not be measured: " + probed.fault +
                    "; quotas below it will not be refused; check the driver with sluice doctor",
                {});
  }
  for (const devices::ProbedGpu& gpu : probed.gpus) probe_apply(gpu, out);
  if (!reserve_keep(reserve_bytes, log, out, error)) return false;
  for (const ServedGpu& gpu : *out) {
    log.line(Level::kInfo, "gpu",
             {{"uuid", devices::uuid_format(gpu.uuid)},
              {"name", gpu.name},
              {"capacity_bytes", gpu.capacity_bytes},
              {"context_bytes", gpu.context_bytes},
              {"software", gpu.software ? "yes" : "no"}});
  }
  return true;
}

}  // namespace sluice::daemon
