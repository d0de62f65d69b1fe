// Every rung and form of the matrix product against float64, on shapes that do not divide by any
// tile; and the rungs against each other, bit for bit.
#include "kernels/reference.h"
#include "kernels/reference_optimizers.h"
#include "tests/trainer/device_fixture.h"

namespace sluice::tests {
namespace {

using kernels::GemmForm;
using kernels::GemmPlan;
using kernels::GemmRung;
using kernels::GemmShape;
using kernels::HalfFormat;

constexpr GemmRung kRungs[] = {GemmRung::kNaive, GemmRung::kTiled, GemmRung::kRegister};

class GemmTest : public DeviceTest,
                 public testing::WithParamInterface<std::tuple<GemmForm, GemmShape>> {
 protected:
  Floats product(GemmForm form, const GemmPlan& plan, const GemmShape& shape, const Floats& a,
                 const Floats& b) {
    OnDevice<float> a_device(stream(), a);
    OnDevice<float> b_device(stream(), b);
    // Poisoned, so that an element nobody writes shows.
    const int count = shape.m * shape.n;
    OnDevice<float> parts(stream(), Floats(static_cast<std::size_t>(count * plan.parts), NAN));
    OnDevice<float> c_device(stream(), Floats(static_cast<std::size_t>(count), NAN));
    stream().launch(kernels::gemm(form, plan, shape, a_device.at(), b_device.at(), parts.at()));
    stream().launch(kernels::split_sum(count, plan.parts, parts.at(), c_device.at()));
    return c_device.values();
  }
};

TEST_P(GemmTest, EqualsTheReferenceAndTheOtherRungs) {
  const auto [form, shape] = GetParam();
  const Floats a = floats_draw(static_cast<std::size_t>(shape.m * shape.k), 1);
  const Floats b = floats_draw(static_cast<std::size_t>(shape.k * shape.n), 2);
  const auto expected = kernels::reference::gemm(form, shape, doubles_of(a), doubles_of(b));
  // k roundings of sums below k: generous by a factor of about 10 over the random walk, far below
  // one wrong element.
  const double absolute = 1.2e-7 * shape.k + 1e-7;
  Floats first;
  for (const GemmRung rung : kRungs) {
    const Floats got = product(form, kernels::gemm_whole(rung, shape), shape, a, b);
    EXPECT_TRUE(close_to(got, expected, 1e-6, absolute)) << "rung " << static_cast<int>(rung);
    if (first.empty()) first = got;
    EXPECT_EQ(std::memcmp(first.data(), got.data(), got.size() * sizeof(float)), 0)
        << "rung " << static_cast<int>(rung) << " rounds otherwise than the naive one";
  }
}

TEST_P(GemmTest, SplitAlongKItIsTheSameProduct) {
  const auto [form, shape] = GetParam();
  const Floats a = floats_draw(static_cast<std::size_t>(shape.m * shape.k), 1);
  const Floats b = floats_draw(static_cast<std::size_t>(shape.k * shape.n), 2);
  const auto expected = kernels::reference::gemm(form, shape, doubles_of(a), doubles_of(b));
  for (const GemmRung rung : kRungs) {
    const GemmPlan plan{rung, 16, (shape.k + 15) / 16};
    EXPECT_TRUE(close_to(product(form, plan, shape, a, b), expected, 1e-6, 1.2e-7 * shape.k + 1e-7))
        << "rung " << static_cast<int>(rung);
  }
  const GemmPlan chosen = kernels::gemm_plan(shape, 16);
  EXPECT_TRUE(
      close_to(product(form, chosen, shape, a, b), expected, 1e-6, 1.2e-7 * shape.k + 1e-7));
}

TEST_P(GemmTest, OfHalfFormatsByTensorCores) {
  const auto [form, shape] = GetParam();
  for (const HalfFormat format : {HalfFormat::kFp16, HalfFormat::kBf16}) {
    const auto draw = [&](int count, std::uint64_t seed, std::vector<std::uint16_t>* bits) {
      Floats values = floats_draw(static_cast<std::size_t>(count), seed);
      for (float& value : values) {
        bits->push_back(kernels::reference::half_bits(format, value));
        value = kernels::reference::half_value(format, bits->back());
      }
      return doubles_of(values);
    };
    std::vector<std::uint16_t> a_bits, b_bits;
    const auto a = draw(shape.m * shape.k, 3, &a_bits);
    const auto b = draw(shape.k * shape.n, 4, &b_bits);
    // Products of two such values are exact in fp32; what is rounded is the sums.
    const auto expected = kernels::reference::gemm(form, shape, a, b);
    OnDevice<std::uint16_t> a_device(stream(), a_bits), b_device(stream(), b_bits);
    const int count = shape.m * shape.n;
    for (const GemmPlan& plan : {kernels::gemm_whole(GemmRung::kRegister, shape),
                                 GemmPlan{GemmRung::kRegister, 16, (shape.k + 15) / 16}}) {
      OnDevice<float> parts(stream(), Floats(static_cast<std::size_t>(count * plan.parts), NAN));
      OnDevice<float> c_device(stream(), Floats(static_cast<std::size_t>(count), NAN));
      stream().launch(
          kernels::gemm_half(form, format, plan, shape, a_device.at(), b_device.at(), parts.at()));
      stream().launch(kernels::split_sum(count, plan.parts, parts.at(), c_device.at()));
      EXPECT_TRUE(close_to(c_device.values(), expected, 1e-6, 2.4e-7 * shape.k + 1e-7))
          << "format " << static_cast<int>(format) << ", " << plan.parts << " parts";
    }
  }
}

std::string case_name(const testing::TestParamInfo<GemmTest::ParamType>& one) {
  constexpr const char* kForms[] = {"nn", "nt", "tn"};
  const GemmShape shape = std::get<1>(one.param);
  return std::string(kForms[static_cast<int>(std::get<0>(one.param))]) + "_" +
         std::to_string(shape.m) + "_" + std::to_string(shape.n) + "_" + std::to_string(shape.k);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GemmTest,
    testing::Combine(testing::Values(GemmForm::kNn, GemmForm::kNt, GemmForm::kTn),
                     testing::Values(GemmShape{1, 1, 1}, GemmShape{3, 5, 7}, GemmShape{64, 64, 16},
                                     GemmShape{65, 63, 17}, GemmShape{33, 130, 49},
                                     GemmShape{10, 128, 784}, GemmShape{128, 10, 33},
                                     GemmShape{70, 68, 20})),
    case_name);

}  // namespace
}  // namespace sluice::tests
