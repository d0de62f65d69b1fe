// See bpe.h.
#include "trainer/data/bpe.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <fstream>
#include <unordered_map>

#include "trainer/base/failure.h"
#include "trainer/data/vocabulary.h"

namespace sluice::train {
namespace {

/// The characters that stand for the bytes, in UTF-8.
std::array<std::string, 256> byte_characters() {
  std::array<std::string, 256> out;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    const unsigned code = itself ? byte : next++;
    if (code < 0x80) {
      out[byte] = static_cast<char>(code);
    } else {
      out[byte] = {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
    }
  }
  return out;
}

/// Bytes of the UTF-8 character that begins so.
std::size_t character_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

std::ifstream file_open(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw errno_failure("reading the vocabulary " + path);
  return file;
}

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(const std::string& vocabulary_path, const std::string& merges_path) {
    const TokenNumbers numbers = vocabulary_read(vocabulary_path);
    bytes_read(vocabulary_path, numbers);
    texts_make(numbers);
    merges_read(merges_path, numbers);
  }

  int vocabulary() const override { return static_cast<int>(texts_.size()); }

  std::vector<Token> encode(std::string_view text) const override {
    std::vector<Token> tokens;
    std::unordered_map<std::string_view, std::vector<Token>> known;  // words come again and again
    for (const std::string_view piece : bpe_pieces(text)) {
      const auto [place, fresh] = known.try_emplace(piece);
      if (fresh) place->second = piece_encode(piece);
      tokens.insert(tokens.end(), place->second.begin(), place->second.end());
    }
    return tokens;
  }

  std::string decode(std::span<const Token> tokens) const override {
    std::string text;
    for (const Token token : tokens) {
      assert(token < texts_.size());
      text += texts_[token];
    }
    return text;
  }

 private:
  struct Merge {
    std::size_t rank;
    Token whole;
  };
  static std::uint32_t pair_of(Token left, Token right) {
    return static_cast<std::uint32_t>(left) << 16 | right;
  }

  void bytes_read(const std::string& path, const TokenNumbers& numbers) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto found = numbers.find(characters_[byte]);
      if (found == numbers.end()) {
        throw Failure(path +
                      text_format(" is not a vocabulary of GPT-2's kind: byte 0x%02zx (\"", byte) +
                      characters_[byte] + "\") is no token of it");
      }
      bytes_[byte] = found->second;
    }
  }

  /// The bytes of every token. What is not written in the characters of bytes stands for itself.
  void texts_make(const TokenNumbers& numbers) {
    std::unordered_map<std::string_view, char> back;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      back[characters_[byte]] = static_cast<char>(byte);
    }
    texts_.resize(numbers.size());
    for (const auto& [written, number] : numbers) {
      std::string& text = texts_[number];
      for (std::size_t at = 0; at < written.size();) {
        const std::size_t length = character_length(written[at]);
        const auto found = back.find(std::string_view(written).substr(at, length));
        text += found == back.end() ? written.substr(at, length) : std::string(1, found->second);
        at += length;
      }
    }
  }

  void merges_read(const std::string& path, const TokenNumbers& numbers) {
    std::ifstream file = file_open(path);
    std::size_t row = 0;
    for (std::string line; std::getline(file, line);) {
      ++row;
      if (line.ends_with('\r')) line.pop_back();
      if (line.empty() || (row == 1 && line.starts_with("#version"))) continue;
      const std::size_t gap = line.find(' ');
      const auto number_of = [&](const std::string& text) {
        const auto found = numbers.find(text);
        if (gap == std::string::npos || found == numbers.end()) {
          throw Failure(path + text_format(" does not fit its vocabulary: line %zu, \"", row) +
                        line + "\", " +
                        (gap == std::string::npos ? "is not two tokens with a space between them"
                                                  : "needs \"" + text + "\", which is no token"));
        }
        return found->second;
      };
      const std::string left = line.substr(0, gap);
      const Token left_number = number_of(left);
      const std::string right = line.substr(gap + 1);
      merges_.try_emplace(pair_of(left_number, number_of(right)),
                          Merge{row, number_of(left + right)});
    }
  }

  /// Of all neighbours the pair that comes first in the file is joined, wherever it stands, until
  /// none is left that may be.
  std::vector<Token> piece_encode(std::string_view piece) const {
    std::vector<Token> tokens;
    for (const char byte : piece) tokens.push_back(bytes_[static_cast<unsigned char>(byte)]);
    while (true) {
      const Merge* best = nullptr;
      std::uint32_t best_pair = 0;
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
        const auto found = merges_.find(pair_of(tokens[i], tokens[i + 1]));
        if (found == merges_.end() || (best != nullptr && best->rank <= found->second.rank))
          continue;
        best = &found->second;
        best_pair = found->first;
      }
      if (best == nullptr) return tokens;
      std::size_t to = 0;
      for (std::size_t i = 0; i < tokens.size(); ++to) {
        const bool joined = i + 1 < tokens.size() && pair_of(tokens[i], tokens[i + 1]) == best_pair;
        tokens[to] = joined ? best->whole : tokens[i];
        i += joined ? 2 : 1;
      }
      tokens.resize(to);
    }
  }

  const std::array<std::string, 256> characters_ = byte_characters();
  std::array<Token, 256> bytes_{};
  std::vector<std::string> texts_;
  std::unordered_map<std::uint32_t, Merge> merges_;
};

}  // namespace

std::unique_ptr<Tokenizer> bpe_tokenizer(const std::string& vocabulary_path,
                                         const std::string& merges_path) {
  return std::make_unique<BpeTokenizer>(vocabulary_path, merges_path);
}

}  // namespace sluice::train
