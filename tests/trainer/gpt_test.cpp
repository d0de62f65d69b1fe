// The transformer on the device against float64: logits, loss, and the gradient of every parameter
// of every layer by finite differences.
#include "trainer/model/gpt_reference.h"

#include "kernels/reference.h"
#include "kernels/reference_layers.h"
#include "tests/trainer/device_fixture.h"
#include "trainer/model/optimizer.h"

namespace sluice::tests {
namespace {

class GptTest : public DeviceTest {
 protected:
  static constexpr int kBatch = 2;

  void SetUp() override {
    DeviceTest::SetUp();
    parameters_ = train::gpt_draw(shape_, 3);
    // Everything well away from where it starts: biases from 0, gains from 1, weights from tiny.
    const Floats noise = floats_draw(parameters_.size(), 5, -0.4, 0.4);
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i] += noise[i];
    train::Random random(7);
    for (int i = 0; i < kBatch * shape_.context; ++i) {
      tokens_.push_back(static_cast<int>(random.below(7)));  // some come twice, some never
      targets_.push_back(static_cast<int>(random.below(11)));
    }
  }
  std::vector<double> mean_loss(std::span<const double> parameters) const {
    const int rows = static_cast<int>(targets_.size());
    const auto losses = kernels::reference::softmax_cross_entropy(
                            rows, shape_.vocabulary, 1.0,
                            train::gpt_reference(shape_, parameters, tokens_), targets_)
                            .losses;
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return {sum / rows};
  }
  Floats gradients_of(train::Gpt& model) {
    Floats out(model.gradient_count());
    stream().download(out.data(), model.gradients(), out.size() * sizeof(float));
    stream().synchronize();
    return out;
  }

  const train::GptShape shape_{.vocabulary = 11, .context = 5, .width = 6, .layers = 2, .heads = 2};
  Floats parameters_;
  std::vector<int> tokens_;
  std::vector<int> targets_;
};

TEST_F(GptTest, LogitsLossAndEveryGradientAreThoseOfFloat64) {
  train::Gpt model(stream(), shape_, {.batch_max = kBatch + 1});
  model.parameters_upload(parameters_);
  std::vector<std::string> order;
  model.on_gradient_ready([&](const train::ParameterRange& range) { order.push_back(range.name); });
  model.batch_upload(tokens_.data(), targets_.data(), kBatch);
  model.forward(kBatch);
  model.backward(kBatch, kBatch);
  const std::vector<double> parameters = doubles_of(parameters_);
  Floats logits(targets_.size() * 11);
  stream().download(logits.data(), model.logits(), logits.size() * sizeof(float));
  Floats got = gradients_of(model);
  EXPECT_TRUE(close_to(logits, train::gpt_reference(shape_, parameters, tokens_), 1e-4, 1e-5));
  EXPECT_NEAR(got[model.parameter_count() + train::kExtraLoss] / 10, mean_loss(parameters)[0],
              1e-5);

  const auto slopes = kernels::reference::finite_difference(
      [&](std::span<const double> at) { return mean_loss(at); }, parameters,
      std::vector<double>{1.0});
  const auto ranges = shape_.ranges();
  ASSERT_EQ(order.size(), ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const train::ParameterRange& range = ranges[i];
    EXPECT_EQ(order[ranges.size() - 1 - i], range.name);
    const auto from = static_cast<std::ptrdiff_t>(range.begin);
    const auto to = static_cast<std::ptrdiff_t>(range.end());
    const std::vector<double> expected(slopes.begin() + from, slopes.begin() + to);
    EXPECT_TRUE(close_to({got.begin() + from, got.begin() + to}, expected, 1e-3, 2e-6))
        << range.name;
    // A key's bias moves all scores of a query alike; everything else counts.
    double largest = 0;
    for (const double slope : expected) largest = std::max(largest, std::fabs(slope));
    EXPECT_GT(largest, 1e-4) << range.name;
  }
}

TEST_F(GptTest, SeesNothingOfWhatComes) {
  train::Gpt model(stream(), shape_, {.batch_max = kBatch, .trains = false});
  model.parameters_upload(parameters_);
  const auto logits = [&] {
    model.batch_upload(tokens_.data(), targets_.data(), kBatch);
    model.forward(kBatch);
    Floats out(targets_.size() * 11);
    stream().download(out.data(), model.logits(), out.size() * sizeof(float));
    stream().synchronize();
    return out;
  };
  const Floats before = logits();
  tokens_[3] = (tokens_[3] + 1) % 7;  // of the first text
  const Floats after = logits();
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 3 * 11, after.begin()));
  for (const int time : {3, 4}) {
    EXPECT_FALSE(std::equal(before.begin() + time * 11, before.begin() + (time + 1) * 11,
                            after.begin() + time * 11));
  }
  EXPECT_TRUE(std::equal(before.begin() + 5 * 11, before.end(), after.begin() + 5 * 11));
}

