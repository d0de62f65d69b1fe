// What tests of movable memory share: contents that are known by a number.
#pragma once

#include <vector>

#include "tests/interpose/softgpu_fixture.h"

namespace sluice::test {

inline std::vector<unsigned> pattern(size_t bytes, unsigned seed) {
  std::vector<unsigned> words(bytes / 4);
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = static_cast<unsigned>(i) * 2654435761u + seed;
  return words;
}

inline void fill(CUdeviceptr p, size_t bytes, unsigned seed) {
  ASSERT_EQ(cuMemcpyHtoD(p, pattern(bytes, seed).data(), bytes), CUDA_SUCCESS);
}

inline bool has(CUdeviceptr p, size_t bytes, unsigned seed) {
  std::vector<unsigned> back(bytes / 4);
  EXPECT_EQ(cuMemcpyDtoH(back.data(), p, bytes), CUDA_SUCCESS);
  return back == pattern(bytes, seed);
}

}  // namespace sluice::test
