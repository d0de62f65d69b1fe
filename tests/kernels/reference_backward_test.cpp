// The references' formulas of gradients against finite differences of the forward references.
#include "kernels/reference_backward.h"

#include <gtest/gtest.h>

#include "kernels/reference_layers.h"
#include "trainer/base/random.h"

namespace sluice::tests {
namespace {

namespace reference = kernels::reference;
using reference::Values;
using Wide = std::span<const double>;

Values values_draw(int count, std::uint64_t seed) {
  train::Random random(seed);
  Values values;
  for (int i = 0; i < count; ++i) values.push_back(2 * random.uniform() - 1);
  return values;
}

void expect_close(const Values& got, const Values& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-8) << i;
}

TEST(ReferenceBackwardTest, LayerNorm) {
  const Values x = values_draw(15, 1), gain = values_draw(5, 2), bias = values_draw(5, 3);
  const Values direction = values_draw(15, 4);
  const auto norm = [](Wide in, Wide gains, Wide biases) {
    return reference::layer_norm(3, 5, 1e-5, in, gains, biases);
  };
  const auto got = reference::layer_norm_backward(3, 5, 1e-5, x, gain, direction);
  expect_close(got.input, reference::finite_difference(
                              [&](Wide in) { return norm(in, gain, bias); }, x, direction));
  expect_close(got.gain, reference::finite_difference([&](Wide in) { return norm(x, in, bias); },
                                                      gain, direction));
  expect_close(got.bias, reference::finite_difference([&](Wide in) { return norm(x, gain, in); },
                                                      bias, direction));
}

TEST(ReferenceBackwardTest, SoftmaxAndGelu) {
  const Values x = values_draw(12, 5), direction = values_draw(12, 6);
  expect_close(reference::softmax_backward(3, 4, x, direction),
               reference::finite_difference([](Wide in) { return reference::softmax(3, 4, in); }, x,
                                            direction));
  expect_close(reference::gelu_backward(x, direction),
               reference::finite_difference(reference::gelu, x, direction));
}

TEST(ReferenceBackwardTest, Embedding) {
  const std::vector<int> tokens = {2, 0, 2, 3, 2, 0};
  const Values table = values_draw(12, 7), positions = values_draw(6, 8);
  const Values direction = values_draw(18, 9);
  expect_close(reference::embedding_backward(4, 3, tokens, direction),
               reference::finite_difference(
                   [&](Wide in) { return reference::embedding(3, 2, tokens, in, positions); },
                   table, direction));
  expect_close(reference::position_backward(2, 3, direction),
               reference::finite_difference(
                   [&](Wide in) { return reference::embedding(3, 2, tokens, table, in); },
                   positions, direction));
}

TEST(ReferenceBackwardTest, Attention) {
  const kernels::AttentionShape shape{2, 2, 4, 3};
  const Values qkv = values_draw(2 * 4 * 3 * 2 * 3, 10), direction = values_draw(2 * 4 * 2 * 3, 11);
  expect_close(reference::attention_backward(shape, qkv, direction),
               reference::finite_difference(
                   [&](Wide in) { return reference::attention(shape, in); }, qkv, direction));
}

TEST(ReferenceBackwardTest, Convolution) {
  for (const kernels::WindowShape& shape :
       {kernels::WindowShape{2, 5, 4, 3, 3, 1, 1}, kernels::WindowShape{1, 6, 7, 2, 3, 2, 0}}) {
    const int filters = 2;
    const Values x = values_draw(shape.items * shape.height * shape.width * shape.channels, 12);
    const Values weights = values_draw(shape.patch() * filters, 13);
    const Values direction = values_draw(shape.patches() * filters, 14);
    const auto got = reference::convolution_backward(shape, filters, x, weights, direction);
    expect_close(got.input,
                 reference::finite_difference(
                     [&](Wide in) { return reference::convolution(shape, filters, in, weights); },
                     x, direction));
    expect_close(got.weights,
                 reference::finite_difference(
                     [&](Wide in) { return reference::convolution(shape, filters, x, in); },
                     weights, direction));
  }
}

TEST(ReferenceBackwardTest, MaxPool) {
  const Values x = values_draw(2 * 5 * 4 * 3, 15), direction = values_draw(2 * 2 * 2 * 3, 16);
  expect_close(
      reference::max_pool_backward(2, 5, 4, 3, 2, x, direction),
      reference::finite_difference([](Wide in) { return reference::max_pool(2, 5, 4, 3, 2, in); },
                                   x, direction, 1e-6));
}

}  // namespace
}  // namespace sluice::tests
