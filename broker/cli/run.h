// `sluice run`.
#pragma once

#include <string>

#include "broker/cli/options.h"
#include "broker/protocol/messages.h"

namespace sluice::cli {

/// Does not return when the program was started.
int run_command(const RunOptions& options);

/// The line for a refusal, without prefix; names the smallest quota that would do where that is the
/// trouble, and how to get more software GPUs (`soft`) where too few are.
std::string refusal_text(const protocol::Refused& refused, bool soft = false);

}  // namespace sluice::cli
