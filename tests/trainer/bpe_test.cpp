// Byte-pair encoding: how text is cut into pieces, which pairs are joined first, text that comes
// back, and files that are refused. The vocabulary is made by hand: the 256 bytes and a few merges.
#include "trainer/data/bpe.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/trainer/process.h"
#include "trainer/base/failure.h"
#include "trainer/base/random.h"

namespace sluice::tests {
namespace {

using Pieces = std::vector<std::string>;

Pieces pieces_of(const std::string& text) {
  const auto views = train::bpe_pieces(text);
  return {views.begin(), views.end()};
}

// What GPT-2's expression matches, worked out by hand.
TEST(BpePieces, AreThoseOfTheExpression) {
  EXPECT_EQ(pieces_of(""), Pieces());
  EXPECT_EQ(pieces_of("Hello world"), (Pieces{"Hello", " world"}));
  EXPECT_EQ(pieces_of("I've we'll don't he'd I'm it's they're"),
            (Pieces{"I", "'ve", " we", "'ll", " don", "'t", " he", "'d", " I", "'m", " it", "'s",
                    " they", "'re"}));
  // Not after a space, nor in capitals, and no further than the word.
  EXPECT_EQ(pieces_of("DON'T 'tis 'x a'sb"),
            (Pieces{"DON", "'", "T", " '", "tis", " '", "x", " a", "'s", "b"}));
  EXPECT_EQ(pieces_of("abc123 45def"), (Pieces{"abc", "123", " 45", "def"}));
  EXPECT_EQ(pieces_of("Well...  (yes!)"), (Pieces{"Well", "...", " ", " (", "yes", "!)"}));
  // The last space goes with the word, if it is one; a line's end never does.
  EXPECT_EQ(pieces_of("a   b"), (Pieces{"a", "  ", " b"}));
  EXPECT_EQ(pieces_of("a\n\n b\nc"), (Pieces{"a", "\n\n", " b", "\n", "c"}));
  EXPECT_EQ(pieces_of("a\n\nb"), (Pieces{"a", "\n", "\n", "b"}));
  EXPECT_EQ(pieces_of("a \tb"), (Pieces{"a", " ", "\t", "b"}));
  EXPECT_EQ(pieces_of("end  \n"), (Pieces{"end", "  \n"}));
  EXPECT_EQ(pieces_of(" "), (Pieces{" "}));
}

TEST(BpePieces, KnowLettersNumbersAndSpacesOfAllScripts) {
  EXPECT_EQ(pieces_of("Käse naïve 你好 мир"), (Pieces{"Käse", " naïve", " 你好", " мир"}));
  EXPECT_EQ(pieces_of("x²½٣"), (Pieces{"x", "²½٣"}));  // No, No, Nd
  EXPECT_EQ(pieces_of("a\u00a0\u3000b"), (Pieces{"a", "\u00a0", "\u3000", "b"}));
  EXPECT_EQ(pieces_of("a \u3000b"), (Pieces{"a", " ", "\u3000", "b"}));
  EXPECT_EQ(pieces_of("🙂🙂ok e\u0301"), (Pieces{"🙂🙂", "ok", " e", "\u0301"}));
  // What is not UTF-8 is neither letter nor space, and is not lost.
  EXPECT_EQ(pieces_of("a\xff\xfe b\xe4"), (Pieces{"a", "\xff\xfe", " b", "\xe4"}));
}

class BpeTest : public testing::Test {
 protected:
  void SetUp() override {
    // As GPT-2 numbers them: first the bytes that are printable, then the others.
    std::vector<unsigned> order;
    for (unsigned byte = 0; byte < 256; ++byte)
      if (printable(byte)) order.push_back(byte);
    unsigned next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (!printable(byte)) order.push_back(byte);
      written_.push_back(utf8(printable(byte) ? byte : next++));
    }
    for (const unsigned byte : order) add(written_[byte]);
    for (const char* word : {"th", "the", "he", "er", "Ġt", "Ġth", "Ġthe", "in", "Ċ", "ing"}) {
      if (!vocabulary_.contains(word)) add(word);
    }
    add("<|endoftext|>");
  }
  static bool printable(unsigned byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  }
  static std::string utf8(unsigned code) {
    if (code < 0x80) return {static_cast<char>(code)};
    return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
  }
  void add(const std::string& word) { vocabulary_[word] = vocabulary_.size(); }

  std::unique_ptr<train::Tokenizer> make(const std::string& merges) {
    std::ofstream(vocabulary_path_) << vocabulary_;
    std::ofstream(merges_path_) << merges;
    return train::bpe_tokenizer(vocabulary_path_, merges_path_);
  }
  std::string complaint(const std::string& merges) {
    try {
      make(merges);
      return "";
    } catch (const train::Failure& failure) {
      return failure.what();
    }
  }
  /// The words of the vocabulary that `text` is encoded as.
  Pieces words_of(const train::Tokenizer& tokenizer, const std::string& text) {
    Pieces out;
    for (const train::Token token : tokenizer.encode(text)) {
      for (const auto& [word, number] : vocabulary_.items())
        if (number == token) out.push_back(word);
    }
    return out;
  }

