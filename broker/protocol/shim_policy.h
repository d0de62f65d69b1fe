// What the preloaded library does where no broker answers, as the administrator writes it into
// /etc/sluice/shim.conf: the file, its syntax and its meaning. The shim obeys it, and sluice doctor
// checks it. libc only, no allocation: the shim uses it as it is.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace sluice::protocol {

inline constexpr char kShimPolicyPath[] = "/etc/sluice/shim.conf";

struct Limits {
  uint64_t memory_bytes = 0;  // on each GPU; 0 = none
  uint32_t sm_percent = 100;  // of each GPU's time; 100 = all of it

  bool any() const { return memory_bytes != 0 || sm_percent < 100; }
};

/// "2GiB", "1.5 GiB", "512M", "2GB", "4096B": the sizes of sluice.toml and of --memory. False for
/// anything else: a number without a unit, 0, what does not fit.
bool size_read(const char* text, uint64_t* out);
/// "50%" or "50", 1 to 100.
bool percent_read(const char* text, uint32_t* out);

enum class MissingBroker : uint8_t {
  kKeep,    // programs keep the limits of their tenant; those that were not announced run without
  kOpen,    // programs run without limits
  kHold,    // CUDA calls wait for the broker
  kStatic,  // programs run under the limits of the policy, or their tenant's where those are
            // narrower
};

struct Policy {
  MissingBroker missing = MissingBroker::kKeep;
  bool broker_required = false;       // also for processes that name no tenant
  uint64_t hold_ns = 60'000'000'000;  // calls fail after waiting this long; 0 = they wait on
  Limits limits;                      // of kStatic
};

struct PolicyMistake {
  uint64_t line;      // 0: the mistake is of the file as a whole
  const char* wrong;  // what the line should have been
};

/// Longest policy that is read.
inline constexpr size_t kPolicyBytesMax = 4096;

/// Parses the lines of a policy. False: `mistake` says which is wrong. `text` is changed.
bool policy_parse(char* text, Policy* out, PolicyMistake* mistake);
/// The policy that holds where the file has a mistake: no limit that it meant to set is lifted.
Policy policy_of_mistake();

enum class PolicyFile : uint8_t {
  kAbsent,
  kRead,     // `text` has it
  kNoText,   // too long, or it holds a NUL: a mistake
  kIgnored,  // not root's alone, or it cannot be read
};
struct PolicyIgnored {
  int error;           // errno of open; 0 = none
  const char* reason;  // nullptr: what `error` says
  const char* remedy;
};
inline constexpr char kPolicyNoText[] = "it is longer than 4095 bytes, or no text";
PolicyFile policy_file_read(const char* path, char text[kPolicyBytesMax + 1],
                            PolicyIgnored* ignored);

}  // namespace sluice::protocol
