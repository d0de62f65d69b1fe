#include "trainer/data/vocabulary.h"

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "trainer/base/failure.h"

namespace sluice::train {

TokenNumbers vocabulary_read(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw errno_failure("reading the vocabulary " + path);
  const auto fail = [&](const std::string& why) {
    return Failure(path + " is not a vocabulary of GPT-2's kind: " + why);
  };
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) throw fail("it is no JSON object of tokens and their numbers");
  if (json.size() > kTokensMax) {
    throw fail(text_format("it has %zu tokens; %d are possible", json.size(), kTokensMax));
  }
  TokenNumbers numbers;
  std::vector<bool> taken(json.size());
  for (const auto& [text, number] : json.items()) {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() >= taken.size() ||
        taken[number.get<std::size_t>()]) {
      throw fail("token \"" + text + "\" has number " + number.dump() +
                 text_format("; numbers are 0 to %zu, each once", taken.size() - 1));
    }
    taken[number.get<std::size_t>()] = true;
    numbers[text] = number.get<Token>();
  }
  return numbers;
}

}  // namespace sluice::train
