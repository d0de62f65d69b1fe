// The LZ4 block format, decoding only. https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace softgpu::ptx {

/// Appends at most `limit` bytes to `out`. False when the input is damaged or says more than the
/// limit.
[[nodiscard]] bool lz4_block_decode(const std::uint8_t* data, std::size_t bytes, std::size_t limit,
                                    std::string& out);

}  // namespace softgpu::ptx
