// The network on the device against the float64 reference: loss, every gradient, an update, the
// count of right answers.
#include "trainer/model/mlp_reference.h"
#include "trainer/model/optimizer.h"

#include "kernels/reference.h"
#include "kernels/reference_optimizers.h"
#include "tests/trainer/device_fixture.h"
#include "trainer/data/dataset.h"

namespace sluice::tests {
namespace {

class MlpTest : public DeviceTest {
 protected:
  static constexpr int kBatch = 13;

  void SetUp() override {
    DeviceTest::SetUp();
    shape_ = train::mlp_shape({37, 21});
    parameters_ = train::mlp_draw(shape_, 3);
    // Biases away from zero, so that their part in everything shows.
    const Floats noise = floats_draw(parameters_.size(), 5, -0.05, 0.05);
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i] += noise[i];
    inputs_ = floats_draw(static_cast<std::size_t>(kBatch * shape_.inputs()), 6);
    train::Random random(7);
    for (int i = 0; i < kBatch; ++i) labels_.push_back(static_cast<int>(random.below(10)));
  }
  train::MlpGradient expected() const {
    return train::mlp_reference(shape_, doubles_of(parameters_), doubles_of(inputs_), labels_);
  }
  Floats gradients_of(train::Mlp& model) {
    Floats out(model.gradient_count());
    stream().download(out.data(), model.gradients(), out.size() * sizeof(float));
    stream().synchronize();
    return out;
  }

  train::MlpShape shape_;
  Floats parameters_;
  Floats inputs_;
  std::vector<int> labels_;
};

TEST_F(MlpTest, LossAndGradientsEqualTheReference) {
  train::Mlp model(stream(), shape_, {.batch_max = 16});
  model.parameters_upload(parameters_);
  model.batch_upload(inputs_.data(), labels_.data(), kBatch);
  model.forward(kBatch);
  model.backward(kBatch, kBatch);
  const train::MlpGradient reference = expected();
  Floats got = gradients_of(model);
  EXPECT_NEAR(got[shape_.parameter_count() + train::kExtraLoss] / kBatch, reference.loss, 1e-5);
  got.resize(shape_.parameter_count());
  EXPECT_TRUE(close_to(got, reference.gradients, 1e-4, 1e-6));
}

TEST_F(MlpTest, GradientsOfPartsAddUpToThoseOfTheWhole) {
  train::Mlp model(stream(), shape_, {.batch_max = kBatch});
  model.parameters_upload(parameters_);
  Floats sum(shape_.parameter_count());
  constexpr int kFirst = 5;
  for (const auto& [from, count] : {std::pair{0, kFirst}, std::pair{kFirst, kBatch - kFirst}}) {
    model.batch_upload(inputs_.data() + from * shape_.inputs(), labels_.data() + from, count);
    model.forward(count);
    model.backward(count, kBatch);
    const Floats part = gradients_of(model);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  EXPECT_TRUE(close_to(sum, expected().gradients, 1e-4, 1e-6));
}

TEST_F(MlpTest, AnEmptyBatchAddsNothing) {
  train::Mlp model(stream(), shape_, {.batch_max = kBatch});
  model.parameters_upload(parameters_);
  model.batch_upload(inputs_.data(), labels_.data(), kBatch);
  model.forward(kBatch);
  model.backward(kBatch, kBatch);
  model.batch_upload(inputs_.data(), labels_.data(), 0);
  model.backward(0, kBatch);
  EXPECT_EQ(gradients_of(model), Floats(model.gradient_count()));
}

TEST_F(MlpTest, TwoUpdatesFollowTheReference) {
  train::Mlp model(stream(), shape_, {.batch_max = kBatch});
  train::Optimizer optimizer(stream(), {.momentum = 0.5}, shape_.parameter_count());
  model.parameters_upload(parameters_);
  std::vector<double> weights = doubles_of(parameters_);
  std::vector<double> velocity(weights.size());
  for (int step = 0; step < 2; ++step) {
    model.batch_upload(inputs_.data(), labels_.data(), kBatch);
    model.forward(kBatch);
    model.backward(kBatch, kBatch);
    optimizer.step(0.125, model.gradients(), model.parameters());
    const auto gradient =
        train::mlp_reference(shape_, weights, doubles_of(inputs_), labels_).gradients;
    const auto moved = kernels::reference::sgd_momentum(0.125, 0.5, gradient, velocity, weights);
    weights = moved.weights;
    velocity = moved.velocity;
  }
  EXPECT_TRUE(close_to(model.parameters_download(), weights, 1e-5, 1e-6));
}

TEST_F(MlpTest, AdamwWithClippingFollowsTheReference) {
  train::Mlp model(stream(), shape_, {.batch_max = kBatch});
  const train::OptimizerSettings settings{
      .method = train::Method::kAdamw, .weight_decay = 0.1, .clip = 0.01};
  train::Optimizer optimizer(stream(), settings, shape_.parameter_count());
  model.parameters_upload(parameters_);
  using kernels::reference::Values;
  kernels::reference::Adam state{Values(parameters_.size()), Values(parameters_.size()),
                                 doubles_of(parameters_)};
  for (int step = 1; step <= 2; ++step) {
    model.batch_upload(inputs_.data(), labels_.data(), kBatch);
    model.forward(kBatch);
    model.backward(kBatch, kBatch);
    optimizer.step(0.01, model.gradients(), model.parameters());
    Values gradient =
        train::mlp_reference(shape_, state.weights, doubles_of(inputs_), labels_).gradients;
    const double norm = kernels::reference::norm(gradient);
    ASSERT_GT(norm, settings.clip);
    for (double& value : gradient) value *= settings.clip / norm;
    state = kernels::reference::adamw({.rate = 0.01f, .decay = 0.1f}, step, gradient, state);
  }
  // Where a gradient is nearly zero, Adam's step is a quotient of two roundings: a hundredth of it.
  EXPECT_TRUE(close_to(model.parameters_download(), state.weights, 1e-4, 1e-4));
}

TEST_F(MlpTest, CountsRightAnswersOverBatches) {
  train::Mlp model(stream(), shape_, {.batch_max = kBatch, .trains = false});
  model.parameters_upload(parameters_);
  const auto logits = expected().logits;
  const int once = kernels::reference::correct_count(kBatch, train::kClassCount, logits, labels_);
  for (int round = 0; round < 2; ++round) {
    model.batch_upload(inputs_.data(), labels_.data(), kBatch);
    model.forward(kBatch);
    model.correct_add(kBatch);
  }
  int got = -1;
  stream().download(&got, model.correct(), sizeof got);
  stream().synchronize();
  EXPECT_EQ(got, 2 * once);
}

}  // namespace
}  // namespace sluice::tests
