// The bytes of a checkpoint: see checkpoint.h. Magic, version, length and text of the header, then
// every array's floats (all have as many), then the CRC-32 of everything before it; little-endian.
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "trainer/train/checkpoint.h"

namespace sluice::train {
namespace {

constexpr char kCheckpointMagic[8] = {'S', 'L', 'U', 'C', 'K', 'P', 'T', '\n'};
constexpr std::uint32_t kCheckpointVersion = 1;
constexpr std::uint32_t kHeaderBytesMax = 1 << 16;

std::uint32_t crc_of(const char* bytes, std::size_t count) {
  return static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes), count));
}

template <class T>
void value_append(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void line_append(std::string& text, const std::string& key, const std::string& value) {
  text += key + "\t";
  for (const char c : value) text += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  text += "\n";
}

void number_append(std::string& text, const char* key, std::uint64_t value) {
  line_append(text, key, std::to_string(value));
}

/// Lines "key<TAB>value".
CheckpointIdentity lines_read(const std::string& text) {
  CheckpointIdentity lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const std::size_t tab = text.find('\t', at);
    if (end == std::string::npos || tab == std::string::npos || tab > end)
      throw Failure("a line of its header is none");
    lines.emplace_back(text.substr(at, tab - at), text.substr(tab + 1, end - tab - 1));
    at = end + 1;
  }
  return lines;
}

/// The header's own numbers, each taken out of the lines; what is left is the identity.
class HeaderNumbers {
 public:
  explicit HeaderNumbers(CheckpointIdentity& lines) : lines_(lines) {}

  bool has(const char* key) const {
    for (const auto& [word, value] : lines_)
      if (word == key) return true;
    return false;
  }
  std::string take(const char* key) {
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (lines_[i].first != key) continue;
      std::string value = lines_[i].second;
      lines_.erase(lines_.begin() + static_cast<std::ptrdiff_t>(i));
      return value;
    }
    throw Failure(std::string("its header has no ") + key);
  }
  std::uint64_t number(const char* key, std::uint64_t most) {
    const std::string text = take(key);
    char* end = nullptr;
    const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || value > most)
      throw Failure(std::string("its ") + key + " is out of range");
    return value;
  }

 private:
  CheckpointIdentity& lines_;
};

std::string clocks_text(const std::vector<std::uint64_t>& clocks) {
  std::string text;
  for (const std::uint64_t clock : clocks) text += std::to_string(clock) + " ";
  return text;
}

std::vector<std::uint64_t> clocks_parse(const std::string& text) {
  std::vector<std::uint64_t> clocks;
  const char* at = text.c_str();
  while (*at != '\0') {
    char* end = nullptr;
    clocks.push_back(std::strtoull(at, &end, 10));
    if (end == at || *end != ' ' || clocks.size() > kRanksMax)
      throw Failure("its clocks are no numbers");
    at = end + 1;
  }
  return clocks;
}

}  // namespace

