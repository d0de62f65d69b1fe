// The amounts of work in a launch: what its time is linear in (rates.h), from the shape alone. The
// number of blocks is the launch table's own, so a prediction and a run cannot disagree about it.
#pragma once

#include "kernels/kernels.h"
#include "kernels/layers.h"
#include "trainer/plan/rates.h"

namespace sluice::train::planner {

/// One thread per element: warps with work, blocks (whose other warps only look at the count).
Work elements_work(const kernels::Launch& launch, double count);
/// One thread per element, which adds up `parts` values: warps, warps x parts, blocks.
Work parts_work(const kernels::Launch& launch, double count, double parts);
/// One warp per row: rows, rows x rounds of 32 columns.
Work rows_work(const kernels::Launch& launch, double rows, double columns);
/// Sums over rows by blocks of 32 columns: blocks, blocks x rounds of 8 rows.
Work columns_work(const kernels::Launch& launch, double rows, double columns);
/// A product by tiles: tiles x parts, tiles x rounds of 16 along k.
Work product_work(const kernels::Launch& launch, const kernels::GemmShape& shape,
                  const kernels::GemmPlan& plan);
/// Causal attention by tiles of 32 queries: tiles, tiles x size, pairs of tiles, pairs x size.
Work attention_work(const kernels::Launch& launch, const kernels::AttentionShape& shape);
/// A block per distinct token, a warp for every 32 columns, which adds up the rows of that token:
/// tokens, tokens x warps, rows x warps.
Work tokens_work(const kernels::Launch& launch, double distinct, double rows, double columns);
/// Blocks that go over all elements: blocks, warps.
Work squares_work(const kernels::Launch& launch, double count);
/// kUpload or kZero: one, bytes.
Work copy_work(WorkKind kind, double bytes);

}  // namespace sluice::train::planner
