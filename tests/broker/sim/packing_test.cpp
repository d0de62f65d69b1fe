// How full the rules of placement get a machine.
#include "broker/sim/packing.h"

#include <gtest/gtest.h>

#include <sstream>

namespace sluice::sim {
namespace {

std::vector<Pod> read(const std::string& text, std::string* error) {
  std::istringstream in(text);
  return pods_read(in, error);
}

TEST(Packing, ReadsATableOfPods) {
  std::string error;
  const std::vector<Pod> pods = read(
      "name,num_gpu,gpu_milli,qos\r\na,1,1000,LS\nb,1,455,BE\nc,0,0,BE\nd,4,1000,LS\ne,32,1000,"
      "LS\n",
      &error);
  ASSERT_EQ(error, "");
  ASSERT_EQ(pods.size(), 3U)
      << "those without GPUs, and with more than a job may have, are left out";
  EXPECT_EQ(pods[1].percent, 46U);
  EXPECT_EQ(pods[2].gpus, 4U);
}

TEST(Packing, SaysWhatIsWrongWithATable) {
  std::string error;
  EXPECT_TRUE(read("", &error).empty());
  EXPECT_EQ(error, "it is empty");
  EXPECT_TRUE(read("name,gpus\na,1\n", &error).empty());
  EXPECT_EQ(error, "its first line has no num_gpu and gpu_milli");
  EXPECT_TRUE(read("num_gpu,gpu_milli\n1,500\n1\n", &error).empty());
  EXPECT_EQ(error, "line 3 has no such numbers");
  EXPECT_TRUE(read("num_gpu,gpu_milli\n0,0\n", &error).empty());
  EXPECT_EQ(error, "no pod in it asks for a GPU");
}

/// Halves on two GPUs beside whole ones: spread leaves no GPU whole, the other two do.
TEST(Packing, SpreadLeavesNoWholeGpuWhereTheOthersDo) {
  const std::vector<Pod> pods{{1, 50}, {1, 50}, {1, 50}, {1, 100}};
  double useless[3] = {};
  double full[3] = {};
  constexpr std::uint64_t kRuns = 50;
  for (const PackingRule rule : kPackingRules)
    for (std::uint64_t seed = 1; seed <= kRuns; ++seed) {
      const Packing one = packing_run(pods, rule, 8, seed);
      EXPECT_LE(one.allocated_at_100, 1.0);
      EXPECT_LE(one.allocated_at_100, one.allocated_at_130);
      full[static_cast<int>(rule)] += one.allocated_at_130 / kRuns;
      useless[static_cast<int>(rule)] += one.useless_at_100 / kRuns;
    }
  const auto at = [](PackingRule rule) { return static_cast<int>(rule); };
  EXPECT_GT(full[at(PackingRule::kPack)], full[at(PackingRule::kSpread)]);
  EXPECT_GE(full[at(PackingRule::kPack)], full[at(PackingRule::kGradient)] - 0.01);
  EXPECT_LT(useless[at(PackingRule::kPack)], useless[at(PackingRule::kSpread)]);
}

}  // namespace
}  // namespace sluice::sim
