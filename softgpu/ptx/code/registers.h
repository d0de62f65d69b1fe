// How many registers a kernel takes of an SM, estimated: nothing here allocates them.
#pragma once

#include "softgpu/ptx/text/syntax.h"

namespace softgpu::ptx {

/// 16-255 words a thread.
u32 registers_estimate(const FunctionText& function);

}  // namespace softgpu::ptx
