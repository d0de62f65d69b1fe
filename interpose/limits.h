// Limits that hold without a broker's word: what the user asks for in SLUICE_MEMORY and SLUICE_SM,
// and what the machine's administrator says about programs whose broker is missing. Texts in,
// numbers out; the file is read here, too, because who owns it is part of what it means.
#pragma once

#include <stdint.h>

#include "interpose/say.h"

namespace sluice::interpose {

inline constexpr char kMemoryVariable[] = "SLUICE_MEMORY";
inline constexpr char kSmVariable[] = "SLUICE_SM";

struct Limits {
  uint64_t memory_bytes = 0;  // on each GPU; 0 = none
  uint32_t sm_percent = 100;  // of each GPU's time; 100 = all of it

  bool any() const { return memory_bytes != 0 || sm_percent < 100; }
};
/// What both allow.
Limits limits_narrow(const Limits& a, const Limits& b);

/// "2GiB", "1.5 GiB", "512MiB", "4096": the sizes of sluice.toml. False for anything else, 0 and
/// what does not fit.
bool size_read(const char* text, uint64_t* out);
/// "50%" or "50", 1 to 100.
bool percent_read(const char* text, uint32_t* out);
/// The two variables' values (nullptr or empty = not set). False: `fault` is the sentence.
bool limits_read(const char* memory, const char* sm, Limits* out, Line* fault);

enum class MissingBroker : uint8_t {
  kKeep,    // programs keep the limits of their tenant; those that nobody announced run without
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

/// The lines of a policy file. False: `fault` says which line is wrong and how. `text` is changed.
bool policy_parse(char* text, Policy* out, Line* fault);
/// The policy of the file, read once. A file that others than root can write is ignored; one with a
/// mistake means kHold. Both are said in one line.
const Policy& policy();
void policy_reset_after_fork();
/// Where the file is. Defined in policy_path.cpp; tests link another one.
const char* policy_path();

}  // namespace sluice::interpose
