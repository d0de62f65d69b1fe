// See gpt_part.h.
#include "trainer/model/gpt_part.h"

#include <algorithm>
#include <cassert>

namespace sluice::train {
namespace {

/// The model's tensors as they are cut: [outer, inner], and whether parts have a stretch of each
/// row.
struct Cut {
  std::size_t outer, inner;
  bool split;
};

Cut cut_of(const GptShape& shape, LayerRange which, std::size_t count) {
  const auto width = static_cast<std::size_t>(shape.width);
  switch (which) {
    case LayerRange::kQkv:  // columns: of queries, keys and values those of the part's heads
      return {3 * width, width, true};
    case LayerRange::kQkvBias:
      return {3, width, true};
    case LayerRange::kExpand:  // columns
      return {width, kMlpFactor * width, true};
    case LayerRange::kExpandBias:
    case LayerRange::kProjection:  // rows
    case LayerRange::kContract:
      return {1, count, true};
    default:
      return {1, count, false};
  }
}

void divide_check(const char* what, int value, int parts, const char* option) {
  if (value % parts == 0) return;
  throw Failure(text_format("%s %d does not divide by %s %d: every part needs as many", what, value,
                            option, parts));
}

}  // namespace

GptPart::GptPart(const GptShape& whole, const PartPlace& place) : whole_(whole), place_(place) {
  divide_check("--heads", whole.heads, place.tensor_count, "--tensor");
  divide_check("--width", whole.width, place.tensor_count, "--tensor");
  divide_check("--layers", whole.layers, place.stage_count, "--pipeline");
  pieces_make();
}

void GptPart::pieces_make() {
  const std::vector<ParameterRange> all = whole_.ranges();
  RangeList mine;
  const auto take = [&](std::size_t from, const Cut& cut, bool counts) {
    const std::size_t parts = cut.split ? static_cast<std::size_t>(place_.tensor_count) : 1;
    mine.add(all[from].name, all[from].count / parts, parts == 1 ? all[from].columns : 0);
    pieces_.push_back(
        {mine.ranges().back(), all[from].begin, cut.outer, cut.inner, cut.split, counts});
  };
  const bool speaks = place_.tensor == 0;
  const auto take_whole = [&](std::size_t from, bool counts) {
    take(from, {1, all[from].count, false}, counts);
  };
  if (place_.is_first() || place_.is_last()) take_whole(kTokensRange, speaks && place_.is_first());
  if (place_.is_first()) take_whole(kPositionsRange, speaks);
  for (int layer = place_.stage * layers(); layer < (place_.stage + 1) * layers(); ++layer) {
    for (std::size_t i = 0; i < kLayerRanges; ++i) {
      const auto which = static_cast<LayerRange>(i);
      const std::size_t from = gpt_range(layer, which);
      const Cut cut = cut_of(whole_, which, all[from].count);
      take(from, cut, speaks || cut.split);
    }
  }
  if (place_.is_last()) {
    take_whole(all.size() - 2, speaks);
    take_whole(all.size() - 1, speaks);
  }
}

std::vector<ParameterRange> GptPart::ranges() const {
  std::vector<ParameterRange> out;
  for (const GptPiece& piece : pieces_) out.push_back(piece.range);
  return out;
}

namespace {

/// Calls `row(mine, whole, count)` with where every stretch of a piece is in both arrays.
template <class Row>
void rows_visit(const GptPiece& piece, const PartPlace& place, const Row& row) {
  const std::size_t parts = piece.split ? static_cast<std::size_t>(place.tensor_count) : 1;
  const std::size_t count = piece.inner / parts;
  const std::size_t skip = piece.split ? count * static_cast<std::size_t>(place.tensor) : 0;
  for (std::size_t i = 0; i < piece.outer; ++i) {
    row(piece.range.begin + i * count, piece.whole_begin + i * piece.inner + skip, count);
  }
}

}  // namespace

std::vector<float> GptPart::cut(std::span<const float> whole) const {
  assert(whole.size() == whole_.parameter_count());
  std::vector<float> out(parameter_count());
  for (const GptPiece& piece : pieces_) {
    rows_visit(piece, place_, [&](std::size_t mine, std::size_t from, std::size_t count) {
      std::copy_n(&whole[from], count, &out[mine]);
    });
  }
  return out;
}

void GptPart::place_into(std::span<const float> mine, std::span<float> whole) const {
  assert(mine.size() == parameter_count() && whole.size() == whole_.parameter_count());
  for (const GptPiece& piece : pieces_) {
    if (!piece.counts) continue;
    rows_visit(piece, place_, [&](std::size_t from, std::size_t to, std::size_t count) {
      std::copy_n(&mine[from], count, &whole[to]);
    });
  }
}

std::size_t GptPart::activation_floats(int batch, int slots, bool trains) const {
  const auto rows = static_cast<std::size_t>(batch) * static_cast<std::size_t>(whole_.context);
  const auto width = static_cast<std::size_t>(whole_.width);
  const auto inner = static_cast<std::size_t>(attended());
  const auto units = static_cast<std::size_t>(expanded());
  const auto head_count = static_cast<std::size_t>(heads());
  const std::size_t norm = rows * (width + 2);
  const std::size_t layer = 2 * norm + rows * (4 * inner + head_count + 2 * width + 2 * units);
  const std::size_t slot = rows * width + static_cast<std::size_t>(layers()) * layer +
                           (place_.is_last() ? norm : 0) + (place_.is_first() ? 2 * rows : 0);
  const std::size_t back =
      trains ? rows * (3 * width + std::max(units, 3 * inner) + head_count) : 0;
  return static_cast<std::size_t>(slots) * slot + back;
}

}  // namespace sluice::train
