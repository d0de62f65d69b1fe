// The file in which GPT-2's kind of tokens have their numbers: a JSON object, texts to numbers.
#pragma once

#include <string>
#include <unordered_map>

#include "trainer/data/tokenizer.h"

namespace sluice::train {

/// By text, in the characters that stand for bytes there.
using TokenNumbers = std::unordered_map<std::string, Token>;

/// Numbers are 0 to the count less 1, each once. Throws Failure with the file's name and what is
/// wrong in it.
TokenNumbers vocabulary_read(const std::string& path);

}  // namespace sluice::train
