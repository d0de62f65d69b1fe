// printf on the device: the format and a packed argument buffer, as vprintf receives them.
#pragma once

#include <string>

#include "softgpu/ptx/text/types.h"

namespace softgpu::ptx {

/// `arguments` receives how many were printed, which is what printf returns on a device.
std::string device_format(const char* format, const u8* buffer, int* arguments);

}  // namespace softgpu::ptx
