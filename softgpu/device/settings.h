// What a software GPU is made of: how many, how large, how fast. Read from the environment
// (SOFTGPU_*) and an optional profile file; knows nothing of segments or drivers. The first process
// that opens a device directory fixes the settings for all who come later (see directory.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace softgpu::device {

inline constexpr std::uint32_t kDevicesMax = 16;

struct Settings {
  std::uint32_t count = 1;
  std::uint32_t sm_count = 16;
  std::uint64_t memory_bytes = 4ULL << 30;
  double rate = 0;       // warp instructions per second of the whole device
  double copy_rate = 0;  // bytes per second and direction
  std::array<double, kDevicesMax>
      rates{};  // of each device by index, where they differ; 0 = `rate`
  std::uint64_t context_bytes = 32ULL << 20;
  std::uint64_t slice_ns = 2'000'000;
  bool pacing = true;
};

/// Where the segments live: SOFTGPU_DIR or /dev/shm/softgpu-<uid>.
std::string settings_directory();

/// Reads the profile (SOFTGPU_PROFILE, `key = value` lines, keys as the variables or without their
/// prefix in lower case) and then the environment, which wins. False with a sentence in `error`
/// when a value makes no sense.
[[nodiscard]] bool settings_read(Settings& settings, std::string& error);

/// "4GiB", "512MiB", "1000000", "40e6". False when it is not a positive number with a known unit.
[[nodiscard]] bool quantity_parse(const std::string& text, double& value);

}  // namespace softgpu::device
