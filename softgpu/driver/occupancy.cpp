// See occupancy.h.
#include "softgpu/driver/occupancy.h"

#include <algorithm>

#include "softgpu/driver/profile.h"

namespace softgpu::driver {
namespace {

/// What is left of shared memory is told in units of this many bytes.
constexpr std::size_t kSharedUnit = 128;

std::size_t dynamic_shared_most(const Function& function) {
  return static_cast<std::size_t>(function.dynamic_shared_max.load());
}

/// Registers are given to warps in units of 256.
std::uint32_t warp_registers(std::uint32_t registers) { return (registers * 32 + 255) / 256 * 256; }

}  // namespace

std::uint32_t threads_for(std::uint32_t registers) {
  return registers == 0 ? kThreadsPerBlock : kRegistersPerSm / warp_registers(registers) * 32;
}

int occupancy_blocks(const Function& function, std::uint32_t threads,
                     std::size_t dynamic_shared_bytes) {
  if (threads == 0 || threads > kThreadsPerBlock) return 0;
  if (dynamic_shared_bytes > dynamic_shared_most(function)) return 0;
  const std::size_t shared = function.info().shared_bytes + dynamic_shared_bytes + kSharedReserved;
  const std::uint32_t warps = (threads + 31) / 32;
  const std::uint32_t registers = warps * warp_registers(function.registers());
  const std::uint32_t by_threads = kThreadsPerSm / (warps * 32);
  const std::uint32_t by_registers = registers == 0 ? kBlocksPerSm : kRegistersPerSm / registers;
  const auto by_shared = static_cast<std::uint32_t>(kSharedPerSm / shared);
  return static_cast<int>(std::min({kBlocksPerSm, by_threads, by_registers, by_shared}));
}

BlockSize occupancy_best(const Function& function, CUoccupancyB2DSize size_of, std::size_t shared,
                         int limit) {
  BlockSize best;
  const int most = static_cast<int>(std::min(function.info().threads_max, kThreadsPerBlock));
  for (int threads = limit > 0 ? std::min(limit, most) : most; threads > 0; threads -= 32) {
    const std::size_t dynamic = size_of != nullptr ? size_of(threads) : shared;
    const int blocks = occupancy_blocks(function, static_cast<std::uint32_t>(threads), dynamic);
    if (blocks * threads > best.blocks * best.threads) best = {threads, blocks};
  }
  return best;
}

bool occupancy_shared(const Function& function, int blocks, std::uint32_t threads,
                      std::size_t& bytes) {
  if (occupancy_blocks(function, threads, 0) < blocks) return false;
  // The driver does not count the memory that is reserved for each block.
  const std::size_t each = kSharedPerSm / static_cast<unsigned>(blocks) / kSharedUnit * kSharedUnit;
  bytes = std::min(each - function.info().shared_bytes, dynamic_shared_most(function));
  return true;
}

}  // namespace softgpu::driver
