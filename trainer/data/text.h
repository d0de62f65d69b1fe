// Text for a model that says what comes next: tokens, cut into samples of `context` each. The
// targets of a sample are its tokens moved by one, so neighbours share one token and every token
// but the first is a target once. What does not fill a sample at the end is left out. The last
// tenth of the samples is for testing.
#pragma once

#include <string>
#include <vector>

#include "trainer/data/source.h"
#include "trainer/data/tokenizer.h"

namespace sluice::train {

inline constexpr int kContextMax = 4096;

class TextSource : public Source {
 public:
  /// Throws Failure when the tokens are too few for a sample to train on and one to test.
  TextSource(std::vector<Token> tokens, int context);

  std::uint32_t train_count() const override { return train_; }
  std::uint32_t test_count() const override { return test_; }
  /// inputs: int32 [context] a sample; targets as many
  void train_put(std::span<const std::uint32_t> samples, void* inputs, int* targets) const override;
  void test_put(std::span<const std::uint32_t> samples, void* inputs, int* targets) const override;

 private:
  void put(std::uint32_t first, std::span<const std::uint32_t> samples, void* inputs,
           int* targets) const;

  const std::vector<Token> tokens_;
  const std::size_t context_;
  std::uint32_t train_ = 0;
  std::uint32_t test_ = 0;
};

/// The bytes of any file. Throws Failure.
std::string text_read(const std::string& path);

/// About `bytes` bytes of sentences of made-up words, of which each is followed by one of a few: a
/// function of the seed alone, with something to learn in it.
std::string text_draw(std::uint64_t seed, std::size_t bytes);

}  // namespace sluice::train
