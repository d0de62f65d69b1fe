// What softgpu-ctl tells: devices, processes, accounts, faults; as a table or as JSON.
#pragma once

#include "softgpu/ctl/options.h"

namespace softgpu::ctl {

/// Each prints and returns the exit status.
int list(const Options& options);
int accounts(const Options& options);
int faults(const Options& options);

}  // namespace softgpu::ctl
