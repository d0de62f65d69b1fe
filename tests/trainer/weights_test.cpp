// Files of weights: what was saved comes back, and nothing else is believed.
#include "trainer/model/weights.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/trainer/process.h"

namespace sluice::tests {
namespace {

class WeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    shape_ = train::mlp_shape({3, 2});
    values_ = train::mlp_draw(shape_, 4);
    train::weights_save(path_, shape_, values_);
    bytes_ = file_text(path_);
  }
  std::string complaint(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    try {
      train::weights_load(path_);
      return "";
    } catch (const train::Failure& failure) {
      return failure.what();
    }
  }

  ScratchDirectory scratch_;
  std::string path_ = scratch_.file("weights");
  train::MlpShape shape_;
  std::vector<float> values_;
  std::string bytes_;
};

TEST_F(WeightsTest, ComeBackAsSaved) {
  const train::Weights back = train::weights_load(path_);
  ASSERT_NE(back.shape.get<train::MlpShape>(), nullptr);
  EXPECT_EQ(back.shape.get<train::MlpShape>()->widths, shape_.widths);
  EXPECT_EQ(back.values, values_);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
}

TEST_F(WeightsTest, OfEveryModelComeBack) {
  const train::CnnShape cnn = train::cnn_shape({3, 2}, {5, 4});
  train::weights_save(path_, cnn, train::cnn_draw(cnn, 4));
  const train::Weights back = train::weights_load(path_);
  ASSERT_NE(back.shape.get<train::CnnShape>(), nullptr);
  EXPECT_EQ(back.shape.text(), cnn.text());
  EXPECT_EQ(back.values, train::cnn_draw(cnn, 4));
  const train::GptShape gpt{.vocabulary = 9, .context = 4, .width = 6, .layers = 2, .heads = 3};
  train::weights_save(path_, gpt, train::gpt_draw(gpt, 4));
  const train::Weights gpt_back = train::weights_load(path_);
  ASSERT_NE(gpt_back.shape.get<train::GptShape>(), nullptr);
  EXPECT_EQ(gpt_back.shape.text(), gpt.text());
  EXPECT_EQ(gpt_back.values, train::gpt_draw(gpt, 4));
}

TEST_F(WeightsTest, DamageIsFound) {
  EXPECT_EQ(complaint(bytes_), "");
  EXPECT_NE(complaint("x" + bytes_.substr(1)).find("SLUWGT02"), std::string::npos);
  EXPECT_NE(complaint(bytes_.substr(0, bytes_.size() / 2)).find("ends too early"),
            std::string::npos);
  EXPECT_NE(complaint(bytes_ + "x").find("goes on"), std::string::npos);
  std::string flipped = bytes_;
  flipped[bytes_.size() / 2] = static_cast<char>(flipped[bytes_.size() / 2] ^ 1);
  EXPECT_NE(complaint(flipped).find("checksum"), std::string::npos);
  // After the magic: the kind, the count of lists, the length of the first, and its numbers.
  const auto changed = [&](std::size_t at, char to) {
    std::string bytes = bytes_;
    bytes[at] = to;
    return complaint(bytes);
  };
  EXPECT_NE(changed(8, 9).find("kind 9 with 1 lists"), std::string::npos);
  EXPECT_NE(changed(12, 100).find("count of lists is out of range"), std::string::npos);
  EXPECT_NE(changed(16, 100).find("numbers of a list is out of range"), std::string::npos);
  EXPECT_NE(changed(20, 0).find("other images"), std::string::npos);
  EXPECT_NE(changed(24, 0).find("a hidden layer of 0 units"), std::string::npos);
}

TEST_F(WeightsTest, SaysWhenItCannotBeWrittenOrFound) {
  EXPECT_THROW(train::weights_save("/nonexistent/weights", shape_, values_), train::Failure);
  EXPECT_THROW(train::weights_load("/nonexistent/weights"), train::Failure);
}

TEST(MlpShape, OffsetsFollowOneAnother) {
  const train::MlpShape shape = train::mlp_shape({3, 2});
  EXPECT_EQ(shape.text(), "784-3-2-10");
  EXPECT_EQ(shape.weight_offset(0), 0u);
  EXPECT_EQ(shape.bias_offset(0), 784u * 3);
  EXPECT_EQ(shape.weight_offset(1), 785u * 3);
  EXPECT_EQ(shape.bias_offset(2), shape.weight_offset(2) + 20);
  EXPECT_EQ(shape.parameter_count(), 785u * 3 + 4 * 2 + 3 * 10);
}

}  // namespace
}  // namespace sluice::tests
