// What softgpu-ctl does to devices while they work: settings, faults, events.
#pragma once

#include "softgpu/ctl/options.h"

namespace softgpu::ctl {

/// Each returns the exit status.
int set(const Options& options);
int inject(const Options& options);
int clear(const Options& options);

}  // namespace softgpu::ctl
