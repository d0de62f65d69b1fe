// Element-wise kernels and column sums against float64, on odd sizes.
#include "kernels/reference.h"
#include "tests/trainer/device_fixture.h"

namespace sluice::tests {
namespace {

namespace reference = kernels::reference;

struct Area {
  int rows;
  int columns;
  std::size_t size() const { return static_cast<std::size_t>(rows * columns); }
};

class ArraysTest : public DeviceTest, public testing::WithParamInterface<Area> {};

TEST_P(ArraysTest, BiasAndRelu) {
  const Area area = GetParam();
  const Floats x = floats_draw(area.size(), 1);
  const Floats bias = floats_draw(static_cast<std::size_t>(area.columns), 2);
  OnDevice<float> bias_device(stream(), bias);
  OnDevice<float> plain(stream(), x);
  stream().launch(kernels::bias_forward(area.rows, area.columns, bias_device.at(), plain.at()));
  EXPECT_TRUE(
      close_to(plain.values(),
               reference::bias_forward(area.rows, area.columns, doubles_of(bias), doubles_of(x)),
               1e-6, 1e-7));
  OnDevice<float> rectified(stream(), x);
  stream().launch(
      kernels::bias_relu_forward(area.rows, area.columns, bias_device.at(), rectified.at()));
  EXPECT_TRUE(close_to(
      rectified.values(),
      reference::bias_relu_forward(area.rows, area.columns, doubles_of(bias), doubles_of(x)), 1e-6,
      1e-7));
}

TEST_P(ArraysTest, ReluBackward) {
  const Area area = GetParam();
  Floats output = floats_draw(area.size(), 3);
  for (float& value : output) value = std::max(value, 0.0f);
  const Floats gradient = floats_draw(area.size(), 4);
  OnDevice<float> output_device(stream(), output);
  OnDevice<float> gradient_device(stream(), gradient);
  stream().launch(kernels::relu_backward(static_cast<int>(area.size()), output_device.at(),
                                         gradient_device.at()));
  EXPECT_TRUE(close_to(gradient_device.values(),
                       reference::relu_backward(doubles_of(output), doubles_of(gradient)), 0,
                       1e-30));
}

TEST_P(ArraysTest, ColumnSumIsRightAndRepeatsBitForBit) {
  const Area area = GetParam();
  const Floats x = floats_draw(area.size(), 5);
  OnDevice<float> x_device(stream(), x);
  std::vector<Floats> runs;
  for (int run = 0; run < 2; ++run) {
    OnDevice<float> sums(stream(), Floats(static_cast<std::size_t>(area.columns), NAN));
    stream().launch(kernels::column_sum(area.rows, area.columns, x_device.at(), sums.at()));
    runs.push_back(sums.values());
  }
  EXPECT_TRUE(close_to(runs[0], reference::column_sum(area.rows, area.columns, doubles_of(x)), 1e-6,
                       1e-7 * area.rows));
  EXPECT_EQ(runs[0], runs[1]);
}

TEST_P(ArraysTest, SgdMomentum) {
  const Area area = GetParam();
  const Floats gradient = floats_draw(area.size(), 6);
  const Floats velocity = floats_draw(area.size(), 7);
  const Floats weights = floats_draw(area.size(), 8);
  OnDevice<float> gradient_device(stream(), gradient);
  OnDevice<float> velocity_device(stream(), velocity);
  OnDevice<float> weights_device(stream(), weights);
  stream().launch(kernels::sgd_momentum(static_cast<int>(area.size()), 0.125f, 0.75f,
                                        gradient_device.at(), velocity_device.at(),
                                        weights_device.at()));
  const auto expected = reference::sgd_momentum(0.125, 0.75, doubles_of(gradient),
                                                doubles_of(velocity), doubles_of(weights));
  EXPECT_TRUE(close_to(velocity_device.values(), expected.velocity, 1e-6, 1e-7));
  EXPECT_TRUE(close_to(weights_device.values(), expected.weights, 1e-6, 1e-7));
}

TEST_P(ArraysTest, ScaleAndAdd) {
  const Area area = GetParam();
  const Floats x = floats_draw(area.size(), 9);
  Floats y = floats_draw(area.size(), 10);
  OnDevice<float> x_device(stream(), x);
  OnDevice<float> y_device(stream(), y);
  const int count = static_cast<int>(area.size());
  stream().launch(kernels::array_add(count, x_device.at(), y_device.at()));
  stream().launch(kernels::array_scale(count, 0.5f, y_device.at()));
  // One rounded addition and an exact halving: the host gets the same bits.
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = (y[i] + x[i]) * 0.5f;
  EXPECT_EQ(y_device.values(), y);
}

std::string area_name(const testing::TestParamInfo<Area>& one) {
  return std::to_string(one.param.rows) + "x" + std::to_string(one.param.columns);
}

INSTANTIATE_TEST_SUITE_P(Areas, ArraysTest,
                         testing::Values(Area{1, 1}, Area{3, 5}, Area{31, 33}, Area{64, 10},
                                         Area{129, 67}),
                         area_name);

class WildPointerTest : public DeviceTest {};

TEST_F(WildPointerTest, WordStoreWritesWhereItIsTold) {
  OnDevice<int> words(stream(), std::vector<int>{1, 2, 3});
  stream().launch(kernels::word_store(words.at() + sizeof(int), -7));
  EXPECT_EQ(words.values(), (std::vector<int>{1, -7, 3}));
}

}  // namespace
}  // namespace sluice::tests
