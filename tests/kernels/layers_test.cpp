// Every layer's kernels against float64: forward directly, backward by finite differences of the
// forward reference, on sizes that divide by nothing.
#include "kernels/layers.h"
#include "kernels/kernels.h"
#include "kernels/reference.h"
#include "kernels/reference_layers.h"
#include "tests/trainer/device_fixture.h"

namespace sluice::tests {
namespace {

namespace reference = kernels::reference;
using kernels::AttentionRung;
using kernels::AttentionShape;
using kernels::WindowShape;
using reference::Values;
using View = std::span<const double>;

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }
Floats unwritten(std::size_t count) { return Floats(count, NAN); }

class LayersTest : public DeviceTest {};

struct RowsShape {
  int rows;
  int columns;
};

class RowsTest : public DeviceTest, public testing::WithParamInterface<RowsShape> {
 protected:
  int rows() const { return GetParam().rows; }
  int columns() const { return GetParam().columns; }
  std::size_t count() const { return size_of(rows() * columns()); }
};

TEST_P(RowsTest, LayerNorm) {
  constexpr double kEpsilon = 1e-5;
  // Far from zero, where a variance by squares would lose its digits.
  const Floats x = floats_draw(count(), 1, 99, 101);
  const Floats gain = floats_draw(size_of(columns()), 2, 0.5, 2);
  const Floats bias = floats_draw(size_of(columns()), 3);
  const Floats direction = floats_draw(count(), 4);
  OnDevice<float> x_device(stream(), x), gain_device(stream(), gain), bias_device(stream(), bias);
  OnDevice<float> out(stream(), unwritten(count())), means(stream(), unwritten(size_of(rows())));
  OnDevice<float> scales(stream(), unwritten(size_of(rows())));
  OnDevice<float> gradient(stream(), direction), input(stream(), unwritten(count()));
  OnDevice<float> gain_gradient(stream(), unwritten(size_of(columns())));
  OnDevice<float> bias_gradient(stream(), unwritten(size_of(columns())));
  stream().launch(kernels::layer_norm_forward(rows(), columns(), static_cast<float>(kEpsilon),
                                              x_device.at(), gain_device.at(), bias_device.at(),
                                              out.at(), means.at(), scales.at()));
  stream().launch(kernels::layer_norm_backward(rows(), columns(), x_device.at(), gain_device.at(),
                                               means.at(), scales.at(), gradient.at(), input.at()));
  stream().launch(kernels::layer_norm_weights_backward(rows(), columns(), x_device.at(), means.at(),
                                                       scales.at(), gradient.at(),
                                                       gain_gradient.at(), bias_gradient.at()));

  const Values x_wide = doubles_of(x), gain_wide = doubles_of(gain), bias_wide = doubles_of(bias);
  const auto norm = [&](View in, View gains, View biases) {
    return reference::layer_norm(rows(), columns(), kEpsilon, in, gains, biases);
  };
  EXPECT_TRUE(close_to(out.values(), norm(x_wide, gain_wide, bias_wide), 1e-4, 1e-4));
  const Values direction_wide = doubles_of(direction);
  const auto by_x = reference::finite_difference(
      [&](View in) { return norm(in, gain_wide, bias_wide); }, x_wide, direction_wide);
  EXPECT_TRUE(close_to(input.values(), by_x, 2e-4, 1e-3));
  const auto by_gain = reference::finite_difference(
      [&](View gains) { return norm(x_wide, gains, bias_wide); }, gain_wide, direction_wide);
  EXPECT_TRUE(close_to(gain_gradient.values(), by_gain, 1e-4, 2e-4));
  const auto by_bias = reference::finite_difference(
      [&](View biases) { return norm(x_wide, gain_wide, biases); }, bias_wide, direction_wide);
  EXPECT_TRUE(close_to(bias_gradient.values(), by_bias, 1e-5, 1e-5));
}

TEST_P(RowsTest, Softmax) {
  const Floats x = floats_draw(count(), 5, -90, 90);  // a naive exponent would overflow
  OnDevice<float> x_device(stream(), x), out(stream(), unwritten(count()));
  stream().launch(kernels::softmax_forward(rows(), columns(), x_device.at(), out.at()));
  EXPECT_TRUE(
      close_to(out.values(), reference::softmax(rows(), columns(), doubles_of(x)), 2e-5, 1e-7));

  const Floats mild = floats_draw(count(), 6, -2, 2);
  const Floats direction = floats_draw(count(), 7);
  OnDevice<float> both(stream(), mild), gradient(stream(), direction);
  stream().launch(kernels::softmax_forward(rows(), columns(), both.at(), both.at()));  // in place
  stream().launch(kernels::softmax_backward(rows(), columns(), both.at(), gradient.at()));
  const auto expected = reference::finite_difference(
      [&](View in) { return reference::softmax(rows(), columns(), in); }, doubles_of(mild),
      doubles_of(direction));
  EXPECT_TRUE(close_to(gradient.values(), expected, 1e-5, 1e-6));
}

INSTANTIATE_TEST_SUITE_P(Shapes, RowsTest,
                         testing::Values(RowsShape{1, 1}, RowsShape{5, 7}, RowsShape{9, 33},
                                         RowsShape{3, 100}),
                         [](const auto& one) {
                           return std::to_string(one.param.rows) + "_" +
                                  std::to_string(one.param.columns);
                         });

TEST_F(LayersTest, Gelu) {
  Floats x = floats_draw(300, 8, -6, 6);
  x.insert(x.end(), {0.0f, -0.0f, 100.0f, -100.0f});
  const Floats direction = floats_draw(x.size(), 9);
  const int count = static_cast<int>(x.size());
  OnDevice<float> x_device(stream(), x), out(stream(), unwritten(x.size()));
  OnDevice<float> gradient(stream(), direction);
  stream().launch(kernels::gelu_forward(count, x_device.at(), out.at()));
  stream().launch(kernels::gelu_backward(count, x_device.at(), gradient.at()));
  EXPECT_TRUE(close_to(out.values(), reference::gelu(doubles_of(x)), 1e-5, 1e-6));
  const auto expected =
      reference::finite_difference(reference::gelu, doubles_of(x), doubles_of(direction));
  EXPECT_TRUE(close_to(gradient.values(), expected, 1e-5, 2e-6));
}

TEST_F(LayersTest, Embedding) {
  constexpr int kBatch = 3, kLength = 7, kColumns = 37, kTokens = 11;
  constexpr int kRows = kBatch * kLength;
  train::Random random(10);
  std::vector<int> tokens;
  for (int i = 0; i < kRows; ++i) tokens.push_back(static_cast<int>(random.below(kTokens)));
  const Floats table = floats_draw(kTokens * kColumns, 11);
  const Floats positions = floats_draw(kLength * kColumns, 12);
  const Floats direction = floats_draw(kRows * kColumns, 13);
  // The rows by token, as the loader of a batch prepares them.
  std::vector<int> order(kRows), starts;
  for (int i = 0; i < kRows; ++i) order[size_of(i)] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return tokens[size_of(a)] < tokens[size_of(b)]; });
  for (int i = 0; i < kRows; ++i) {
    if (i == 0 || tokens[size_of(order[size_of(i)])] != tokens[size_of(order[size_of(i - 1)])]) {
      starts.push_back(i);
    }
  }
  const int distinct = static_cast<int>(starts.size());
  starts.push_back(kRows);
  ASSERT_LT(distinct, kRows);

  OnDevice<int> tokens_device(stream(), tokens), order_device(stream(), order);
  OnDevice<int> starts_device(stream(), starts);
  OnDevice<float> table_device(stream(), table), positions_device(stream(), positions);
  OnDevice<float> out(stream(), unwritten(kRows * kColumns)), gradient(stream(), direction);
  // Gradients are added to what is there.
  OnDevice<float> table_gradient(stream(), Floats(kTokens * kColumns, 0.5f));
  OnDevice<float> positions_gradient(stream(), Floats(kLength * kColumns, 0.25f));
  stream().launch(kernels::embedding_forward(kRows, kColumns, kLength, tokens_device.at(),
                                             table_device.at(), positions_device.at(), out.at()));
  stream().launch(kernels::embedding_backward(distinct, kColumns, starts_device.at(),
                                              order_device.at(), tokens_device.at(), gradient.at(),
                                              table_gradient.at()));
  stream().launch(kernels::position_backward(kBatch, kLength, kColumns, gradient.at(),
                                             positions_gradient.at()));
  const Values table_wide = doubles_of(table), positions_wide = doubles_of(positions);
  const Values direction_wide = doubles_of(direction);
  EXPECT_TRUE(close_to(out.values(),
                       reference::embedding(kColumns, kLength, tokens, table_wide, positions_wide),
                       1e-6, 1e-7));
  Values by_table = reference::finite_difference(
      [&](View in) { return reference::embedding(kColumns, kLength, tokens, in, positions_wide); },
      table_wide, direction_wide);
  for (double& value : by_table) value += 0.5;
  EXPECT_TRUE(close_to(table_gradient.values(), by_table, 1e-6, 1e-6));
  Values by_position = reference::finite_difference(
      [&](View in) { return reference::embedding(kColumns, kLength, tokens, table_wide, in); },
      positions_wide, direction_wide);
  for (double& value : by_position) value += 0.25;
  EXPECT_TRUE(close_to(positions_gradient.values(), by_position, 1e-6, 1e-6));
}

