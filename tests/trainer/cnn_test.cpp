// The convolutional network on the device against float64: logits, loss, and every gradient by
// finite differences.
#include "trainer/model/cnn_reference.h"

#include "kernels/reference.h"
#include "kernels/reference_layers.h"
#include "tests/trainer/device_fixture.h"

namespace sluice::tests {
namespace {

/// Mean loss of these logits.
double mean_loss(const std::vector<double>& logits, const std::vector<int>& labels) {
  const int rows = static_cast<int>(labels.size());
  const int classes = static_cast<int>(logits.size()) / rows;
  const auto loss =
      kernels::reference::softmax_cross_entropy(rows, classes, 1.0, logits, labels).losses;
  double sum = 0;
  for (const double row : loss) sum += row;
  return sum / rows;
}

class CnnTest : public DeviceTest, public testing::WithParamInterface<std::vector<int>> {
 protected:
  static constexpr int kBatch = 3;

  void SetUp() override {
    DeviceTest::SetUp();
    // 10 pixels become 5 and then 2: a row and a column are left out by the second pooling.
    shape_.side = 10;
    shape_.filters = GetParam();
    shape_.hidden = {6};
    shape_.classes = 4;
    parameters_ = train::cnn_draw(shape_, 3);
    const Floats noise = floats_draw(parameters_.size(), 5, -0.05, 0.05);
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i] += noise[i];
    images_ = floats_draw(kBatch * 100, 6);
    labels_ = {2, 0, 3};
  }

  train::CnnShape shape_;
  Floats parameters_;
  Floats images_;
  std::vector<int> labels_;
};

TEST_P(CnnTest, LogitsLossAndEveryGradientAreThoseOfFloat64) {
  train::Cnn model(stream(), shape_, {.batch_max = kBatch + 1});
  model.parameters_upload(parameters_);
  model.batch_upload(images_.data(), labels_.data(), kBatch);
  model.forward(kBatch);
  model.backward(kBatch, kBatch);
  Floats logits(kBatch * 4);
  Floats gradients(model.gradient_count());
  stream().download(logits.data(), model.logits(), logits.size() * sizeof(float));
  stream().download(gradients.data(), model.gradients(), gradients.size() * sizeof(float));
  stream().synchronize();

  const std::vector<double> images = doubles_of(images_);
  const auto loss_at = [&](std::span<const double> parameters) {
    return std::vector<double>{
        mean_loss(train::cnn_reference(shape_, parameters, images), labels_)};
  };
  const std::vector<double> parameters = doubles_of(parameters_);
  EXPECT_TRUE(close_to(logits, train::cnn_reference(shape_, parameters, images), 1e-5, 1e-5));
  EXPECT_NEAR(gradients[model.parameter_count() + train::kExtraLoss] / kBatch,
              loss_at(parameters)[0], 1e-5);
  gradients.resize(model.parameter_count());
  // Smaller steps than usual, so that no ReLU and no maximum changes sides.
  const auto slopes =
      kernels::reference::finite_difference(loss_at, parameters, std::vector<double>{1.0}, 1e-7);
  EXPECT_TRUE(close_to(gradients, slopes, 1e-3, 2e-6));
}

INSTANTIATE_TEST_SUITE_P(Blocks, CnnTest,
                         testing::Values(std::vector<int>{3}, std::vector<int>{3, 5}));

TEST(CnnShape, SaysWhatItIsAndRefusesWhatCannotBe) {
  const train::CnnShape shape = train::cnn_shape({8, 16}, {128});
  EXPECT_EQ(shape.text(), "28x28-8c-16c-128-10");
  EXPECT_EQ(shape.widths(), (std::vector<int>{7 * 7 * 16, 128, 10}));
  EXPECT_EQ(shape.parameter_count(), 9u * 8 + 8 + 72 * 16 + 16 + 785 * 128 + 129 * 10);
  EXPECT_THROW(train::cnn_shape({}, {128}), train::Failure);
  EXPECT_THROW(train::cnn_shape({8, 8, 8, 8}, {128}), train::Failure);
  EXPECT_THROW(train::cnn_shape({0}, {128}), train::Failure);
  EXPECT_THROW(train::cnn_shape({8}, {}), train::Failure);
}

}  // namespace
}  // namespace sluice::tests
