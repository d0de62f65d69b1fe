// See model.h.
#include "trainer/model/model.h"

namespace sluice::train {
namespace {

std::vector<float> draw(const MlpShape& shape, std::uint64_t seed) { return mlp_draw(shape, seed); }
std::vector<float> draw(const CnnShape& shape, std::uint64_t seed) { return cnn_draw(shape, seed); }
std::vector<float> draw(const GptShape& shape, std::uint64_t seed) { return gpt_draw(shape, seed); }

template <class Shape>
struct NetworkOf;
template <>
struct NetworkOf<MlpShape> {
  using Type = Mlp;
};
template <>
struct NetworkOf<CnnShape> {
  using Type = Cnn;
};
template <>
struct NetworkOf<GptShape> {
  using Type = Gpt;
};

}  // namespace

std::string ModelShape::text() const {
  return std::visit([](const auto& one) { return one.text(); }, any_);
}

std::size_t ModelShape::parameter_count() const {
  return std::visit([](const auto& one) { return one.parameter_count(); }, any_);
}

std::vector<ParameterRange> ModelShape::ranges() const {
  return std::visit([](const auto& one) { return one.ranges(); }, any_);
}

SampleShape ModelShape::sample() const {
  return std::visit([](const auto& one) { return one.sample(); }, any_);
}

void ModelShape::batch_check(int batch) const {
  const std::int64_t each = std::visit([](const auto& one) { return one.sample_width(); }, any_);
  if (each * batch <= INT32_MAX) return;
  throw Failure(
      text_format("--batch %d is too large for this model: %lld values a sample, and an "
                  "array has at most 2^31; take --batch %lld or less",
                  batch, static_cast<long long>(each), static_cast<long long>(INT32_MAX / each)));
}

std::vector<float> ModelShape::draw(std::uint64_t seed) const {
  return std::visit([&](const auto& one) { return train::draw(one, seed); }, any_);
}

std::unique_ptr<Network> ModelShape::make(Stream& stream, const NetworkSettings& settings) const {
  return std::visit(
      [&]<class Shape>(const Shape& one) -> std::unique_ptr<Network> {
        return std::make_unique<typename NetworkOf<Shape>::Type>(stream, one, settings);
      },
      any_);
}

}  // namespace sluice::train
