// The float64 network against finite differences: its gradient is the slope of its loss.
#include <gtest/gtest.h>

#include <cmath>

#include "trainer/base/random.h"
#include "trainer/model/mlp_reference.h"

namespace sluice::train {
namespace {

TEST(MlpReference, GradientIsTheSlopeOfTheLoss) {
  const MlpShape shape{{9, 7, 5, 4}};
  Random random(11);
  std::vector<double> parameters(shape.parameter_count());
  for (double& value : parameters) value = 0.5 * random.normal();
  std::vector<int> labels;
  std::vector<double> inputs;
  for (int row = 0; row < 6; ++row) {
    labels.push_back(static_cast<int>(random.below(4)));
    for (int i = 0; i < 9; ++i) inputs.push_back(random.normal());
  }
  const MlpGradient analytic = mlp_reference(shape, parameters, inputs, labels);
  const double step = 1e-6;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::vector<double> moved = parameters;
    moved[i] += step;
    const double above = mlp_reference(shape, moved, inputs, labels).loss;
    moved[i] -= 2 * step;
    const double below = mlp_reference(shape, moved, inputs, labels).loss;
    // Central difference: error about step^2 plus 1e-16/step.
    EXPECT_NEAR(analytic.gradients[i], (above - below) / (2 * step), 1e-8) << i;
  }
}

TEST(MlpReference, AnUntrainedNetworkGuesses) {
  const MlpShape shape{{4, 3, 10}};
  const std::vector<double> zeros(shape.parameter_count());
  const MlpGradient got =
      mlp_reference(shape, zeros, std::vector<double>(8, 1.0), std::vector{3, 7});
  EXPECT_DOUBLE_EQ(got.loss, std::log(10.0));
}

}  // namespace
}  // namespace sluice::train