std::string checkpoint_encode(const TrainState& state, const CheckpointIdentity& identity) {
  std::string text;
  number_append(text, "step", state.step);
  number_append(text, "epoch", state.position.epoch);
  number_append(text, "offset", state.position.offset);
  number_append(text, "samples", state.samples);
  number_append(text, "ranks", static_cast<std::uint64_t>(state.rank_count));
  number_append(text, "parameters", state.parameters.size());
  number_append(text, "state arrays", state.optimizer.arrays.size());
  number_append(text, "optimizer steps", static_cast<std::uint64_t>(state.optimizer.steps));
  number_append(text, "error arrays", state.errors.size());
  if (!state.warm.empty()) number_append(text, "warm arrays", 1);
  if (!state.clocks.empty()) line_append(text, "clocks", clocks_text(state.clocks));
  number_append(text, "loss scaled", state.loss_scale ? 1 : 0);
  if (state.loss_scale) {
    line_append(text, "loss scale", text_format("%a", state.loss_scale->value));
    number_append(text, "loss scale good", state.loss_scale->good);
    number_append(text, "loss scale skipped", state.loss_scale->skipped);
  }
  for (const auto& [key, value] : identity) line_append(text, key, value);

  std::string bytes(kCheckpointMagic, sizeof kCheckpointMagic);
  value_append(bytes, kCheckpointVersion);
  value_append(bytes, static_cast<std::uint32_t>(text.size()));
  bytes += text;
  const auto floats_append = [&](const std::vector<float>& values) {
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  floats_append(state.parameters);
  for (const auto& array : state.optimizer.arrays) floats_append(array);
  for (const auto& array : state.errors) floats_append(array);
  floats_append(state.warm);
  value_append(bytes, crc_of(bytes.data(), bytes.size()));
  return bytes;
}

Checkpoint checkpoint_decode(const std::string& bytes) {
  constexpr std::size_t kHead = sizeof kCheckpointMagic + 2 * sizeof(std::uint32_t);
  if (bytes.size() < kHead + sizeof(std::uint32_t)) throw Failure("it ends too early");
  if (std::memcmp(bytes.data(), kCheckpointMagic, sizeof kCheckpointMagic) != 0)
    throw Failure("its first bytes are not those of a checkpoint");
  std::uint32_t head[2], crc;
  std::memcpy(head, bytes.data() + sizeof kCheckpointMagic, sizeof head);
  if (head[0] != kCheckpointVersion) {
    throw Failure(text_format("its format is version %u, and this program reads %u", head[0],
                              kCheckpointVersion));
  }
  std::memcpy(&crc, bytes.data() + bytes.size() - sizeof crc, sizeof crc);
  if (crc != crc_of(bytes.data(), bytes.size() - sizeof crc))
    throw Failure("its checksum does not fit");
  const std::size_t body = bytes.size() - kHead - sizeof crc;
  if (head[1] > kHeaderBytesMax || head[1] > body) throw Failure("its header is too long");

  Checkpoint out;
  out.identity = lines_read(bytes.substr(kHead, head[1]));
  HeaderNumbers header(out.identity);
  TrainState& state = out.state;
  state.step = header.number("step", 1ULL << 62);
  state.position.epoch = header.number("epoch", 1ULL << 62);
  state.position.offset = header.number("offset", 1ULL << 32);
  state.samples = header.number("samples", 1ULL << 62);
  state.rank_count = static_cast<int>(header.number("ranks", kRanksMax));
  const std::uint64_t floats = header.number("parameters", INT32_MAX);
  state.optimizer.arrays.resize(header.number("state arrays", 2));
  state.optimizer.steps = static_cast<int>(header.number("optimizer steps", INT32_MAX));
  state.errors.resize(header.number("error arrays", kRanksMax));
  if (header.has("clocks")) state.clocks = clocks_parse(header.take("clocks"));
  const std::uint64_t warm = header.has("warm arrays") ? header.number("warm arrays", 1) : 0;
  if (header.number("loss scaled", 1) == 1) {
    LossScaleState& scale = state.loss_scale.emplace();
    scale.value = std::strtod(header.take("loss scale").c_str(), nullptr);
    if (!(scale.value >= kLossScaleMin && scale.value <= kLossScaleMax))
      throw Failure("its loss scale is out of range");
    scale.good = header.number("loss scale good", 1ULL << 62);
    scale.skipped = header.number("loss scale skipped", 1ULL << 62);
  }
  const std::uint64_t arrays = 1 + state.optimizer.arrays.size() + state.errors.size() + warm;
  // No overflow: at most 68 arrays of less than 2^31 floats.
  if (arrays * floats * sizeof(float) != body - head[1])
    throw Failure("its length does not fit its header");
  const char* at = bytes.data() + kHead + head[1];
  const auto floats_take = [&](std::vector<float>& values) {
    values.resize(floats);
    std::memcpy(values.data(), at, floats * sizeof(float));
    at += floats * sizeof(float);
  };
  floats_take(state.parameters);
  for (auto& array : state.optimizer.arrays) floats_take(array);
  for (auto& array : state.errors) floats_take(array);
  if (warm == 1) floats_take(state.warm);
  return out;
}

CheckpointIdentity checkpoint_identity(const TrainOptions& options, const ModelShape& shape,
                                       int rank_count, std::uint32_t train_count) {
  const bool own = options.sharing == Sharing::kPresharded;
  CheckpointIdentity identity{
      {"model", shape.text()},
      {"--optimizer", method_name(options.optimizer.method)},
      {"--precision", precision_name(options.precision)},
      {"--compress", options.compression.text()},
      {"--seed", std::to_string(options.seed)},
      {"--data", std::filesystem::path(options.data).filename().string()},
      {"--sharing presharded", own ? "yes" : "no"},
  };
  if (train_count > 0) identity.emplace_back("training samples", std::to_string(train_count));
  if (own) {
    // Which samples are a rank's, and in which order, depends on these.
    identity.emplace_back("ranks with --sharing presharded", std::to_string(rank_count));
    identity.emplace_back("--batch with --sharing presharded",
                          std::to_string(options.rank_batch()));
  }
  return identity;
}

std::string identity_difference(const CheckpointIdentity& found, const CheckpointIdentity& wanted) {
  const auto value_of = [](const CheckpointIdentity& in, const std::string& key) {
    for (const auto& [word, value] : in) {
      if (word == key) return value;
    }
    return std::string("not there");
  };
  std::string text;
  for (const auto& [key, value] : wanted) {
    const std::string was = value_of(found, key);
    if (was == value) continue;
    text += (text.empty() ? "" : "; ") + key + ": " + was + " in the checkpoint, " + value + " now";
  }
  return text;
}

}  // namespace sluice::train
