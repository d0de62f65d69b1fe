// The inventory of GPUs through NVML, loaded with dlopen and declared here by hand: the CUDA
// toolkit need not ship its header and the machine need not have the library. Must not know of
// tenants, quotas or the broker. NVML never creates a context and does not look at
// CUDA_VISIBLE_DEVICES, so it sees every GPU whatever the caller's environment says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/protocol/words.h"

namespace sluice::devices {

/// One physical (or software) GPU, in NVML's order, which is the order of PCI addresses.
struct GpuInfo {
  protocol::GpuUuid uuid{};
  std::string name;
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;
  bool software = false;  // the software GPU says so in its name
};

struct ProcessMemory {
  std::uint32_t pid = 0;
  std::uint64_t used_bytes = 0;
};

/// What went wrong and what to do about it, ready to print after "sluice: ".
struct DeviceError {
  std::string text;
};

inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";
inline constexpr char kSoftwareNamePrefix[] = "Software GPU";

/// How a GPU that has fallen off the bus is brought back.
const char* lost_remedy(bool software);

/// One opened NVML. Single-threaded use.
class Nvml {
 public:
  /// Null, with `error` filled, when there is no library, no driver, no permission.
  static std::unique_ptr<Nvml> open(const char* library, DeviceError* error);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// Every GPU; false with `error` when there is none or one cannot be asked. Those that have
  /// fallen off the bus are left out: true, and `error` tells of them.
  [[nodiscard]] bool gpus(std::vector<GpuInfo>* out, DeviceError* error) const;
  /// Whether the GPU has stopped answering for good (until a reset). Like every question here it
  /// goes to the kernel driver, which may take long over a sick device: not for an event loop.
  bool lost(const protocol::GpuUuid& uuid) const;
  /// Bytes used on the whole device now; nothing when unknown.
  std::optional<std::uint64_t> used_bytes(const protocol::GpuUuid& uuid) const;
  /// Compute processes on the device with their memory. False where the driver does not tell.
  [[nodiscard]] bool processes(const protocol::GpuUuid& uuid,
                               std::vector<ProcessMemory>* out) const;
  /// Pids of processes that have had work on the device since that time (CLOCK_REALTIME). False
  /// where the driver does not tell.
  [[nodiscard]] bool busy(const protocol::GpuUuid& uuid, std::uint64_t since_us,
                          std::vector<std::uint32_t>* out) const;

 private:
  struct Table;
  explicit Nvml(std::unique_ptr<Table> table);
  std::unique_ptr<Table> table_;
};

}  // namespace sluice::devices
