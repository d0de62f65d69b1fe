// Becoming the program: the last step of `sluice run`. No wrapper process remains; the tenant's
// founder is the program.
#pragma once

#include <string>
#include <vector>

#include "broker/cli/environment.h"

namespace sluice::cli {

/// Replaces this process. Returns only when that fails: 126 or 127, with the reason printed.
int launch(const std::string& program, std::vector<std::string> command,
           const Environment& environment);

}  // namespace sluice::cli