TEST_F(GptTest, PartsOfABatchAddUpToTheWhole) {
  train::Gpt whole(stream(), shape_, {.batch_max = kBatch});
  train::Gpt parts(stream(), shape_, {.batch_max = 1, .accumulates = true});
  for (train::Gpt* model : {&whole, &parts}) model->parameters_upload(parameters_);
  whole.batch_upload(tokens_.data(), targets_.data(), kBatch);
  whole.forward(kBatch);
  whole.backward(kBatch, kBatch);
  for (const int part : {0, 1}) {
    // Nothing waits between the parts: host memory of the first must not be needed any more.
    parts.batch_upload(tokens_.data() + part * 5, targets_.data() + part * 5, 1);
    parts.forward(1);
    parts.backward(1, kBatch, {.first = part == 0, .last = part == 1});
  }
  EXPECT_TRUE(close_to(gradients_of(parts), doubles_of(gradients_of(whole)), 1e-4, 1e-6));
}

TEST_F(GptTest, LearnsAShortTextByHeart) {
  const std::string text = "to be or not to be, that is the question";
  const train::GptShape shape{
      .vocabulary = 128, .context = 39, .width = 24, .layers = 2, .heads = 2};
  const std::vector<int> tokens(text.begin(), text.end());
  train::Gpt model(stream(), shape, {.batch_max = 1});
  model.parameters_upload(train::gpt_draw(shape, 1));
  train::Optimizer optimizer(stream(), {.method = train::Method::kAdam}, model.parameter_count());
  const auto loss = [&] {
    float sum = 0;
    stream().download(&sum, model.extra(train::kExtraLoss), sizeof sum);
    stream().synchronize();
    return sum / 39;
  };
  float first = 0;
  for (int step = 0; step < 60; ++step) {
    model.batch_upload(tokens.data(), tokens.data() + 1, 1);
    model.forward(1);
    model.backward(1, 1);
    if (step == 0) first = loss();
    optimizer.step(0.01, model.gradients(), model.parameters());
  }
  EXPECT_NEAR(first, std::log(128.0), 0.2) << "an untrained model guesses";
  EXPECT_LT(loss(), 0.1);
  // Every next character is right.
  stream().zero(model.correct(), 1);
  model.correct_add(1);
  int correct = 0;
  stream().download(&correct, model.correct(), sizeof correct);
  stream().synchronize();
  EXPECT_EQ(correct, 39);
}

TEST(GptShape, SaysWhatItIsAndRefusesWhatCannotBe) {
  const train::GptShape small = train::gpt_shape(
      {.vocabulary = 50257, .context = 1024, .width = 768, .layers = 12, .heads = 12});
  EXPECT_EQ(small.parameter_count(), 124'439'808u) << "GPT-2's smallest";
  EXPECT_EQ(small.text(), "gpt 12x768, 12 heads, context 1024, 50257 tokens");
  EXPECT_EQ(small.ranges()[train::gpt_range(11, train::LayerRange::kContractBias)].name,
            "layer 11 contraction bias");
  for (const train::GptShape& bad : {train::GptShape{.context = 0},
                                     {.context = 5000},
                                     {.width = 0},
                                     {.layers = 0},
                                     {.heads = 0},
                                     {.heads = 3},
                                     {.width = 512, .heads = 4},
                                     {.vocabulary = 70000}}) {
    EXPECT_THROW(train::gpt_shape(bad), train::Failure);
  }
}

}  // namespace
}  // namespace sluice::tests
