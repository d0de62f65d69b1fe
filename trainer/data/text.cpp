// See text.h.
#include "trainer/data/text.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "trainer/base/failure.h"
#include "trainer/base/random.h"

namespace sluice::train {
namespace {

constexpr std::size_t kTestPart = 10;  // one sample of so many

// Made-up text.
constexpr std::uint32_t kWords = 48;
constexpr std::uint32_t kFollowers = 3;  // of a word
constexpr std::uint32_t kSentence = 8;   // words on average

std::vector<std::string> words_draw(Random random) {
  std::vector<std::string> words(kWords);
  for (std::string& word : words) {
    for (std::uint32_t syllables = 1 + random.below(3); syllables > 0; --syllables) {
      word += "bdfgklmnprst"[random.below(12)];
      word += "aeiou"[random.below(5)];
    }
  }
  return words;
}

}  // namespace

TextSource::TextSource(std::vector<Token> tokens, int context)
    : tokens_(std::move(tokens)), context_(static_cast<std::size_t>(context)) {
  assert(context > 0 && context <= kContextMax);
  const std::size_t samples = tokens_.empty() ? 0 : (tokens_.size() - 1) / context_;
  if (samples < 2 || samples > UINT32_MAX) {
    throw Failure(
        text_format("the text has %zu tokens; samples of %d need at least %zu, to train "
                    "on one and test on one; take more text or a smaller --context",
                    tokens_.size(), context, 2 * context_ + 1));
  }
  test_ = static_cast<std::uint32_t>(std::max<std::size_t>(1, samples / kTestPart));
  train_ = static_cast<std::uint32_t>(samples) - test_;
}

void TextSource::train_put(std::span<const std::uint32_t> samples, void* inputs,
                           int* targets) const {
  put(0, samples, inputs, targets);
}

void TextSource::test_put(std::span<const std::uint32_t> samples, void* inputs,
                          int* targets) const {
  put(train_, samples, inputs, targets);
}

void TextSource::put(std::uint32_t first, std::span<const std::uint32_t> samples, void* inputs,
                     int* targets) const {
  auto* to = static_cast<int*>(inputs);
  for (const std::uint32_t sample : samples) {
    const Token* from = tokens_.data() + (std::size_t{first} + sample) * context_;
    assert(from + context_ < tokens_.data() + tokens_.size());
    to = std::copy(from, from + context_, to);
    targets = std::copy(from + 1, from + 1 + context_, targets);
  }
}

std::string text_read(const std::string& path) {
  std::error_code error;
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path, error)) {
    if (file) errno = EISDIR;
    throw errno_failure("reading the text " + path);
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string text_draw(std::uint64_t seed, std::size_t bytes) {
  const std::vector<std::string> words = words_draw(Random(seed, 0x776f7264));
  Random random(seed, 0x74657874);
  std::vector<std::array<std::uint32_t, kFollowers>> followers(kWords);
  for (auto& one : followers) {
    for (std::uint32_t& word : one) word = random.below(kWords);
  }
  std::string text;
  for (std::uint32_t word = 0; text.size() < bytes;) {
    text += words[word];
    text += random.below(kSentence) == 0 ? ".\n" : " ";
    word = followers[word][random.below(kFollowers)];
  }
  return text;
}

}  // namespace sluice::train
