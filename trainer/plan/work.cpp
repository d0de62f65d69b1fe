// See work.h.
#include "trainer/plan/work.h"

#include <cmath>

namespace sluice::train::planner {
namespace {

constexpr double kWarp = 32;
constexpr double kDepth = 16;      // of a product's tile, along k
constexpr double kRowsAtOnce = 8;  // of a block that adds up columns
constexpr double kAttentionTile = 32;

Work work(const kernels::Launch& launch, const Amounts& amounts) {
  const auto& grid = launch.grid;
  return {static_cast<WorkKind>(launch.kernel), static_cast<double>(grid.x) * grid.y * grid.z,
          amounts};
}

}  // namespace

Work elements_work(const kernels::Launch& launch, double count) {
  return work(launch, {std::ceil(count / kWarp), static_cast<double>(launch.grid.x)});
}

Work parts_work(const kernels::Launch& launch, double count, double parts) {
  const double warps = std::ceil(count / kWarp);
  return work(launch, {warps, warps * parts, static_cast<double>(launch.grid.x)});
}

Work rows_work(const kernels::Launch& launch, double rows, double columns) {
  return work(launch, {rows, rows * std::ceil(columns / kWarp)});
}

Work columns_work(const kernels::Launch& launch, double rows, double columns) {
  const double blocks = std::ceil(columns / kWarp);
  return work(launch, {blocks, blocks * std::ceil(rows / kRowsAtOnce)});
}

Work product_work(const kernels::Launch& launch, const kernels::GemmShape& shape,
                  const kernels::GemmPlan& plan) {
  const double tiles = static_cast<double>(launch.grid.x) * launch.grid.y;
  return work(launch, {tiles * plan.parts, tiles * std::ceil(shape.k / kDepth)});
}

Work attention_work(const kernels::Launch& launch, const kernels::AttentionShape& shape) {
  const double tiles = std::ceil(shape.length / kAttentionTile);
  const double all = static_cast<double>(shape.items) * shape.heads;
  const double pairs = all * tiles * (tiles + 1) / 2;
  return work(launch, {all * tiles, all * tiles * shape.size, pairs, pairs * shape.size});
}

Work tokens_work(const kernels::Launch& launch, double distinct, double rows, double columns) {
  const double warps = std::ceil(columns / kWarp);
  return work(launch, {distinct, distinct * warps, rows * warps});
}

Work squares_work(const kernels::Launch& launch, double count) {
  return work(launch, {static_cast<double>(launch.grid.x), std::ceil(count / kWarp)});
}

Work copy_work(WorkKind kind, double bytes) { return {kind, 1, {1, bytes}}; }

}  // namespace sluice::train::planner
