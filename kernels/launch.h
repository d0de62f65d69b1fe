// One kernel launch, described: which kernel, grid, block and arguments. Host side only, over the
// driver API's types; loads nothing and calls no driver, so that any program can launch these
// kernels in its own way.
#pragma once

#include <cuda.h>

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/names.h"

namespace sluice::kernels {

/// File name of the fat binary in the directory of libraries.
inline constexpr char kFatbinName[] = "sluice_kernels.fatbin";

#define SLUICE_KERNEL_VALUE(value, name) value,
enum class Kernel : std::uint8_t { SLUICE_KERNELS(SLUICE_KERNEL_VALUE) };
#undef SLUICE_KERNEL_VALUE
#define SLUICE_KERNEL_ONE(value, name) +1
inline constexpr std::size_t kKernelCount = SLUICE_KERNELS(SLUICE_KERNEL_ONE);
#undef SLUICE_KERNEL_ONE

/// The name in the fat binary.
const char* kernel_name(Kernel kernel);

struct Extent {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

/// One launch, ready for cuLaunchKernel: no dynamic shared memory is used by any kernel here.
class Launch {
 public:
  static constexpr std::size_t kArgumentsMax = 14;

  Launch(Kernel which, Extent grid_extent, Extent block_extent)
      : kernel(which), grid(grid_extent), block(block_extent) {}

  template <class T>
  Launch& argument(T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t));
    assert(count_ < kArgumentsMax);
    std::memcpy(&values_[count_++], &value, sizeof value);
    return *this;
  }
  template <class... T>
  Launch& arguments(T... values) {
    (argument(values), ...);
    return *this;
  }
  /// The array that cuLaunchKernel takes; valid as long as this object.
  std::array<void*, kArgumentsMax> pointers() {
    std::array<void*, kArgumentsMax> out{};
    for (std::size_t i = 0; i < count_; ++i) out[i] = &values_[i];
    return out;
  }
  std::size_t argument_count() const { return count_; }

  Kernel kernel;
  Extent grid;
  Extent block;

 private:
  std::array<std::uint64_t, kArgumentsMax> values_{};
  std::size_t count_ = 0;
};

/// How many pieces of `by` cover `value` > 0.
inline unsigned ceil_divide(std::int64_t value, unsigned by) {
  assert(value > 0);
  return static_cast<unsigned>((value + by - 1) / by);
}

/// A thread per element, 256 to a block.
inline Launch elementwise(Kernel kernel, std::int64_t count) {
  assert(count <= INT32_MAX);  // the kernels count in 32 bits
  return Launch(kernel, {ceil_divide(count, 256)}, {256});
}

/// A warp per row, four to a block.
inline Launch rowwise(Kernel kernel, int rows) {
  return Launch(kernel, {ceil_divide(rows, 4)}, {128});
}

/// rows x columns, both positive, as the 32-bit arithmetic of the kernels needs it.
inline std::int64_t elements(int rows, int columns) {
  assert(rows > 0 && columns > 0);
  const std::int64_t count = static_cast<std::int64_t>(rows) * columns;
  assert(count <= INT32_MAX);
  return count;
}

}  // namespace sluice::kernels
