// The modelled link is charged to the device clock: trainings that differ in the link alone differ
// in device time by what the formula says. Figures are those of the software GPUs' accounts, which
// hold modelled time whatever the host does.
#include <filesystem>

#include "tests/trainer/device_fixture.h"
#include "tests/trainer/process.h"
#include "trainer/train/plan.h"

namespace sluice::tests {
namespace {

using namespace sluice::train;

constexpr int kRanks = 2;  // one on each GPU
constexpr int kSteps = 20;
constexpr int kBucketBytes = 64 << 10;

class LinkChargeTest : public testing::Test {
 protected:
  void SetUp() override {
    SLUICE_NEEDS_DRIVER();
    if (!std::filesystem::exists(program_path("softgpu-ctl")))
      GTEST_SKIP() << "hardware keeps no account of a modelled link";
  }

  /// Runs a training on GPUs of its own, and reads what copies and the link took on each of them.
  std::vector<double> transfer_ns(const LinkModel& link) {
    const std::string segments = scratch_.file("softgpu-" + std::to_string(++runs_));
    const std::vector<std::string> own = {"SOFTGPU_DIR=" + segments};
    Child training({"sluice-train",
                    "--data",
                    "synthetic",
                    "--hidden",
                    "24",
                    "--eval-samples",
                    "0",
                    "--nproc",
                    std::to_string(kRanks),
                    "--steps",
                    std::to_string(kSteps),
                    "--bucket",
                    std::to_string(kBucketBytes),
                    "--comm",
                    "gloo",
                    "--algorithm",
                    "ring",
                    "--link-gbps",
                    std::to_string(link.gigabits_per_s),
                    "--link-alpha-us",
                    std::to_string(link.alpha_us)},
                   scratch_, own);
    EXPECT_EQ(training.wait(kPatience), 0) << training.err();
    Child accounts({"softgpu-ctl", "accounts", "--json", "--dir", segments}, scratch_, own);
    EXPECT_EQ(accounts.wait(kPatience), 0) << accounts.err();
    const auto json = nlohmann::json::parse(accounts.out(), nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << accounts.out();
    std::vector<double> out;
    for (const auto& device : json.value("devices", nlohmann::json::array())) {
      double sum = 0;
      for (const auto& process : device["processes"]) sum += process["copy_ns"].get<double>();
      out.push_back(sum);
    }
    return out;
  }

  /// What the model says that the link takes of one rank's device time in the whole training.
  static double link_ns(const LinkModel& link) {
    TrainOptions options;
    options.hidden = {24};
    options.bucket_bytes = kBucketBytes;
    const TrainPlan plan = train_plan(options, kRanks, kRanks);
    EXPECT_GT(plan.buckets.size(), 1u);
    Nanos step = 0;
    for (const Bucket& bucket : plan.buckets)
      step += link.allreduce_ns(Algorithm::kRing, kRanks, bucket.count * sizeof(float));
    const Nanos weights = link.broadcast_ns(kRanks, plan.shape.parameter_count() * sizeof(float));
    const Nanos words = link.broadcast_ns(kRanks, 100);  // where the job is, before the weights
    return static_cast<double>(kSteps * step + weights + words);
  }

  /// `changed` takes more device time than `plain`, on every GPU and per step, as the model says.
  void expect_formula(const LinkModel& plain, const LinkModel& changed) {
    const std::vector<double> before = transfer_ns(plain);
    const std::vector<double> after = transfer_ns(changed);
    ASSERT_EQ(before.size(), static_cast<std::size_t>(kRanks));
    ASSERT_EQ(after.size(), before.size());
    const double expected = (link_ns(changed) - link_ns(plain)) / kSteps;
    ASSERT_GT(expected, 0);
    for (std::size_t gpu = 0; gpu < before.size(); ++gpu) {
      EXPECT_NEAR((after[gpu] - before[gpu]) / kSteps, expected, 0.01 * expected) << "GPU " << gpu;
    }
  }

 private:
  ScratchDirectory scratch_;
  int runs_ = 0;
};

TEST_F(LinkChargeTest, LatencyIsDeviceTimeByTheFormula) {
  expect_formula({.alpha_us = 10, .gigabits_per_s = 10}, {.alpha_us = 1000, .gigabits_per_s = 10});
}

TEST_F(LinkChargeTest, BytesAreDeviceTimeByTheFormula) {
  expect_formula({.alpha_us = 10, .gigabits_per_s = 10}, {.alpha_us = 10, .gigabits_per_s = 0.1});
}

}  // namespace
}  // namespace sluice::tests
