// Byte-pair encoding as GPT-2 has it (Radford et al., Language Models are Unsupervised Multitask
// Learners, 2019; Sennrich et al., Neural Machine Translation of Rare Words with Subword Units,
// 2016), from its two files: vocab.json (also called encoder.json: {"text of token": number}) and
// merges.txt (also called vocab.bpe: pairs of tokens, the first to be joined first). In both a byte
// is written as a printable character: itself where it is one in Latin-1, else U+0100 and on.
#pragma once

#include <string>

#include "trainer/data/tokenizer.h"

namespace sluice::train {

/// Throws Failure naming the file and what is wrong with it. Every byte must be a token of the
/// vocabulary, numbers must be 0, 1, 2, ... without gaps, and what a merge joins and makes must be
/// tokens. "<|endoftext|>" is a token like any other; no text is encoded as it.
std::unique_ptr<Tokenizer> bpe_tokenizer(const std::string& vocabulary_path,
                                         const std::string& merges_path);

/// What text is cut into before bytes are joined, one after the other and nothing left out: the
/// matches of GPT-2's expression
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// Bytes that are not UTF-8 count as neither letter nor number nor space.
std::vector<std::string_view> bpe_pieces(std::string_view text);

}  // namespace sluice::train
