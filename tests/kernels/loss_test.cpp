// Softmax cross-entropy and the count of right answers against float64; also with logits that
// overflow a naive exponent.
#include "kernels/reference.h"
#include "tests/trainer/device_fixture.h"

namespace sluice::tests {
namespace {

namespace reference = kernels::reference;

struct LossCase {
  const char* name;
  int rows;
  int columns;
  double spread;
};

class LossTest : public DeviceTest, public testing::WithParamInterface<LossCase> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    const LossCase& shape = GetParam();
    const auto count = static_cast<std::size_t>(shape.rows * shape.columns);
    logits_ = floats_draw(count, 1, -shape.spread, shape.spread);
    train::Random random(2);
    for (int row = 0; row < shape.rows; ++row) {
      labels_.push_back(static_cast<int>(random.below(static_cast<std::uint32_t>(shape.columns))));
    }
  }
  Floats logits_;
  std::vector<int> labels_;
};

TEST_P(LossTest, LossesAndGradient) {
  const LossCase& shape = GetParam();
  OnDevice<float> logits(stream(), logits_);
  OnDevice<int> labels(stream(), labels_);
  OnDevice<float> losses(stream(), Floats(labels_.size(), NAN));
  OnDevice<float> gradient(stream(), Floats(logits_.size(), NAN));
  stream().launch(kernels::softmax_cross_entropy(shape.rows, shape.columns, 0.25f, logits.at(),
                                                 labels.at(), losses.at(), gradient.at()));
  const auto expected = reference::softmax_cross_entropy(shape.rows, shape.columns, 0.25,
                                                         doubles_of(logits_), labels_);
  // Differences of logits of this size carry their rounding into the exponent.
  const double absolute = 1e-6 + 2.4e-7 * shape.spread;
  EXPECT_TRUE(close_to(losses.values(), expected.losses, 2e-6, absolute));
  EXPECT_TRUE(close_to(gradient.values(), expected.gradient, 1e-5, absolute));
}

TEST_P(LossTest, WithoutGradientNothingElseIsWritten) {
  const LossCase& shape = GetParam();
  OnDevice<float> logits(stream(), logits_);
  OnDevice<int> labels(stream(), labels_);
  OnDevice<float> losses(stream(), Floats(labels_.size(), NAN));
  stream().launch(kernels::softmax_cross_entropy(shape.rows, shape.columns, 1.0f, logits.at(),
                                                 labels.at(), losses.at(), 0));
  const auto expected = reference::softmax_cross_entropy(shape.rows, shape.columns, 1.0,
                                                         doubles_of(logits_), labels_);
  EXPECT_TRUE(close_to(losses.values(), expected.losses, 2e-6, 1e-6 + 2.4e-7 * shape.spread));
  EXPECT_EQ(logits.values(), logits_);
}

TEST_P(LossTest, CorrectCountAddsUp) {
  const LossCase& shape = GetParam();
  OnDevice<float> logits(stream(), logits_);
  OnDevice<int> labels(stream(), labels_);
  OnDevice<int> count(stream(), std::vector<int>{1000});
  stream().launch(
      kernels::correct_count(shape.rows, shape.columns, logits.at(), labels.at(), count.at()));
  EXPECT_EQ(count.values()[0], 1000 + reference::correct_count(shape.rows, shape.columns,
                                                               doubles_of(logits_), labels_));
}

std::string loss_name(const testing::TestParamInfo<LossCase>& one) { return one.param.name; }

INSTANTIATE_TEST_SUITE_P(Cases, LossTest,
                         testing::Values(LossCase{"one", 1, 1, 1}, LossCase{"few", 3, 2, 1},
                                         LossCase{"classes", 65, 10, 4}, LossCase{"wide", 7, 77, 4},
                                         LossCase{"huge_logits", 33, 10, 500}),
                         loss_name);

class CorrectTest : public DeviceTest {};

TEST_F(CorrectTest, OfEqualLogitsTheFirstIsTheAnswer) {
  OnDevice<float> logits(stream(), Floats{1, 1, 1, 1});
  OnDevice<int> labels(stream(), std::vector<int>{0, 1});
  OnDevice<int> count(stream(), std::vector<int>{0});
  stream().launch(kernels::correct_count(2, 2, logits.at(), labels.at(), count.at()));
  EXPECT_EQ(count.values()[0], 1);
}

}  // namespace
}  // namespace sluice::tests
