// AdamW, RMSProp, norm and clipping, overflow search, casts and top-k against the references.
#include "kernels/optimizers.h"

#include <limits>

#include "kernels/reference_optimizers.h"
#include "tests/trainer/device_fixture.h"

namespace sluice::tests {
namespace {

namespace reference = kernels::reference;
using kernels::HalfFormat;

class OptimizersTest : public DeviceTest {
 protected:
  double norm_of(const Floats& x) {
    const int count = static_cast<int>(x.size());
    const int parts = kernels::square_sum_parts(count);
    OnDevice<float> x_device(stream(), x), norm(stream(), Floats(1, NAN));
    OnDevice<float> partials(stream(), Floats(static_cast<std::size_t>(parts), NAN));
    stream().launch(kernels::square_sum(count, x_device.at(), partials.at()));
    stream().launch(kernels::norm_finish(parts, partials.at(), norm.at()));
    return static_cast<double>(norm.values()[0]);
  }
};

TEST_F(OptimizersTest, AdamwOverSteps) {
  constexpr std::size_t kCount = 301;
  const kernels::AdamwSettings settings{
      .rate = 0.01f, .first = 0.9f, .second = 0.95f, .epsilon = 1e-8f, .decay = 0.1f};
  const Floats start = floats_draw(kCount, 1);
  OnDevice<float> means(stream(), Floats(kCount, 0)), squares(stream(), Floats(kCount, 0));
  OnDevice<float> weights(stream(), start);
  reference::Adam expected{reference::Values(kCount), reference::Values(kCount), doubles_of(start)};
  for (int step = 1; step <= 5; ++step) {
    const Floats gradient = floats_draw(kCount, 10 + static_cast<std::uint64_t>(step));
    OnDevice<float> gradient_device(stream(), gradient);
    stream().launch(kernels::adamw(kCount, settings, step, gradient_device.at(), means.at(),
                                   squares.at(), weights.at()));
    expected = reference::adamw(settings, step, doubles_of(gradient), expected);
  }
  EXPECT_TRUE(close_to(means.values(), expected.means, 1e-5, 1e-7));
  EXPECT_TRUE(close_to(squares.values(), expected.squares, 1e-5, 1e-7));
  EXPECT_TRUE(close_to(weights.values(), expected.weights, 1e-6, 1e-6));
}

TEST_F(OptimizersTest, RmspropOverSteps) {
  constexpr std::size_t kCount = 301;
  const kernels::RmspropSettings settings{.rate = 0.01f, .smoothing = 0.9f, .momentum = 0.5f};
  const Floats start = floats_draw(kCount, 2);
  OnDevice<float> squares(stream(), Floats(kCount, 0)), velocity(stream(), Floats(kCount, 0));
  OnDevice<float> weights(stream(), start);
  reference::Rmsprop expected{reference::Values(kCount), reference::Values(kCount),
                              doubles_of(start)};
  for (std::uint64_t step = 1; step <= 5; ++step) {
    const Floats gradient = floats_draw(kCount, 20 + step);
    OnDevice<float> gradient_device(stream(), gradient);
    stream().launch(kernels::rmsprop(kCount, settings, gradient_device.at(), squares.at(),
                                     velocity.at(), weights.at()));
    expected = reference::rmsprop(settings, doubles_of(gradient), expected);
  }
  EXPECT_TRUE(close_to(squares.values(), expected.squares, 1e-5, 1e-7));
  EXPECT_TRUE(close_to(velocity.values(), expected.velocity, 1e-5, 1e-5));
  EXPECT_TRUE(close_to(weights.values(), expected.weights, 1e-6, 1e-6));
}

TEST_F(OptimizersTest, NormAndClipping) {
  for (const std::size_t count : {1u, 255u, 4097u, 100'003u}) {
    const Floats x = floats_draw(count, 3);
    const double expected = reference::norm(doubles_of(x));
    EXPECT_NEAR(norm_of(x), expected, 1e-6 * expected + 1e-7) << count;
    EXPECT_EQ(norm_of(x), norm_of(x));  // the same bits every time
  }
  const Floats x = floats_draw(1000, 4);
  const double norm = reference::norm(doubles_of(x));
  for (const double limit : {norm / 2, norm * 2}) {
    OnDevice<float> x_device(stream(), x), norm_device(stream(), Floats{static_cast<float>(norm)});
    stream().launch(
        kernels::norm_clip(1000, static_cast<float>(limit), norm_device.at(), x_device.at()));
    reference::Values expected = doubles_of(x);
    for (double& value : expected) value *= std::min(1.0, limit / norm);
    EXPECT_TRUE(close_to(x_device.values(), expected, 1e-6, 0)) << limit;
  }
}

TEST_F(OptimizersTest, GramSchmidtOfTallAndShortAndDependentColumns) {
  for (const auto& [rows, columns] : {std::pair{1, 1}, {2, 4}, {7, 3}, {784, 4}, {300, 32}}) {
    const auto count = static_cast<std::size_t>(rows * columns);
    Floats x = floats_draw(count, 8);
    if (columns == 3) {  // the last is the sum of the others
      for (std::size_t row = 0; row < 7; ++row) x[row * 3 + 2] = x[row * 3] + x[row * 3 + 1];
    }
    OnDevice<float> x_device(stream(), x);
    stream().launch(kernels::gram_schmidt(rows, columns, x_device.at()));
    const reference::Values expected = reference::gram_schmidt(rows, columns, doubles_of(x));
    EXPECT_TRUE(close_to(x_device.values(), expected, 1e-4, 1e-5)) << rows << "x" << columns;
    const int independent = std::min(rows, columns == 3 ? 2 : columns);
    double squares = 0;
    for (const float value : x_device.values())
      squares += static_cast<double>(value) * static_cast<double>(value);
    EXPECT_NEAR(squares, independent, 1e-4) << rows << "x" << columns;
  }
  OnDevice<float> zero(stream(), Floats(12, 0));
  stream().launch(kernels::gram_schmidt(4, 3, zero.at()));
  EXPECT_EQ(zero.values(), Floats(12, 0));
}

TEST_F(OptimizersTest, AddsAMultiple) {
  const Floats x = floats_draw(1001, 9), y = floats_draw(1001, 11);
  OnDevice<float> x_device(stream(), x), y_device(stream(), y);
  stream().launch(kernels::array_add_scaled(1001, -0.25f, x_device.at(), y_device.at()));
  reference::Values expected = doubles_of(y);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] -= 0.25 * static_cast<double>(x[i]);
  EXPECT_TRUE(close_to(y_device.values(), expected, 1e-6, 1e-7));
}

TEST_F(OptimizersTest, FindsWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float planted : {0.0f, 3e38f, kInfinity, -kInfinity, NAN}) {
    Floats x = floats_draw(1000, 5);
    x[777] = planted;
    OnDevice<float> x_device(stream(), x);
    OnDevice<int> found(stream(), {0});
    stream().launch(kernels::not_finite(1000, x_device.at(), found.at()));
    EXPECT_EQ(found.values()[0], std::isfinite(planted) ? 0 : 1) << planted;
  }
}

TEST_F(OptimizersTest, CastsRoundToNearestEven) {
  for (const HalfFormat format : {HalfFormat::kFp16, HalfFormat::kBf16}) {
    Floats x = floats_draw(500, 6, -70000, 70000);
    const Floats small = floats_draw(500, 7, -1e-6, 1e-6);  // subnormal in fp16
    x.insert(x.end(), small.begin(), small.end());
    x.insert(x.end(), {0.0f, -0.0f, 1.0f, 65504.0f, 65519.9f, 65520.0f, 1e30f, -1e30f,
                       1.00048828125f,            // half way between two of fp16: down to even
                       1.00146484375f,            // and up to even
                       1.00390625f, 1.01171875f,  // the same of bf16
                       6e-8f, 2.98e-8f, 2.9e-8f, 3.4e38f, std::numeric_limits<float>::infinity()});
    const int count = static_cast<int>(x.size());
    std::vector<std::uint16_t> expected;
    for (const float value : x) expected.push_back(reference::half_bits(format, value));
    OnDevice<float> x_device(stream(), x), back(stream(), Floats(x.size(), NAN));
    OnDevice<std::uint16_t> half(stream(), std::vector<std::uint16_t>(x.size(), 0xdead));
    stream().launch(kernels::cast_to_half(format, count, x_device.at(), half.at()));
    stream().launch(kernels::cast_from_half(format, count, half.at(), back.at()));
    EXPECT_EQ(half.values(), expected);
    const Floats returned = back.values();
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(returned[i], reference::half_value(format, expected[i])) << x[i];
    }
  }
}

