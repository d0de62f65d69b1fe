// The launch table by itself: names, grids that cover their work, arguments in order. Needs no
// driver.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/kernels.h"

namespace sluice::kernels {
namespace {

template <class T>
T argument_of(Launch& launch, std::size_t index) {
  return *static_cast<T*>(launch.pointers()[index]);
}

TEST(LaunchTable, EveryKernelHasItsOwnName) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < kKernelCount; ++i) names.insert(kernel_name(static_cast<Kernel>(i)));
  EXPECT_EQ(names.size(), kKernelCount);
  EXPECT_STREQ(kernel_name(Kernel::kCorrectCount), "correct_count");
  EXPECT_STREQ(kernel_name(Kernel::kGemmRegisterTn), "gemm_register_tn");
}

TEST(LaunchTable, GemmGridsCoverTheResult) {
  for (const GemmRung rung : {GemmRung::kNaive, GemmRung::kTiled, GemmRung::kRegister}) {
    Launch launch = gemm(GemmForm::kNt, {rung, 16, 2}, {65, 129, 27}, 10, 20, 30);
    const unsigned tile_x = rung == GemmRung::kRegister ? 64 : launch.block.x;
    const unsigned tile_y = rung == GemmRung::kRegister ? 64 : launch.block.y;
    EXPECT_GE(launch.grid.x * tile_x, 129u);
    EXPECT_LT((launch.grid.x - 1) * tile_x, 129u);
    EXPECT_GE(launch.grid.y * tile_y, 65u);
    EXPECT_LT((launch.grid.y - 1) * tile_y, 65u);
    EXPECT_EQ(launch.grid.z, 2u);
    ASSERT_EQ(launch.argument_count(), 7u);
    EXPECT_EQ(argument_of<int>(launch, 0), 65);
    EXPECT_EQ(argument_of<int>(launch, 1), 129);
    EXPECT_EQ(argument_of<int>(launch, 2), 27);
    EXPECT_EQ(argument_of<int>(launch, 3), 16);
    EXPECT_EQ(argument_of<CUdeviceptr>(launch, 6), 30u);
  }
  EXPECT_EQ(gemm(GemmForm::kTn, {GemmRung::kTiled, 1, 1}, {1, 1, 1}, 0, 0, 0).kernel,
            Kernel::kGemmTiledTn);
}

TEST(LaunchTable, PlansFillTheDeviceAndCoverK) {
  for (const int multiprocessors : {1, 16, 132}) {
    for (const GemmShape shape :
         {GemmShape{1, 1, 1}, GemmShape{64, 128, 784}, GemmShape{784, 128, 64},
          GemmShape{1, 10, 128}, GemmShape{64, 128, 10}, GemmShape{2048, 2048, 2048},
          GemmShape{33, 65, 1000}}) {
      const GemmPlan plan = gemm_plan(shape, multiprocessors);
      EXPECT_GE(plan.k_chunk * plan.parts, shape.k);
      EXPECT_LT(plan.k_chunk * (plan.parts - 1), shape.k);
      if (plan.parts > 1) {
        EXPECT_EQ(plan.k_chunk % 16, 0);
        EXPECT_GE(plan.k_chunk, 32);
      }
    }
  }
  EXPECT_EQ(gemm_plan({2048, 2048, 64}, 132).rung, GemmRung::kRegister);
  EXPECT_EQ(gemm_plan({2048, 2048, 64}, 132).parts, 1);
  EXPECT_EQ(gemm_plan({64, 128, 784}, 16).rung, GemmRung::kRegister);
  EXPECT_EQ(gemm_plan({64, 128, 784}, 16).parts, 25);
  EXPECT_EQ(gemm_plan({1, 10, 128}, 16).rung, GemmRung::kTiled);
  EXPECT_EQ(gemm_plan({64, 128, 10}, 16).rung, GemmRung::kTiled);
}

TEST(LaunchTable, ElementwiseGridsHaveAThreadPerElement) {
  Launch launch = array_scale(257, 2.0f, 99);
  EXPECT_EQ(launch.grid.x, 2u);
  EXPECT_EQ(launch.block.x, 256u);
  EXPECT_EQ(argument_of<float>(launch, 1), 2.0f);
  EXPECT_EQ(argument_of<CUdeviceptr>(launch, 2), 99u);
  EXPECT_EQ(softmax_cross_entropy(9, 10, 1, 0, 0, 0, 0).grid.x, 3u);
}

TEST(LaunchTableDeathTest, EmptyWorkIsTheCallersMistake) {
  EXPECT_DEATH(array_scale(0, 1.0f, 0), "value > 0");
  EXPECT_DEATH(gemm(GemmForm::kNn, {GemmRung::kTiled, 1, 1}, {0, 1, 1}, 0, 0, 0), "shape.m > 0");
  EXPECT_DEATH(bias_forward(65536, 65536, 0, 0), "INT32_MAX");
  EXPECT_DEATH(gemm(GemmForm::kNn, {GemmRung::kTiled, 17, 2}, {1, 1, 32}, 0, 0, 0), "kChunkStep");
}

}  // namespace
}  // namespace sluice::kernels
