// Text as numbers and back. Two kinds: every byte is a token, which needs no file and fits every
// text; or byte-pair encoding as GPT-2 has it, from its two vocabulary files (bpe.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::train {

using Token = std::uint16_t;
inline constexpr int kTokensMax = 65536;  // in a vocabulary

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Tokens are below this.
  virtual int vocabulary() const = 0;
  /// Takes any bytes, of valid UTF-8 or not.
  virtual std::vector<Token> encode(std::string_view text) const = 0;
  /// The bytes that were encoded.
  virtual std::string decode(std::span<const Token> tokens) const = 0;
};

std::unique_ptr<Tokenizer> byte_tokenizer();

}  // namespace sluice::train
