// See tokenizer.h.
#include "trainer/data/tokenizer.h"

namespace sluice::train {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  int vocabulary() const override { return 256; }
  std::vector<Token> encode(std::string_view text) const override {
    std::vector<Token> tokens;
    tokens.reserve(text.size());
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    return tokens;
  }
  std::string decode(std::span<const Token> tokens) const override {
    std::string text;
    text.reserve(tokens.size());
    for (const Token token : tokens) text.push_back(static_cast<char>(token));
    return text;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace sluice::train
