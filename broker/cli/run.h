// `sluice run`.
#pragma once

#include <string>

#include "broker/cli/options.h"
#include "broker/protocol/messages.h"

namespace sluice::cli {

/// Does not return when the program was started.
int run_command(const RunOptions& options);

/// The line for a refusal, without prefix; names the smallest quota that would do where that is the
/// trouble.
std::string refusal_text(const protocol::Refused& refused);

}  // namespace sluice::cli