class AttentionTest : public DeviceTest, public testing::WithParamInterface<AttentionShape> {
 protected:
  Floats forward(AttentionRung rung, const Floats& qkv, Floats* sums) {
    const AttentionShape& shape = GetParam();
    OnDevice<float> qkv_device(stream(), qkv), out(stream(), unwritten(qkv.size() / 3));
    OnDevice<float> sums_device(stream(), unwritten(rows()));
    stream().launch(
        kernels::attention_forward(rung, shape, qkv_device.at(), out.at(), sums_device.at()));
    *sums = sums_device.values();
    return out.values();
  }
  std::size_t rows() const {
    return size_of(GetParam().items * GetParam().heads * GetParam().length);
  }
  Floats qkv_draw() const { return floats_draw(rows() * 3 * size_of(GetParam().size), 14, -2, 2); }
};

TEST_P(AttentionTest, ForwardOnBothRungs) {
  const Floats qkv = qkv_draw();
  const Values expected = reference::attention(GetParam(), doubles_of(qkv));
  Floats naive_sums, tiled_sums;
  EXPECT_TRUE(close_to(forward(AttentionRung::kNaive, qkv, &naive_sums), expected, 1e-5, 3e-6));
  EXPECT_TRUE(close_to(forward(AttentionRung::kTiled, qkv, &tiled_sums), expected, 1e-5, 3e-6));
  EXPECT_TRUE(close_to(tiled_sums, doubles_of(naive_sums), 1e-5, 1e-5));
}

