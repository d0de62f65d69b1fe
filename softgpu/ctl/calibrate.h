// How fast this host executes and copies: what the rates of software GPUs are best derived from.
#pragma once

#include <string>

namespace softgpu::ctl {

struct HostRates {
  double warp_instructions_per_s_per_core = 0;
  double copy_bytes_per_s = 0;
};

/// Runs the interpreter on one core over a kernel with the usual mixture (loads, shared memory,
/// barriers, fused multiply-adds, a loop), and copies memory that exceeds the caches; about half a
/// second. Each rate is the median of several rounds. False with a text when the interpreter
/// refuses the kernel.
bool host_measure(HostRates* out, std::string* error);

}  // namespace softgpu::ctl
