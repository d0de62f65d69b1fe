// What the driver says about the GPUs, beside what the broker says: how much memory is in use, by
// which processes, and which errors (Xid) came. NVML is loaded if it is there and declared here by
// hand. It is asked on a thread of its own: over a sick GPU a question may never return. It must
// not know of tenants.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sluice::exporter {

struct DeviceProcess {
  std::uint32_t pid = 0;
  std::optional<std::uint64_t> used_bytes;  // drivers may not tell
};

struct DeviceLook {
  std::optional<std::uint64_t> used_bytes;
  // Of the driver's last period, up to a second: fraction in which any kernel ran.
  std::optional<double> busy_ratio;
  // Since the look before: fraction of the SMs that had work, on average. Few GPUs tell.
  std::optional<double> sm_ratio;
  std::optional<std::vector<DeviceProcess>> processes;
  std::map<std::uint64_t, std::uint64_t> xids;  // how often each came since the exporter started
};

/// By UUID as text. `up`: the driver answered just now; otherwise there is nothing else.
struct DeviceFigures {
  bool up = false;
  std::map<std::string, DeviceLook> gpus;
};

/// Xid numbers that are counted from zero, so that the first of them can be alerted on; of others
/// so many are told apart.
inline constexpr std::uint64_t kXidsKnown[] = {13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95};
inline constexpr std::size_t kXidsMax = 32;
/// What is beyond is counted under this number.
inline constexpr std::uint64_t kXidOther = 0;

class Devices {
 public:
  /// Null where there is no NVML, or it does not start.
  static std::unique_ptr<Devices> open();
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  /// A fresh look; after `timeout_ms` without an answer, none.
  DeviceFigures look(int timeout_ms) const;

 private:
  struct Shared;
  explicit Devices(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this
};

}  // namespace sluice::exporter