  const ScratchDirectory scratch_;
  const std::string vocabulary_path_ = scratch_.file("vocab.json");
  const std::string merges_path_ = scratch_.file("merges.txt");
  std::vector<std::string> written_;  // of every byte
  nlohmann::json vocabulary_ = nlohmann::json::object();
  const std::string merges_ = "#version: 0.2\nt h\nth e\nh e\ne r\nĠ t\nĠt h\nĠt he\ni n\nin g\n";
};

TEST_F(BpeTest, JoinsThePairThatComesFirstInTheFile) {
  const auto bpe = make(merges_);
  EXPECT_EQ(bpe->vocabulary(), static_cast<int>(vocabulary_.size()));
  EXPECT_EQ(words_of(*bpe, "the"), (Pieces{"the"}));
  EXPECT_EQ(words_of(*bpe, "her"), (Pieces{"he", "r"})) << "h e comes before e r";
  EXPECT_EQ(words_of(*bpe, "ther"), (Pieces{"the", "r"}));
  EXPECT_EQ(words_of(*bpe, "thth"), (Pieces{"th", "th"})) << "everywhere at once";
  EXPECT_EQ(words_of(*bpe, "thing"), (Pieces{"th", "ing"}));
  // t h is joined before Ġ t can be; after that nothing joins Ġ and the.
  EXPECT_EQ(words_of(*bpe, " the"), (Pieces{"Ġ", "the"}));
  EXPECT_EQ(words_of(*bpe, " ten"), (Pieces{"Ġt", "e", "n"}));
  EXPECT_EQ(words_of(*bpe, "a\nb"), (Pieces{"a", "Ċ", "b"}));
  // Nothing is joined across pieces.
  EXPECT_EQ(words_of(*bpe, "t1h t' h"), (Pieces{"t", "1", "h", "Ġt", "'", "Ġ", "h"}));
  // The order in the file decides, nothing else.
  const auto other = make("e r\nh e\nt h\nĠ th\n");
  EXPECT_EQ(words_of(*other, "her"), (Pieces{"h", "er"}));
  EXPECT_EQ(words_of(*other, " the"), (Pieces{"Ġ", "t", "he"}));
}

TEST_F(BpeTest, TextComesBack) {
  const auto bpe = make(merges_);
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  for (const std::string& text :
       {std::string(""), std::string("The other thing, there... \n\n isn't Käse 你好 🙂\t2²"),
        bytes}) {
    EXPECT_EQ(bpe->decode(bpe->encode(text)), text);
  }
  train::Random random(5);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (std::uint32_t left = random.below(40); left > 0; --left) {
      text += random.below(4) == 0 ? static_cast<char>(random.below(256))
                                   : "then 'sing\n1"[random.below(12)];
    }
    EXPECT_EQ(bpe->decode(bpe->encode(text)), text);
  }
  // A text is never encoded as the token that ends documents, but that token can be read.
  const auto end = static_cast<train::Token>(vocabulary_["<|endoftext|>"].get<int>());
  EXPECT_EQ(bpe->decode(std::vector{end}), "<|endoftext|>");
  EXPECT_GT(bpe->encode("<|endoftext|>").size(), 1u);
}

TEST_F(BpeTest, FilesThatDoNotFitAreRefusedByName) {
  EXPECT_NE(complaint("t h\nt x\n").find("line 2, \"t x\", needs \"tx\", which is no token"),
            std::string::npos)
      << complaint("t h\nt x\n");
  EXPECT_NE(complaint("th\n").find("is not two tokens"), std::string::npos) << complaint("th\n");
  const nlohmann::json whole = vocabulary_;
  vocabulary_.erase("Ġ");
  vocabulary_["zz"] = whole["Ġ"];
  EXPECT_NE(complaint("").find("byte 0x20 (\"Ġ\") is no token"), std::string::npos)
      << complaint("");
  vocabulary_ = whole;
  vocabulary_["the"] = 0;
  EXPECT_NE(complaint("").find("numbers are 0 to "), std::string::npos) << complaint("");
  vocabulary_ = whole;
  vocabulary_["the"] = -1;
  EXPECT_NE(complaint("").find("token \"the\" has number -1"), std::string::npos);
  vocabulary_ = nlohmann::json::array({1});
  EXPECT_NE(complaint("").find(vocabulary_path_ + " is not a vocabulary"), std::string::npos);
  vocabulary_ = whole;
  EXPECT_EQ(complaint(merges_), "");
  EXPECT_THROW(train::bpe_tokenizer(scratch_.file("none"), merges_path_), train::Failure);
  EXPECT_THROW(train::bpe_tokenizer(vocabulary_path_, scratch_.file("none")), train::Failure);
}

}  // namespace
}  // namespace sluice::tests
