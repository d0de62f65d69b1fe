// See occupancy.h.
#include "softgpu/driver/occupancy.h"

#include <algorithm>

#include "softgpu/driver/profile.h"

namespace softgpu::driver {

int occupancy_blocks(const Function& function, std::uint32_t threads,
                     std::size_t dynamic_shared_bytes) {
  const ptx::KernelInfo& info = function.info();
  if (threads == 0 || threads > std::min(kThreadsPerBlock, info.threads_max)) return 0;
  const std::size_t shared = info.shared_bytes + dynamic_shared_bytes + kSharedReserved;
  const std::uint32_t warps = (threads + 31) / 32;
  // Registers are given to warps in units of 256.
  const std::uint32_t registers = warps * ((info.registers * 32 + 255) / 256 * 256);
  const std::uint32_t by_threads = kThreadsPerSm / (warps * 32);
  const std::uint32_t by_registers = registers == 0 ? kBlocksPerSm : kRegistersPerSm / registers;
  const auto by_shared = static_cast<std::uint32_t>(kSharedPerSm / shared);
  return static_cast<int>(std::min({kBlocksPerSm, by_threads, by_registers, by_shared}));
}

}  // namespace softgpu::driver
