// Matrix products through cuBLASLt's interface, with a stand-in for the library: operands, forms
// and pitches come out as the own kernels' results; and whatever the library refuses or lacks is
// said once, and computed here.
#include "trainer/device/cublaslt.h"

#include <stdlib.h>

#include "tests/trainer/device_fixture.h"
#include "trainer/model/mlp.h"

namespace sluice::tests {
namespace {

using kernels::GemmForm;
using kernels::GemmShape;
using train::CublasLtFound;
using train::GemmChoice;
using train::GemmEngine;
using train::Precision;
using train::Products;

class CublasLtTest : public DeviceTest {
 protected:
  void SetUp() override {
#ifndef SLUICE_CUBLASLT_STANDIN
    GTEST_SKIP() << "needs the stand-in, which is built with the softgpu room";
#endif
    DeviceTest::SetUp();
  }
  void TearDown() override { unsetenv("CUBLASLT_STANDIN"); }
  void goes_wrong(const char* how) { setenv("CUBLASLT_STANDIN", how, 1); }

  /// The product of values that every 16-bit format has exactly, `skew` floats into their arrays.
  Floats product(Products& products, GemmForm form, const GemmShape& shape, std::size_t skew = 0) {
    const auto drawn = [&](int rows, int columns, std::uint64_t seed) {
      train::Random random(seed);
      Floats values(skew + static_cast<std::size_t>(rows * columns));
      for (float& value : values) value = static_cast<float>(random.below(33)) / 16 - 1;
      return values;
    };
    OnDevice<float> a(stream(), drawn(shape.m, shape.k, 1));
    OnDevice<float> b(stream(), drawn(shape.k, shape.n, 2));
    OnDevice<float> c(stream(), Floats(skew + static_cast<std::size_t>(shape.m * shape.n), NAN));
    const CUdeviceptr by = skew * sizeof(float);
    products.run(form, shape, a.at() + by, b.at() + by, c.at() + by);
    Floats out = c.values();
    out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(skew));
    return out;
  }
};

TEST_F(CublasLtTest, EveryFormGivesWhatTheOwnKernelGives) {
  for (const Precision precision : {Precision::kBf16, Precision::kFp16}) {
    Products own(stream(), precision);
    Products library(stream(), precision, GemmEngine::kCublaslt);
    std::uint64_t count = 0;
    for (const GemmForm form : {GemmForm::kNn, GemmForm::kNt, GemmForm::kTn}) {
      for (const GemmShape& shape : {GemmShape{5, 3, 7}, {64, 32, 48}, {1, 70, 33}, {17, 1, 2}}) {
        for (const std::size_t skew : {0, 3}) {
          SCOPED_TRACE(testing::Message() << static_cast<int>(form) << ": " << shape.m << " x "
                                          << shape.n << " x " << shape.k << ", skew " << skew);
          const Floats expected = product(own, form, shape, skew);
          const Floats got = product(library, form, shape, skew);
          ASSERT_EQ(got.size(), expected.size());
          // Products of 1/16ths add up without a rounding in either.
          for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], expected[i]) << i;
          ++count;
        }
      }
    }
    ASSERT_NE(library.library(), nullptr);
    EXPECT_EQ(library.library()->products(), count);
    EXPECT_EQ(library.library()->refused(), 0u);
    EXPECT_EQ(own.library(), nullptr);
  }
}

TEST_F(CublasLtTest, ANetworkTrainsTheSameThroughIt) {
  const train::MlpShape shape = train::mlp_shape({33, 18});
  const auto gradients = [&](GemmEngine engine) {
    train::Mlp model(stream(), shape,
                     {.batch_max = 9, .precision = Precision::kBf16, .gemm = engine});
    model.parameters_upload(train::mlp_draw(shape, 3));
    const Floats inputs = floats_draw(static_cast<std::size_t>(9 * shape.inputs()), 6);
    const std::vector<int> labels = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    model.batch_upload(inputs.data(), labels.data(), 9);
    model.forward(9);
    model.backward(9, 9);
    Floats out(model.parameter_count());
    stream().download(out.data(), model.gradients(), out.size() * sizeof(float));
    stream().synchronize();
    return out;
  };
  const Floats own = gradients(GemmEngine::kOwn);
  const Floats library = gradients(GemmEngine::kCublaslt);
  double apart = 0;
  double size = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    apart += std::pow(static_cast<double>(own[i]) - static_cast<double>(library[i]), 2);
    size += std::pow(static_cast<double>(own[i]), 2);
  }
  EXPECT_GT(size, 0);
  // Sums in another order are now and then cast to the neighbouring bf16 (2^-9 apart).
  EXPECT_LT(std::sqrt(apart / size), 2e-3);
}

