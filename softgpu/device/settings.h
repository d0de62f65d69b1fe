// What a software GPU is made of: how many, how large, how fast. Read from the environment
// (SOFTGPU_*) and an optional profile file; knows nothing of segments or drivers. The first process
// that opens a device directory fixes the settings for all who come later (see directory.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace softgpu::device {

inline constexpr std::uint32_t kDevicesMax = 16;
inline constexpr std::uint32_t kTimedMax = 32;  // rules for timed kernels

/// A kernel whose name (as in PTX) matches takes `ns` alone on the device, whatever it executes.
struct TimedRule {
  char pattern[64] = {};  // a glob as of fnmatch(3)
  double ns = 0;
  std::uint32_t skip = 0;  // 1: and is not executed at all
};

struct Settings {
  std::uint32_t count = 1;
  std::uint32_t sm_count = 16;
  std::uint64_t memory_bytes = 4ULL << 30;
  double rate = 0;       // warp instructions per second of the whole device
  double copy_rate = 0;  // bytes per second and direction
  std::array<double, kDevicesMax>
      rates{};  // of each device by index, where they differ; 0 = `rate`
  std::uint64_t context_bytes = 32ULL << 20;
  std::uint64_t page_bytes = 0;  // memory is taken in pages of so many bytes; 0: to the byte
  std::uint64_t slice_ns = 2'000'000;
  double switch_ns = 5000;  // device time lost when another process's turn begins
  double launch_ns = 3000;  // every kernel takes at least this long
  bool pacing = true;
  std::vector<TimedRule> timed;  // the first that matches holds
  bool strict = false;           // of the process, not of the device: see settings_strict
};

/// Where the segments live: SOFTGPU_DIR or /dev/shm/softgpu-<uid>.
std::string settings_directory();
/// /dev/shm/softgpu-<uid>, for this user alone. Any user can make a directory of that name.
std::string settings_directory_own();

/// Reads the profile (SOFTGPU_PROFILE, `key = value` lines, keys as the variables or without their
/// prefix in lower case) and then the environment, which wins. False with a sentence in `error`
/// when a value makes no sense. Says on standard error which variables of the prefix are unknown.
[[nodiscard]] bool settings_read(Settings& settings, std::string& error);

/// One setting as somebody wrote it.
struct SettingText {
  std::string key;  // normal form
  std::string value;
  std::string source;  // where, for errors
};
/// `memory`, `MEMORY` and `SOFTGPU_MEMORY` are one key: MEMORY.
std::string key_normal(std::string name);
/// False with a sentence in `error`: no such setting, or a value that makes no sense.
[[nodiscard]] bool setting_store(Settings& settings, const SettingText& text, std::string& error);
/// The settings of a profile, in its order, not looked at yet.
[[nodiscard]] bool profile_read(const char* path, std::vector<SettingText>& texts,
                                std::string& error);
/// SOFTGPU_STRICT, which every process reads for itself: host code that follows a device pointer
/// is to fail. False with a sentence in `error` as above.
[[nodiscard]] bool settings_strict(bool& strict, std::string& error);

/// "4GiB", "512MiB", "1000000", "40e6". False if it is no number of 0 or more with a known
/// unit.
[[nodiscard]] bool quantity_parse(const std::string& text, double& value);

/// "250ns", "3us", "2.5ms", "1s". False if it is no number of 0 or more with one of
/// these units.
[[nodiscard]] bool duration_parse(const std::string& text, double& nanoseconds);

/// Appends the rules of "gemm*=2ms, attention=500us/skip". False with a sentence in `error`.
[[nodiscard]] bool timed_parse(const std::string& text, std::vector<TimedRule>& rules,
                               std::string& error);

}  // namespace softgpu::device