struct TopkCase {
  const char* name;
  std::size_t count;
  int k;
  double spread;  // 0: all magnitudes are equal
};

class TopkTest : public DeviceTest, public testing::WithParamInterface<TopkCase> {};

TEST_P(TopkTest, TakesTheLargestAndLeavesTheRest) {
  const TopkCase& one = GetParam();
  Floats x = floats_draw(one.count, 8, -1, 1);
  // Few different magnitudes, so that the edge falls among equals.
  if (one.spread > 0) {
    for (float& value : x) {
      value = static_cast<float>(std::round(static_cast<double>(value) * one.spread) / one.spread);
    }
  } else {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 3 == 0 ? -2.0f : 2.0f;
  }
  const int count = static_cast<int>(one.count);
  const auto blocks = static_cast<std::size_t>(kernels::topk_blocks(count));
  OnDevice<float> x_device(stream(), x);
  OnDevice<std::uint32_t> search(stream(), {0u, static_cast<std::uint32_t>(one.k)});
  OnDevice<std::uint32_t> histogram(stream(), std::vector<std::uint32_t>(256));
  OnDevice<std::uint32_t> above(stream(), std::vector<std::uint32_t>(blocks, 0xdeadbeef));
  OnDevice<std::uint32_t> equal(stream(), std::vector<std::uint32_t>(blocks, 0xdeadbeef));
  OnDevice<int> indices(stream(), std::vector<int>(static_cast<std::size_t>(one.k), -1));
  OnDevice<float> values(stream(), Floats(static_cast<std::size_t>(one.k), NAN));
  for (int shift = 24; shift >= 0; shift -= 8) {
    stream().launch(
        kernels::topk_histogram(count, shift, search.at(), x_device.at(), histogram.at()));
    stream().launch(kernels::topk_pick(shift, search.at(), histogram.at()));
  }
  stream().launch(kernels::topk_count(count, search.at(), x_device.at(), above.at(), equal.at()));
  stream().launch(kernels::topk_offsets(count, above.at(), equal.at()));
  stream().launch(kernels::topk_take(count, search.at(), above.at(), equal.at(), x_device.at(),
                                     indices.at(), values.at()));
  const std::vector<int> expected = reference::topk(one.k, x);
  ASSERT_EQ(indices.values(), expected);
  Floats rest = x;
  Floats taken;
  for (const int index : expected) {
    taken.push_back(x[static_cast<std::size_t>(index)]);
    rest[static_cast<std::size_t>(index)] = 0;
  }
  EXPECT_EQ(values.values(), taken);
  EXPECT_EQ(x_device.values(), rest);
  EXPECT_EQ(histogram.values(), std::vector<std::uint32_t>(256));  // ready for the next use
  stream().launch(kernels::topk_add(one.k, indices.at(), values.at(), x_device.at()));
  EXPECT_EQ(x_device.values(), x);
}

INSTANTIATE_TEST_SUITE_P(Cases, TopkTest,
                         testing::Values(TopkCase{"one_of_one", 1, 1, 1e9},
                                         TopkCase{"one", 1000, 1, 1e9},
                                         TopkCase{"tenth", 10'000, 1000, 1e9},
                                         TopkCase{"all", 300, 300, 1e9},
                                         TopkCase{"among_equals", 10'000, 1234, 4},
                                         TopkCase{"all_equal", 9000, 4500, 0}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace sluice::tests
