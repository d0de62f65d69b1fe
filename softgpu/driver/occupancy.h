// How many blocks of a function fit on one SM: threads, blocks, registers and shared memory of the
// profile.
#pragma once

#include "softgpu/driver/module.h"

namespace softgpu::driver {

int occupancy_blocks(const Function& function, std::uint32_t threads,
                     std::size_t dynamic_shared_bytes);

}  // namespace softgpu::driver
