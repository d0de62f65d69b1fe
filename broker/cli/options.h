// What the command line of `sluice` says, as plain structs. CLI11 is behind options.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "broker/protocol/messages.h"

namespace sluice::cli {

/// Exit codes of `sluice run` besides the program's own (the convention of timeout, env and docker
/// run).
inline constexpr int kExitWaitedTooLong = 124;
inline constexpr int kExitSluiceFailed = 125;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;
/// Exit code of a mistyped command line of the other commands.
inline constexpr int kExitUsage = 2;

struct RunOptions {
  std::optional<protocol::TenantClass> tenant_class;  // none named: the profile's
  protocol::SmMode sm_mode = protocol::SmMode::kBestEffort;
  std::uint64_t memory_max_bytes = 0;  // 0 = the class's default
  std::uint64_t memory_min_bytes = 0;  // 0 = same
  std::uint32_t sm_percent = 0;        // 0 = the class's default
  bool weight = false;                 // sm_percent is a weight
  std::uint32_t gpu_count = 1;
  std::vector<std::string> gpus;  // UUIDs, their beginnings, or indexes
  std::string name;
  std::string profile;
  std::int64_t timeout_ns = 0;  // 0 = wait for ever
  bool no_wait = false;
  bool dry_run = false;
  bool swap = false;  // its memory may be moved to the host
  unsigned soft = 0;  // software GPUs; 0 = the machine's GPUs
  std::string socket;
  std::vector<std::string> command;
};

struct StatusOptions {
  bool json = false;
  std::string socket;
};

struct DoctorOptions {
  bool soft = false;
  bool json = false;
  std::string socket;
  std::string program;
};

/// suspend, resume, move, drain, undrain.
struct CommandOptions {
  protocol::CommandVerb verb{};
  std::string tenant;        // a number or a name
  std::string gpu;           // a UUID, its beginning, or an index; of a drain also a list
  std::string reason;        // of a drain
  std::int64_t until_s = 0;  // of a drain, seconds of the epoch; 0 = for good
  std::string socket;
};

struct ConfigOptions {
  bool show = false;  // else check
  bool origin = false;
  std::string file;  // empty = the machine's
  std::string socket;
};

struct ReloadOptions {
  std::string socket;
};

enum class Parsed { kGo, kHelped, kWrong };

/// A time to come, from `now_s` on: "2h", "18:00" (the next), "2026-11-28 08:00"; nothing for
/// anything else.
std::optional<std::int64_t> until_parse(const std::string& text, std::int64_t now_s);

/// `arguments` are those after the subcommand. kHelped and kWrong have printed what there is to
/// say.
Parsed options_parse(const std::vector<std::string>& arguments, RunOptions* out);
Parsed options_parse(const std::vector<std::string>& arguments, StatusOptions* out);
Parsed options_parse(const std::vector<std::string>& arguments, DoctorOptions* out);
Parsed options_parse(const std::vector<std::string>& arguments, ConfigOptions* out);
Parsed options_parse(const std::vector<std::string>& arguments, ReloadOptions* out);
/// `out->verb` is given.
Parsed options_parse(const std::vector<std::string>& arguments, CommandOptions* out);

}  // namespace sluice::cli
