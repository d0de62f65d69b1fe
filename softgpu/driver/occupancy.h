// How many blocks of a function fit on one SM: threads, blocks, registers and shared memory of the
// profile.
#pragma once

#include "softgpu/driver/module.h"

namespace softgpu::driver {

/// The most threads whose registers one SM has.
std::uint32_t threads_for(std::uint32_t registers);

/// 0 for more threads than a block of the device has, and for more dynamic shared memory than the
/// function may have. The function's own bound of threads is not looked at, as on hardware.
int occupancy_blocks(const Function& function, std::uint32_t threads,
                     std::size_t dynamic_shared_bytes);

struct BlockSize {
  int threads = 0;
  int blocks = 0;  // on one SM
};
/// The block size that fills an SM best, of at most `limit` threads (0 = any); `size_of` tells the
/// dynamic shared memory of a block by its threads, where it is not nullptr.
BlockSize occupancy_best(const Function& function, CUoccupancyB2DSize size_of, std::size_t shared,
                         int limit);

/// The dynamic shared memory that lets `blocks` blocks of `threads` live on one SM, at most what
/// the function may have. false: they cannot, whatever they leave.
bool occupancy_shared(const Function& function, int blocks, std::uint32_t threads,
                      std::size_t& bytes);

}  // namespace softgpu::driver
