// Limits that hold without a broker's word: what the user asks for in SLUICE_MEMORY and SLUICE_SM,
// and what the machine's administrator says about programs whose broker is missing.
#pragma once

#include <stdint.h>

#include "broker/protocol/shim_policy.h"
#include "interpose/say.h"

namespace sluice::interpose {

inline constexpr char kMemoryVariable[] = "SLUICE_MEMORY";
inline constexpr char kSmVariable[] = "SLUICE_SM";

using protocol::Limits;
using protocol::MissingBroker;
using protocol::Policy;

/// What both allow.
Limits limits_narrow(const Limits& a, const Limits& b);

/// The two variables' values (nullptr or empty = not set). False: `fault` is the sentence.
bool limits_read(const char* memory, const char* sm, Limits* out, Line* fault);

/// The policy of the file, read once. A file that others than root can write is ignored; one with a
/// mistake means policy_of_mistake(). Both are said in one line.
const Policy& policy();
void policy_reset_after_fork();
/// Where the file is. Defined in policy_path.cpp; tests link another one.
const char* policy_path();

}  // namespace sluice::interpose
