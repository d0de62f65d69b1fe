// See model_part.h.
#include "trainer/model/model_part.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sluice::train {

ModelPart::ModelPart(const ModelShape& whole, const PartPlace& place)
    : whole_(whole), place_(place) {
  if (const auto* gpt = whole.get<GptShape>()) gpt_.emplace(*gpt, place);
  if (!gpt_ && !place.is_whole()) {
    throw Failure("--tensor and --pipeline split --model gpt; " + whole.text() +
                  " has too little to split, leave them out");
  }
}

std::size_t ModelPart::parameter_count() const {
  return gpt_ ? gpt_->parameter_count() : whole_.parameter_count();
}

std::vector<float> ModelPart::cut(std::vector<float> whole) const {
  return place_.is_whole() ? std::move(whole) : gpt_->cut(whole);
}

void ModelPart::place_into(std::span<const float> mine, std::span<float> whole) const {
  if (place_.is_whole()) {
    std::copy(mine.begin(), mine.end(), whole.begin());
  } else {
    gpt_->place_into(mine, whole);
  }
}

std::vector<ParameterRun> ModelPart::counted() const {
  if (place_.is_whole()) return {{0, parameter_count()}};
  std::vector<ParameterRun> out;
  for (const GptPiece& piece : gpt_->pieces()) {
    if (!piece.counts) continue;
    if (!out.empty() && out.back().begin + out.back().count == piece.range.begin) {
      out.back().count += piece.range.count;
    } else {
      out.push_back({piece.range.begin, piece.range.count});
    }
  }
  return out;
}

ParameterRun ModelPart::shared_by_ends() const {
  if (place_.stage_count == 1 || !(place_.is_first() || place_.is_last())) return {0, 0};
  const ParameterRange& tokens = gpt_->pieces()[kTokensRange].range;
  return {tokens.begin, tokens.count};
}

std::unique_ptr<Network> ModelPart::make(Stream& stream, const NetworkSettings& settings,
                                         TensorSum sum) const {
  if (!gpt_) return whole_.make(stream, settings);
  return std::make_unique<Gpt>(stream, *gpt_, settings, std::move(sum));
}

std::optional<std::size_t> ModelPart::network_bytes(const NetworkSettings& settings) const {
  if (!gpt_) return std::nullopt;
  const SampleShape sample = whole_.sample();
  const auto batch = static_cast<std::size_t>(settings.batch_max);
  const std::size_t arrays = 1 + (settings.trains ? 1 : 0) + (settings.accumulates ? 1 : 0);
  std::size_t floats = arrays * parameter_count() +
                       gpt_->activation_floats(settings.batch_max, settings.slots, settings.trains);
  if (place_.is_first()) floats += static_cast<std::size_t>(settings.slots) * batch * sample.inputs;
  if (place_.is_last()) {
    const auto classes = static_cast<std::size_t>(sample.classes);
    floats += batch * sample.targets * (2 + classes * (settings.trains ? 2 : 1));
  }
  const std::size_t halves = settings.precision == Precision::kFp32 ? 0 : parameter_count() * 2;
  return floats * sizeof(float) + halves;
}

}  // namespace sluice::train
