// The description of a copy as the driver API gives it, turned into a command: for graph nodes;
// streams use it inside api_copy.cpp.
#pragma once

#include "softgpu/driver/command.h"

namespace softgpu::driver {

CUresult copy_describe(const CUDA_MEMCPY3D& description, CopyCommand& command);

}  // namespace softgpu::driver
