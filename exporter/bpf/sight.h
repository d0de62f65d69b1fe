// Sees which processes come to a GPU: by the driver library's calls, and by what is opened and
// called of the driver's devices.
// Through BPF programs in the kernel; where they cannot be loaded, one sentence says why. Must not
// know who may. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sluice::exporter {

struct SightSetup {
  std::string driver;                 // the library's path; empty = its calls are not watched
  std::vector<std::uint32_t> majors;  // of the devices; empty = there are none
};

struct Sighting {
  enum class What : std::uint8_t { kDriver, kDeviceOpened, kDeviceCalled };
  std::uint32_t process = 0;
  What what = What::kDriver;
  std::uint64_t started_ns = 0;  // when the process started, since the machine booted
};

class Sight {
 public:
  virtual ~Sight() = default;
  /// Appends who came since the last call; the same process again when it goes on.
  virtual void read(std::vector<Sighting>& out) = 0;
  virtual bool sees_driver() const = 0;
  virtual bool sees_devices() const = 0;
};

/// Null when nothing at all can be seen, and `reason` says why; also when a part cannot.
std::unique_ptr<Sight> sight_open(const SightSetup& setup, std::string* reason);

}  // namespace sluice::exporter
