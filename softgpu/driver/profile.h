// The hardware that the software GPU plays: compute capability and the limits that go with it. 8.0,
// so that bf16 and cp.async code loads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softgpu::driver {

inline constexpr int kDriverVersion = 13000;
inline constexpr char kDeviceName[] = "Software GPU";
inline constexpr int kComputeMajor = 8;
inline constexpr int kComputeMinor = 0;
inline constexpr int kClockKhz = 1'410'000;
inline constexpr std::uint32_t kThreadsPerBlock = 1024;
inline constexpr std::uint32_t kThreadsPerSm = 2048;
inline constexpr std::uint32_t kBlocksPerSm = 32;
inline constexpr std::uint32_t kRegistersPerSm = 65536;
inline constexpr std::uint32_t kSharedPerBlock = 48 * 1024;
inline constexpr std::uint32_t kSharedPerBlockOptin = 163 * 1024;
inline constexpr std::uint32_t kSharedPerSm = 164 * 1024;
inline constexpr std::uint32_t kSharedReserved = 1024;
inline constexpr int kPciBusFirst = 0x65;  // device i is at 0000:(65+i):00.0
inline constexpr std::size_t kVmmGranularity = 2u << 20;

}  // namespace softgpu::driver
