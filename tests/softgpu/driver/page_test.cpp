// Memory in pages (SOFTGPU_PAGE): large pieces take whole ones, small ones share them.
#include <stdlib.h>

#include <vector>

#include "tests/softgpu/driver/fixture.h"

namespace {

using softgpu_test::kMiB;

class Paged : public softgpu_test::Driver {
 protected:
  void SetUp() override {
    setenv("SOFTGPU_PAGE", "2MiB", 1);
    softgpu_test::Driver::SetUp();
  }
  void TearDown() override {
    softgpu_test::Driver::TearDown();
    unsetenv("SOFTGPU_PAGE");
  }
};

// Pages in use beside the context.
std::size_t pages() {
  std::size_t free = 0, total = 0;
  EXPECT_CU(cuMemGetInfo(&free, &total));
  EXPECT_EQ((total - free) % (2 * kMiB), 0U);
  return (total - free - 32 * kMiB) / (2 * kMiB);
}

std::size_t pages_of(std::size_t bytes) {
  CUdeviceptr pointer = 0;
  EXPECT_CU(cuMemAlloc(&pointer, bytes));
  const std::size_t taken = pages();
  EXPECT_CU(cuMemFree(pointer));
  EXPECT_EQ(pages(), 0U);
  return taken;
}

TEST_F(Paged, WhatIsLargerThanHalfAPageTakesWholePages) {
  WithContext([](CUcontext) {
    EXPECT_EQ(pages_of(1), 1U);
    EXPECT_EQ(pages_of(kMiB + 1), 1U);
    EXPECT_EQ(pages_of(2 * kMiB), 1U);
    EXPECT_EQ(pages_of(2 * kMiB + 1), 2U);
    EXPECT_EQ(pages_of(9 * kMiB), 5U);
  });
}

TEST_F(Paged, SmallPiecesShareAPageUntilTheLastIsFreed) {
  WithContext([](CUcontext) {
    std::vector<CUdeviceptr> pieces(6);
    for (CUdeviceptr& piece : pieces) ASSERT_CU(cuMemAlloc(&piece, 700 << 10));
    EXPECT_EQ(pages(), 3U);
    for (std::size_t i = 0; i < pieces.size(); i += 2) ASSERT_CU(cuMemFree(pieces[i]));
    EXPECT_EQ(pages(), 3U) << "each has one piece";
    ASSERT_CU(cuMemAlloc(&pieces[0], 700 << 10));
    EXPECT_EQ(pages(), 3U) << "a page has room for it";
    ASSERT_CU(cuMemFree(pieces[0]));
    for (std::size_t i = 1; i < pieces.size(); i += 2) ASSERT_CU(cuMemFree(pieces[i]));
    EXPECT_EQ(pages(), 0U);
  });
}

TEST_F(Paged, TheDeviceIsFullWhenItsPagesAre) {
  WithContext([](CUcontext) {
    std::size_t free = 0, total = 0;
    ASSERT_CU(cuMemGetInfo(&free, &total));
    CUdeviceptr most = 0, piece = 0, other = 0;
    ASSERT_CU(cuMemAlloc(&most, free - 2 * kMiB));
    ASSERT_CU(cuMemAlloc(&piece, 1));
    EXPECT_EQ(cuMemAlloc(&other, kMiB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_CU(cuMemAlloc(&other, kMiB)) << "the page that is there has room";
  });
}

}  // namespace
