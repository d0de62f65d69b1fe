// Mixed precision on the device: gradients close to float64's by as much as the format's bits allow
// and no closer, small gradients that only a loss scale keeps, and an overflow that is found.
#include "trainer/model/precision.h"

#include "tests/trainer/device_fixture.h"
#include "trainer/model/gpt.h"
#include "trainer/model/loss_scale.h"
#include "trainer/model/mlp_reference.h"

namespace sluice::tests {
namespace {

using train::Precision;

class PrecisionTest : public DeviceTest {
 protected:
  static constexpr int kBatch = 9;

  void SetUp() override {
    DeviceTest::SetUp();
    parameters_ = train::mlp_draw(shape_, 3);
    inputs_ = floats_draw(static_cast<std::size_t>(kBatch * shape_.inputs()), 6);
    train::Random random(7);
    for (int i = 0; i < kBatch; ++i) labels_.push_back(static_cast<int>(random.below(10)));
  }
  Floats gradients_of(Precision precision, float scale) {
    train::Mlp model(stream(), shape_, {.batch_max = kBatch, .precision = precision});
    model.parameters_upload(parameters_);
    model.batch_upload(inputs_.data(), labels_.data(), kBatch);
    model.forward(kBatch);
    model.backward(kBatch, kBatch, {}, scale);
    Floats out(model.parameter_count());
    stream().download(out.data(), model.gradients(), out.size() * sizeof(float));
    stream().synchronize();
    return out;
  }
  /// |scaled / scale - gradient of float64| / |gradient of float64|, Euclidean
  double error_of(const Floats& scaled, float scale) const {
    const auto exact =
        train::mlp_reference(shape_, doubles_of(parameters_), doubles_of(inputs_), labels_)
            .gradients;
    double apart = 0;
    double size = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double error = static_cast<double>(scaled[i] / scale) - exact[i];
      apart += error * error;
      size += exact[i] * exact[i];
    }
    return std::sqrt(apart / size);
  }

  const train::MlpShape shape_ = train::mlp_shape({33, 18});
  Floats parameters_;
  Floats inputs_;
  std::vector<int> labels_;
};

TEST_F(PrecisionTest, GradientsAreAsCloseAsTheFormatAllows) {
  EXPECT_LT(error_of(gradients_of(Precision::kFp32, 1), 1), 1e-5);
  // A cast rounds by up to 2^-9 (bf16) or 2^-12 (fp16) of the value; a few follow each other.
  const double bf16 = error_of(gradients_of(Precision::kBf16, 1), 1);
  EXPECT_LT(bf16, 0x1p-6);
  EXPECT_GT(bf16, 0x1p-11);
  const double fp16 = error_of(gradients_of(Precision::kFp16, 1024), 1024);
  EXPECT_LT(fp16, 0x1p-9);
  EXPECT_GT(fp16, 0x1p-14);
}

TEST_F(PrecisionTest, TheLossScaleKeepsSmallGradients) {
  // As if the batch were a part of a huge one: below 6e-8 fp16 has nothing.
  const float tiny = 0x1p-30f;
  EXPECT_GT(error_of(gradients_of(Precision::kFp16, tiny), tiny), 0.5);
  EXPECT_LT(error_of(gradients_of(Precision::kBf16, tiny), tiny), 0x1p-6);
}

TEST_F(PrecisionTest, AnOverflowIsFoundAndNothingElseIs) {
  train::LossScaler scaler(stream(), {.initial = 4096}, 1000);
  Floats values = floats_draw(1000, 3);
  values[7] = 3e38f;
  OnDevice<float> fine(stream(), values);
  EXPECT_TRUE(scaler.unscale(fine.at()));
  const Floats unscaled = fine.values();
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(unscaled[i], values[i] / 4096);
  EXPECT_EQ(scaler.value(), 4096);
  float expected = 4096;
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const std::size_t place : {std::size_t{0}, std::size_t{999}}) {
      Floats broken = values;
      broken[place] = bad;
      OnDevice<float> there(stream(), broken);
      EXPECT_FALSE(scaler.unscale(there.at()));
      expected /= 2;
      EXPECT_EQ(scaler.value(), expected);
    }
  }
  EXPECT_EQ(scaler.skipped(), 6u);
  // Of fp16, by too large a scale.
  const Floats overflown = gradients_of(Precision::kFp16, 0x1p40f);
  EXPECT_TRUE(std::any_of(overflown.begin(), overflown.end(),
                          [](float value) { return !std::isfinite(value); }));
  EXPECT_TRUE(std::all_of(parameters_.begin(), parameters_.end(),
                          [](float value) { return std::isfinite(value); }));
}

TEST_F(PrecisionTest, WeightsOfTheForwardPassAreThoseOfTheMoment) {
  train::Mlp model(stream(), shape_, {.batch_max = kBatch, .precision = Precision::kBf16});
  const auto logits = [&](const Floats& parameters) {
    model.parameters_upload(parameters);
    model.batch_upload(inputs_.data(), labels_.data(), kBatch);
    model.forward(kBatch);
    Floats out(kBatch * 10);
    stream().download(out.data(), model.logits(), out.size() * sizeof(float));
    stream().synchronize();
    return out;
  };
  const Floats first = logits(parameters_);
  const Floats zero = logits(Floats(parameters_.size()));
  EXPECT_EQ(zero, Floats(zero.size()));
  EXPECT_EQ(logits(parameters_), first);
}

}  // namespace
}  // namespace sluice::tests
