// Drives the fuzz targets where the compiler brings no libFuzzer: every file of a corpus as it is,
// then mutations of them by seed, always the same for the same seed.
//
//   fuzz_targets TARGET CORPUS RUNS [SEED]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"

namespace {

using Bytes = std::vector<std::uint8_t>;

class Mutator {
 public:
  Mutator(std::vector<Bytes> corpus, std::uint64_t seed)
      : corpus_(std::move(corpus)), random_(seed) {}

  Bytes next() {
    Bytes bytes = corpus_[below(corpus_.size())];
    for (std::size_t changes = 1 + below(6); changes > 0; --changes) mutate(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  void mutate(Bytes& bytes) {
    if (bytes.empty()) bytes.push_back(0);
    const std::size_t at = below(bytes.size());
    switch (below(7)) {
      case 0:
        bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ (1U << below(8)));
        break;
      case 1:
        bytes[at] = static_cast<std::uint8_t>(random_());
        break;
      case 2: {  // a word of little or of all bits
        const auto value = static_cast<std::uint8_t>(below(2) == 0 ? 0 : 255);
        for (std::size_t i = at; i < bytes.size() && i < at + 8; ++i) bytes[i] = value;
        break;
      }
      case 3:
        bytes.resize(at);
        break;
      case 4: {  // a part of some input in the middle of this one
        const Bytes& other = corpus_[below(corpus_.size())];
        const std::size_t from = below(other.size());
        const std::size_t length = below(other.size() - from + 1);
        const auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), begin,
                     begin + static_cast<std::ptrdiff_t>(length));
        break;
      }
      case 5: {  // another input behind this one, without what marks its beginning
        const Bytes& other = corpus_[below(corpus_.size())];
        if (other.size() > 1) bytes.insert(bytes.end(), other.begin() + 1, other.end());
        break;
      }
      default: {
        const std::size_t length = 1 + below(std::min<std::size_t>(bytes.size() - at, 64));
        const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
        bytes.erase(begin, begin + static_cast<std::ptrdiff_t>(length));
      }
    }
  }

  std::vector<Bytes> corpus_;
  std::mt19937_64 random_;
};

std::map<std::string, fuzz::Entry>& targets() {
  static std::map<std::string, fuzz::Entry> all;
  return all;
}

}  // namespace

fuzz::Target::Target(const char* name, Entry entry) { targets().emplace(name, entry); }

int main(int argc, char** argv) {
  const auto target = targets().find(argc > 1 ? argv[1] : "");
  if (argc < 4 || target == targets().end()) {
    std::fprintf(stderr, "usage: fuzz_targets TARGET CORPUS RUNS [SEED], where TARGET is one of");
    for (const auto& [name, entry] : targets()) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  std::vector<Bytes> corpus;
  for (const auto& entry : std::filesystem::directory_iterator(argv[2])) {
    std::ifstream file(entry.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "fuzz_targets: %s is empty\n", argv[2]);
    return 2;
  }
  for (const Bytes& bytes : corpus) target->second(bytes.data(), bytes.size());
  const std::uint64_t seed = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 1;
  Mutator mutator(corpus, seed);
  const long runs = std::atol(argv[3]);
  for (long run = 0; run < runs; ++run) {
    const Bytes bytes = mutator.next();
    target->second(bytes.data(), bytes.size());
  }
  std::printf("%zu inputs and %ld mutations of them, seed %llu\n", corpus.size(), runs,
              static_cast<unsigned long long>(seed));
  return 0;
}
