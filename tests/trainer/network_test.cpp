// What holds for every model: ranges without gaps, gradients that are final when they are said to
// be, and parts of a step that add up to the whole. Played with a small perceptron.
#include "trainer/model/network.h"

#include "tests/trainer/device_fixture.h"
#include "trainer/model/mlp.h"

namespace sluice::tests {
namespace {

class NetworkTest : public DeviceTest {
 protected:
  static constexpr int kBatch = 12;
  static constexpr int kPart = 5;  // samples of a part: 5, 5, 2

  void SetUp() override {
    DeviceTest::SetUp();
    shape_ = train::mlp_shape({19, 11});
    inputs_ = floats_draw(static_cast<std::size_t>(kBatch * shape_.inputs()), 6);
    train::Random random(7);
    for (int i = 0; i < kBatch; ++i) labels_.push_back(static_cast<int>(random.below(10)));
  }
  std::unique_ptr<train::Network> make(int batch_max, bool accumulates) {
    auto model = std::make_unique<train::Mlp>(
        stream(), shape_,
        train::NetworkSettings{.batch_max = batch_max, .accumulates = accumulates});
    model->parameters_upload(train::mlp_draw(shape_, 3));
    return model;
  }
  void run(train::Network& model, int from, int count, train::GradientPart part = {}) {
    model.batch_upload(inputs_.data() + from * shape_.inputs(), labels_.data() + from, count);
    if (count > 0) model.forward(count);
    model.backward(count, kBatch, part);
  }
  Floats gradients_of(train::Network& model) {
    Floats out(model.gradient_count());
    stream().download(out.data(), model.gradients(), out.size() * sizeof(float));
    stream().synchronize();
    out.back() = 0;  // the wish to stop is not the network's
    return out;
  }

  train::MlpShape shape_;
  Floats inputs_;
  std::vector<int> labels_;
};

TEST_F(NetworkTest, RangesFollowOneAnotherAndHaveNames) {
  const auto ranges = shape_.ranges();
  ASSERT_EQ(ranges.size(), 6u);
  std::size_t end = 0;
  for (const train::ParameterRange& range : ranges) {
    EXPECT_EQ(range.begin, end);
    end = range.end();
  }
  EXPECT_EQ(end, shape_.parameter_count());
  EXPECT_EQ(ranges[3].name, "layer 1 bias");
  EXPECT_EQ(ranges[3].begin, shape_.bias_offset(1));
}

TEST_F(NetworkTest, GradientsAreFinalWhenTheyAreSaidToBe) {
  const auto model = make(kBatch, true);
  run(*model, 0, kBatch);
  const Floats whole = gradients_of(*model);
  for (const bool in_parts : {false, true}) {
    for (const int count : {kBatch, 0}) {
      std::size_t expected_end = model->parameter_count();
      std::vector<Floats> seen;
      model->on_gradient_ready([&](const train::ParameterRange& range) {
        EXPECT_EQ(range.end(), expected_end);
        expected_end = range.begin;
        seen.emplace_back(model->gradient_count() - 1 - range.begin);
        stream().download(seen.back().data(), model->gradients() + range.begin * sizeof(float),
                          seen.back().size() * sizeof(float));
        stream().synchronize();
      });
      if (in_parts) {
        run(*model, 0, kPart, {.first = true, .last = false});
        EXPECT_TRUE(seen.empty()) << "before the last part nothing is final";
        run(*model, kPart, count > 0 ? kBatch - kPart : 0, {.first = false, .last = true});
      } else {
        run(*model, 0, count);
      }
      EXPECT_EQ(expected_end, 0u);
      ASSERT_EQ(seen.size(), 6u);
      model->on_gradient_ready(nullptr);
      const Floats end = gradients_of(*model);
      for (const Floats& part : seen) {
        EXPECT_TRUE(std::equal(part.rbegin(), part.rend(), end.rbegin() + 1));
      }
      if (count == 0) continue;
      EXPECT_TRUE(close_to(end, doubles_of(whole), 1e-5, 1e-6));
    }
  }
}

TEST_F(NetworkTest, PartsAddUpToTheWhole) {
  const auto whole = make(kBatch, false);
  run(*whole, 0, kBatch);
  const std::vector<double> expected = doubles_of(gradients_of(*whole));
  const auto parts = make(kPart, true);
  for (int round = 0; round < 2; ++round) {  // nothing of a step is left for the next
    for (int from = 0; from < kBatch; from += kPart) {
      run(*parts, from, std::min(kPart, kBatch - from),
          {.first = from == 0, .last = from + kPart >= kBatch});
    }
    EXPECT_TRUE(close_to(gradients_of(*parts), expected, 1e-5, 1e-6));
  }
  // The last part may be empty, as where a rank has fewer samples than the others.
  run(*parts, 0, kPart, {.first = true, .last = false});
  const Floats first = gradients_of(*parts);
  run(*parts, 0, 0, {.first = false, .last = true});
  EXPECT_EQ(gradients_of(*parts), first);
}

}  // namespace
}  // namespace sluice::tests
