// `sluice config` and `sluice reload`.
#pragma once

#include "broker/cli/options.h"

namespace sluice::cli {

int config_command(const ConfigOptions& options);
int reload_command(const ReloadOptions& options);

}  // namespace sluice::cli
