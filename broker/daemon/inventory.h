// The GPUs a broker serves: what NVML lists, with the capacity and context cost that the probe
// measured. Taken once, at start.
#pragma once

#include <string>
#include <vector>

#include "broker/daemon/log.h"
#include "broker/devices/nvml.h"

namespace sluice::daemon {

struct ServedGpu {
  protocol::GpuUuid uuid{};
  std::string name;
  std::uint64_t capacity_bytes = 0;  // what tenants together may be promised
  std::uint64_t context_bytes = 0;   // 0 = unknown
  bool software = false;
  std::uint64_t size_bytes = 0;      // as its figure of what is in use counts
  bool lists_processes = false;      // the driver tells what each process has, by its pid
  std::uint64_t unlisted_bytes = 0;  // what it has for a process beyond that; 0 = unknown
};

/// Lists and probes. False with `error` (without prefix) when the machine has no usable GPU. A
/// probe that fails costs the context figure only, and is logged.
[[nodiscard]] bool inventory_take(std::uint64_t reserve_bytes, Log& log,
                                  std::vector<ServedGpu>* out, std::string* error);

/// The path of a program of the same installation as this one.
std::string program_beside(const char* name);

}  // namespace sluice::daemon
