// Text as samples: every token but the first is a target once, whoever trains on it, and tokens
// come back as text.
#include "trainer/data/text.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "tests/trainer/process.h"
#include "trainer/base/failure.h"
#include "trainer/data/sampler.h"

namespace sluice::tests {
namespace {

std::vector<train::Token> counting(std::size_t count) {
  std::vector<train::Token> tokens(count);
  std::iota(tokens.begin(), tokens.end(), train::Token{0});
  return tokens;
}

TEST(ByteTokenizer, GivesEveryByteAndTakesItBack) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  const auto bytes = train::byte_tokenizer();
  EXPECT_EQ(bytes->vocabulary(), 256);
  const auto tokens = bytes->encode(text);
  EXPECT_EQ(tokens, counting(256));
  EXPECT_EQ(bytes->decode(tokens), text);
  EXPECT_TRUE(bytes->encode("").empty());
}

TEST(TextSource, TargetsAreTheTokensMovedByOne) {
  const train::TextSource text(counting(62), 3);  // 20 samples and one token left over
  EXPECT_EQ(text.train_count(), 18u);
  EXPECT_EQ(text.test_count(), 2u);
  std::vector<int> inputs(6), targets(6);
  text.train_put(std::vector<std::uint32_t>{0, 17}, inputs.data(), targets.data());
  EXPECT_EQ(inputs, (std::vector<int>{0, 1, 2, 51, 52, 53}));
  EXPECT_EQ(targets, (std::vector<int>{1, 2, 3, 52, 53, 54}));
  text.test_put(std::vector<std::uint32_t>{1, 0}, inputs.data(), targets.data());
  EXPECT_EQ(inputs, (std::vector<int>{57, 58, 59, 54, 55, 56}));
  EXPECT_EQ(targets, (std::vector<int>{58, 59, 60, 55, 56, 57}));
}

TEST(TextSource, EveryTargetComesOncePerEpochForAnyNumberOfRanks) {
  constexpr int kContext = 7;
  for (const std::size_t length : {15u, 16u, 100u, 1003u}) {
    const train::TextSource text(counting(length), kContext);
    const std::uint32_t samples = text.train_count() + text.test_count();
    EXPECT_EQ(samples, (length - 1) / kContext);
    for (const std::uint32_t ranks : {1u, 2u, 3u, 5u}) {
      std::map<int, int> times;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        train::Sampler sampler({.sample_count = text.train_count(),
                                .rank = rank,
                                .rank_count = ranks,
                                .batch = 4,
                                .seed = 3});
        for (std::uint32_t step = 0; step < sampler.steps_per_epoch(); ++step) {
          const auto batch = sampler.batch_of(step).samples;
          std::vector<int> inputs(batch.size() * kContext), targets(inputs.size());
          text.train_put(batch, inputs.data(), targets.data());
          for (const int target : targets) ++times[target];
        }
      }
      EXPECT_EQ(times.size(), std::size_t{text.train_count()} * kContext) << ranks;
      for (const auto& [target, count] : times) EXPECT_EQ(count, 1) << target;
      EXPECT_EQ(times.begin()->first, 1);
    }
  }
}

TEST(TextSource, SaysWhenTheTextIsTooShort) {
  EXPECT_NO_THROW(train::TextSource(counting(15), 7));
  try {
    train::TextSource(counting(14), 7);
    FAIL();
  } catch (const train::Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("has 14 tokens; samples of 7 need at least 15"),
              std::string::npos)
        << failure.what();
  }
  EXPECT_THROW(train::TextSource({}, 7), train::Failure);
}

TEST(Text, IsReadAsItIsAndRefusedWhereItIsNone) {
  const ScratchDirectory scratch;
  const std::string text("a\0b\r\n\xff", 6);
  std::ofstream(scratch.file("text"), std::ios::binary) << text;
  EXPECT_EQ(train::text_read(scratch.file("text")), text);
  EXPECT_THROW(train::text_read(scratch.file("none")), train::Failure);
  EXPECT_THROW(train::text_read(scratch.file("")), train::Failure);
}

TEST(Text, DrawnIsAFunctionOfTheSeedWithSomethingToLearn) {
  const std::string text = train::text_draw(1, 20000);
  EXPECT_GE(text.size(), 20000u);
  EXPECT_LT(text.size(), 20100u);
  EXPECT_EQ(text, train::text_draw(1, 20000));
  EXPECT_NE(text, train::text_draw(2, 20000));
  // Fewer pairs of neighbours than chance would bring: 22 characters have 484.
  std::map<std::pair<char, char>, int> pairs;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) ++pairs[{text[i], text[i + 1]}];
  EXPECT_GT(pairs.size(), 30u);
  EXPECT_LT(pairs.size(), 120u);
}

}  // namespace
}  // namespace sluice::tests
