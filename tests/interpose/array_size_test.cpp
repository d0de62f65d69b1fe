// What arrays take, by format, direction and level, against figures worked out by hand.
#include "interpose/array_size.h"

#include <gtest/gtest.h>

namespace sluice::interpose {
namespace {

uint64_t bytes_of(CUarray_format format, unsigned channels, uint64_t width, uint64_t height = 0,
                  uint64_t depth = 0, unsigned flags = 0, unsigned levels = 1) {
  return array_bytes({width, height, depth, format, channels, flags}, levels);
}

TEST(ArraySize, ChannelsCountWhereTheFormatDoesNotFixThem) {
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_UNSIGNED_INT8, 1, 100), 100u);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_SIGNED_INT16, 2, 100, 10), 4000u);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_HALF, 4, 8, 8, 8), 4096u);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_FLOAT, 4, 16, 16), 4096u);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_UNORM_INT8X4, 4, 16, 16), 1024u);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_SNORM_INT16X1, 1, 16, 16), 512u);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_UNORM_INT16X4, 4, 16, 16), 2048u);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_UNORM_INT_101010_2, 4, 16, 16), 1024u);
}

TEST(ArraySize, CompressedFormatsTakeWholeBlocks) {
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_BC1_UNORM, 4, 16, 16), 128u);  // 16 blocks of 8 bytes
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_BC7_UNORM, 4, 16, 16), 256u);  // 16 blocks of 16 bytes
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_BC4_SNORM, 1, 5, 5), 32u);     // 2 x 2 blocks of 8
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_BC6H_UF16, 3, 1, 1), 16u);     // one block
}

TEST(ArraySize, PlanarFormatsCountTheirPlanes) {
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_NV12, 3, 64, 48), 64u * 48 * 3 / 2);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_P016, 3, 64, 48), 64u * 48 * 3);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_NV16, 3, 64, 48), 64u * 48 * 2);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_Y444_PLANAR8, 3, 64, 48), 64u * 48 * 3);
}

TEST(ArraySize, LevelsHalveUntilOneAndLayersAndFacesStay) {
  // 16 + 8 + 4 + 2 + 1 squared, of one byte each.
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_UNSIGNED_INT8, 1, 16, 16, 0, 0, 5), 256u + 64 + 16 + 4 + 1);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_UNSIGNED_INT8, 1, 16, 4, 0, 0, 5), 64u + 16 + 4 + 2 + 1);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_UNSIGNED_INT8, 1, 8, 8, 8, 0, 4), 512u + 64 + 8 + 1);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_UNSIGNED_INT8, 1, 8, 8, 6, CUDA_ARRAY3D_LAYERED, 4),
            6u * (64 + 16 + 4 + 1));
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_UNSIGNED_INT8, 1, 8, 8, 6, CUDA_ARRAY3D_CUBEMAP, 4),
            6u * (64 + 16 + 4 + 1));
}

TEST(ArraySize, ThereAreNoMoreLevelsThanSidesThatHalveAndAtLeastOne) {
  const uint64_t all = 16 * 8 + 8 * 4 + 4 * 2 + 2 + 1;
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_UNSIGNED_INT8, 1, 16, 8, 0, 0, 100), all);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_UNSIGNED_INT8, 1, 16, 8, 0, 0, 0), 128u);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_UNSIGNED_INT8, 1, 2, 2, 17, 0, 100), 68u + 8 + 4 + 2 + 1);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_UNSIGNED_INT8, 1, 16, 8, 40, CUDA_ARRAY3D_LAYERED, 100),
            40 * all);
}

TEST(ArraySize, WhatTakesNothingOrCannotBe) {
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_FLOAT, 1, 64, 64, 0, CUDA_ARRAY3D_SPARSE), 0u);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_FLOAT, 1, 64, 64, 0, CUDA_ARRAY3D_DEFERRED_MAPPING), 0u);
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_FLOAT, 4, uint64_t{1} << 62, 1 << 20), 0u) << "wraps";
  EXPECT_EQ(bytes_of(static_cast<CUarray_format>(0x77), 1, 64, 64), 0u) << "no such format";
  EXPECT_EQ(bytes_of(CU_AD_FORMAT_FLOAT, 1, 0, 64), 0u) << "no width";
  for (const unsigned channels : {0u, 3u, 5u})
    EXPECT_EQ(bytes_of(CU_AD_FORMAT_FLOAT, channels, 64, 64), 0u) << channels << " channels";
}

}  // namespace
}  // namespace sluice::interpose