TEST_F(CublasLtTest, WithFp32TheLibraryIsNotAsked) {
  goes_wrong("no-handle");
  const Products products(stream(), Precision::kFp32, GemmEngine::kCublaslt);
  EXPECT_EQ(products.library(), nullptr);
}

TEST_F(CublasLtTest, WhatItHasNoAlgorithmForIsComputedHereAndSaidOnce) {
  const GemmShape shape{5, 3, 7};
  Products own(stream(), Precision::kBf16);
  const Floats expected = product(own, GemmForm::kNt, shape);
  for (const char* how : {"no-algorithm", "unsupported"}) {
    SCOPED_TRACE(how);
    goes_wrong(how);
    Products library(stream(), Precision::kBf16, GemmEngine::kCublaslt);
    testing::internal::CaptureStderr();
    EXPECT_EQ(product(library, GemmForm::kNt, shape), expected);
    EXPECT_EQ(product(library, GemmForm::kNt, shape), expected);
    EXPECT_EQ(product(library, GemmForm::kNn, {4, 4, 4}).size(), 16u);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "sluice: cuBLASLt has no algorithm for a product of 5 x 3 x 7; such products by "
              "Sluice's own kernels\n");
    EXPECT_EQ(library.library()->products(), 0u);
    EXPECT_EQ(library.library()->refused(), 3u);
  }
}

TEST_F(CublasLtTest, WhatFailsIsAnErrorWithItsStatus) {
  const auto complaint = [&](const char* how) -> std::string {
    goes_wrong(how);
    try {
      Products library(stream(), Precision::kBf16, GemmEngine::kCublaslt);
      product(library, GemmForm::kNn, {4, 4, 4});
    } catch (const train::Failure& failure) {
      return failure.what();
    }
    return "nothing";
  };
  EXPECT_EQ(complaint("no-handle"), "cuBLASLt: starting failed with status 1");
  EXPECT_EQ(complaint("fails"), "cuBLASLt: a product failed with status 13");
}

TEST_F(CublasLtTest, ALibraryThatIsAbsentOrAnotherIsNone) {
  const CublasLtFound absent = train::cublaslt_open({"libsluice-none.so.1", "libsluice-none.so.2"});
  EXPECT_EQ(absent.table, nullptr);
  EXPECT_NE(absent.missing.find("libsluice-none.so.2"), std::string::npos) << absent.missing;
  const CublasLtFound other = train::cublaslt_open({"libsluice-none.so.1", "libm.so.6"});
  EXPECT_EQ(other.table, nullptr);
  EXPECT_EQ(other.missing, "the library lacks cublasLtCreate");
}

TEST_F(CublasLtTest, TheChoiceFallsBackWithALineOrRefuses) {
  const CublasLtFound none{nullptr, "it is not there"};
  const CublasLtFound& some = train::cublaslt_library();
  ASSERT_NE(some.table, nullptr) << some.missing;
  const auto engine = [](GemmChoice choice, bool is_software, const CublasLtFound& found) {
    std::string note;
    const GemmEngine got = train::gemm_engine(
        choice, is_software, [&]() -> const CublasLtFound& { return found; }, &note);
    return std::pair(got, note);
  };
  const std::pair own(GemmEngine::kOwn, std::string());
  const std::pair library(GemmEngine::kCublaslt, std::string());
  EXPECT_EQ(engine(GemmChoice::kOwn, false, some), own);
  EXPECT_EQ(engine(GemmChoice::kAuto, false, some), library);
  EXPECT_EQ(engine(GemmChoice::kAuto, true, some), own) << "not on a software GPU, unless asked";
  EXPECT_EQ(engine(GemmChoice::kAuto, true, none), own);
  EXPECT_EQ(engine(GemmChoice::kCublaslt, true, some), library);
  EXPECT_EQ(engine(GemmChoice::kAuto, false, none),
            std::pair(GemmEngine::kOwn,
                      std::string("matrix products by Sluice's own kernels, which are much slower: "
                                  "cuBLASLt cannot be used: it is not there; install it, or give "
                                  "--gemm own")));
  EXPECT_THROW(engine(GemmChoice::kCublaslt, false, none), train::Failure);
}

}  // namespace
}  // namespace sluice::tests
