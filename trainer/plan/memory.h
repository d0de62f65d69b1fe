// What a rank allocates on its GPU, to the byte but for what 16-bit top-k and evaluations take: the
// arrays of trainer/model, optimizer and compression. Pure arithmetic.
#pragma once

#include "trainer/plan/stage.h"

namespace sluice::train::planner {

/// With `kept` micro-batches under way. Without the context.
double memory_bytes(const Job& job, const Candidate& candidate, const Stage& stage, int kept);

}  // namespace sluice::train::planner
