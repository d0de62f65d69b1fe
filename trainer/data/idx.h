// Reads IDX files (the format of MNIST and its successors: big-endian magic, extents, bytes),
// gzip-compressed or plain. The format: http://yann.lecun.com/exdb/mnist/ - two zero bytes, a type
// byte (0x08 = unsigned byte), the number of dimensions, one 32-bit extent each, then the data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::train {

struct IdxArray {
  std::vector<std::uint32_t> extents;
  std::vector<std::uint8_t> bytes;  // product of the extents
};

/// Reads an IDX file of unsigned bytes with `dimensions` extents; only the first `outer_max` of the
/// outermost extent (0 = all). Throws Failure naming the file and what is wrong with it.
IdxArray idx_read(const std::string& path, std::uint32_t dimensions, std::uint32_t outer_max);

}  // namespace sluice::train
