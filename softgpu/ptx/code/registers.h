// How many registers a kernel would take on hardware, as an assembler's allocator would answer. It
// decides what launches a device has room for, and nothing else: here every register has a place.
#pragma once

#include <vector>

#include "softgpu/ptx/text/syntax.h"

namespace softgpu::ptx {

/// 16 to 255, within what .maxnreg and .maxntid of the kernel say; `functions` are those it
/// reaches.
u32 registers_estimate(const FunctionText& kernel,
                       const std::vector<const FunctionText*>& functions);

}  // namespace softgpu::ptx