TEST_P(AttentionTest, BackwardByFiniteDifferences) {
  const AttentionShape& shape = GetParam();
  const Floats qkv = qkv_draw();
  const Floats direction = floats_draw(qkv.size() / 3, 15);
  OnDevice<float> qkv_device(stream(), qkv), out(stream(), unwritten(qkv.size() / 3));
  OnDevice<float> sums(stream(), unwritten(rows())), products(stream(), unwritten(rows()));
  OnDevice<float> gradient(stream(), direction), qkv_gradient(stream(), unwritten(qkv.size()));
  stream().launch(kernels::attention_forward(AttentionRung::kTiled, shape, qkv_device.at(),
                                             out.at(), sums.at()));
  stream().launch(kernels::attention_products(shape, out.at(), gradient.at(), products.at()));
  stream().launch(kernels::attention_backward_queries(
      shape, qkv_device.at(), sums.at(), products.at(), gradient.at(), qkv_gradient.at()));
  stream().launch(kernels::attention_backward_keys(shape, qkv_device.at(), sums.at(), products.at(),
                                                   gradient.at(), qkv_gradient.at()));
  const auto attend = [&](View in) { return reference::attention(shape, in); };
  const Values wide = doubles_of(qkv);
  if (qkv.size() <= 1000) {
    const auto expected = reference::finite_difference(attend, wide, doubles_of(direction));
    EXPECT_TRUE(close_to(qkv_gradient.values(), expected, 2e-5, 1e-5));
    return;
  }
  // Each value by itself would take minutes: instead along a few random directions.
  const Values got = doubles_of(qkv_gradient.values());
  for (const std::uint64_t seed : {21u, 22u, 23u}) {
    const Values way = doubles_of(floats_draw(qkv.size(), seed));
    const auto along = [&](View in) {
      Values point = wide;
      for (std::size_t i = 0; i < point.size(); ++i) point[i] += in[0] * way[i];
      return attend(point);
    };
    const Values expected = reference::finite_difference(along, Values{0.0}, doubles_of(direction));
    double sum = 0, size = 0;
    for (std::size_t i = 0; i < way.size(); ++i) {
      sum += got[i] * way[i];
      size += std::fabs(got[i] * way[i]);
    }
    EXPECT_NEAR(sum, expected[0], 1e-5 * size);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest,
                         testing::Values(AttentionShape{1, 1, 1, 1}, AttentionShape{2, 3, 5, 7},
                                         AttentionShape{1, 2, 35, 4}, AttentionShape{1, 1, 33, 40},
                                         AttentionShape{2, 2, 70, 64}),
                         [](const auto& one) {
                           const AttentionShape& s = one.param;
                           return std::to_string(s.items) + "_" + std::to_string(s.heads) + "_" +
                                  std::to_string(s.length) + "_" + std::to_string(s.size);
                         });

class ConvolutionTest : public DeviceTest, public testing::WithParamInterface<WindowShape> {};

TEST_P(ConvolutionTest, ForwardOnBothRungsAndBackward) {
  constexpr int kFilters = 5;
  const WindowShape& shape = GetParam();
  const std::size_t inputs = size_of(shape.items * shape.height * shape.width * shape.channels);
  const std::size_t outputs = size_of(shape.patches() * kFilters);
  const std::size_t patches = size_of(shape.patches() * shape.patch());
  const Floats x = floats_draw(inputs, 16);
  const Floats weights = floats_draw(size_of(shape.patch() * kFilters), 17);
  const Floats direction = floats_draw(outputs, 18);
  OnDevice<float> x_device(stream(), x), weights_device(stream(), weights);
  OnDevice<float> naive(stream(), unwritten(outputs)), by_patches(stream(), unwritten(outputs));
  OnDevice<float> patches_device(stream(), unwritten(patches));
  stream().launch(
      kernels::convolution_naive(shape, kFilters, x_device.at(), weights_device.at(), naive.at()));
  const kernels::GemmShape product{shape.patches(), kFilters, shape.patch()};
  const auto whole = [](const kernels::GemmShape& gemm) {
    return kernels::gemm_whole(kernels::GemmRung::kTiled, gemm);
  };
  stream().launch(kernels::patches_gather(shape, x_device.at(), patches_device.at()));
  stream().launch(kernels::gemm(kernels::GemmForm::kNn, whole(product), product,
                                patches_device.at(), weights_device.at(), by_patches.at()));
  const Values x_wide = doubles_of(x), weights_wide = doubles_of(weights);
  const Values expected = reference::convolution(shape, kFilters, x_wide, weights_wide);
  EXPECT_TRUE(close_to(naive.values(), expected, 1e-5, 1e-5));
  EXPECT_TRUE(close_to(by_patches.values(), expected, 1e-5, 1e-5));

  OnDevice<float> gradient(stream(), direction);
  OnDevice<float> weights_gradient(stream(), unwritten(weights.size()));
  OnDevice<float> patches_gradient(stream(), unwritten(patches));
  OnDevice<float> x_gradient(stream(), unwritten(inputs));
  const kernels::GemmShape to_weights{shape.patch(), kFilters, shape.patches()};
  const kernels::GemmShape to_patches{shape.patches(), shape.patch(), kFilters};
  stream().launch(kernels::gemm(kernels::GemmForm::kTn, whole(to_weights), to_weights,
                                patches_device.at(), gradient.at(), weights_gradient.at()));
  stream().launch(kernels::gemm(kernels::GemmForm::kNt, whole(to_patches), to_patches,
                                gradient.at(), weights_device.at(), patches_gradient.at()));
  stream().launch(kernels::patches_scatter(shape, patches_gradient.at(), x_gradient.at()));
  const Values direction_wide = doubles_of(direction);
  const auto by_weights = reference::finite_difference(
      [&](View in) { return reference::convolution(shape, kFilters, x_wide, in); }, weights_wide,
      direction_wide);
  EXPECT_TRUE(close_to(weights_gradient.values(), by_weights, 1e-5, 1e-5));
  const auto by_x = reference::finite_difference(
      [&](View in) { return reference::convolution(shape, kFilters, in, weights_wide); }, x_wide,
      direction_wide);
  EXPECT_TRUE(close_to(x_gradient.values(), by_x, 1e-5, 1e-5));
}

INSTANTIATE_TEST_SUITE_P(Shapes, ConvolutionTest,
                         testing::Values(WindowShape{1, 1, 1, 1, 1, 1, 0},
                                         WindowShape{2, 7, 5, 3, 3, 1, 1},
                                         WindowShape{2, 8, 9, 2, 3, 2, 0},
                                         WindowShape{1, 6, 6, 1, 5, 3, 2}),
                         [](const auto& one) {
                           const WindowShape& s = one.param;
                           return std::to_string(s.height) + "_" + std::to_string(s.width) + "_" +
                                  std::to_string(s.channels) + "_k" + std::to_string(s.kernel) +
                                  "_s" + std::to_string(s.stride) + "_p" +
                                  std::to_string(s.padding);
                         });

TEST_F(LayersTest, MaxPool) {
  constexpr int kItems = 2, kHeight = 7, kWidth = 5, kChannels = 3, kWindow = 2;
  constexpr std::size_t kInputs = kItems * kHeight * kWidth * kChannels;
  constexpr int kOutputs = kItems * (kHeight / 2) * (kWidth / 2) * kChannels;
  const Floats x = floats_draw(kInputs, 19);
  const Floats direction = floats_draw(kOutputs, 20);
  OnDevice<float> x_device(stream(), x), out(stream(), unwritten(kOutputs));
  OnDevice<int> places(stream(), std::vector<int>(kOutputs, -1));
  OnDevice<float> gradient(stream(), direction), x_gradient(stream(), Floats(kInputs, 0.0f));
  stream().launch(kernels::max_pool_forward(kItems, kHeight, kWidth, kChannels, kWindow,
                                            x_device.at(), out.at(), places.at()));
  stream().launch(
      kernels::max_pool_backward(kOutputs, places.at(), gradient.at(), x_gradient.at()));
  const auto pool = [&](View in) {
    return reference::max_pool(kItems, kHeight, kWidth, kChannels, kWindow, in);
  };
  EXPECT_TRUE(close_to(out.values(), pool(doubles_of(x)), 0, 1e-9));
  const auto expected =
      reference::finite_difference(pool, doubles_of(x), doubles_of(direction), 1e-6);
  EXPECT_TRUE(close_to(x_gradient.values(), expected, 1e-5, 1e-6));
}

TEST(LayersTableDeathTest, WhatTheKernelsCannotDoIsTheCallersMistake) {
  EXPECT_DEATH(kernels::attention_products({1, 1, 8, 65}, 0, 0, 0), "kAttentionSizeMax");
  EXPECT_DEATH(kernels::patches_gather({1, 2, 2, 1, 3, 1, 0}, 0, 0), "rows > 0");
  EXPECT_DEATH(kernels::softmax_forward(65536, 65536, 0, 0), "INT32_MAX");
}

}  // namespace
}  // namespace sluice::tests
