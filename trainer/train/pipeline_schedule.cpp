// See pipeline_schedule.h.
#include "trainer/train/pipeline_schedule.h"

#include <algorithm>
#include <cassert>

namespace sluice::train {

std::vector<PipelineOp> pipeline_schedule(int stage, int stage_count, int micro_count) {
  assert(stage >= 0 && stage < stage_count && micro_count >= 0);
  const int ahead = std::min(stage_count - 1 - stage, micro_count);
  std::vector<PipelineOp> out;
  for (int micro = 0; micro < ahead; ++micro) out.push_back({PipelineOp::Way::kForward, micro});
  for (int micro = 0; micro < micro_count; ++micro) {
    if (micro + ahead < micro_count) out.push_back({PipelineOp::Way::kForward, micro + ahead});
    out.push_back({PipelineOp::Way::kBackward, micro});
  }
  return out;
}

int pipeline_slots(int stage, int stage_count, int micro_count) {
  return std::max(1, std::min(stage_count - stage, micro_count));
}

double pipeline_bubble(int stage_count, int micro_count) {
  const double others = stage_count - 1;
  return others / (micro_count + others);
}

}  // namespace sluice::train
