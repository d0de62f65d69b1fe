// The order of 1F1B: by hand, and what every such order must be.
#include "trainer/train/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace sluice::train {
namespace {

std::string schedule_text(int stage, int stage_count, int micro_count) {
  std::string out;
  for (const PipelineOp& op : pipeline_schedule(stage, stage_count, micro_count))
    out += (op.way == PipelineOp::Way::kForward ? " F" : " B") + std::to_string(op.micro);
  return out;
}

TEST(PipelineSchedule, IsThatOfTheBooks) {
  EXPECT_EQ(schedule_text(0, 3, 4), " F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(schedule_text(1, 3, 4), " F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(schedule_text(2, 3, 4), " F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(schedule_text(0, 4, 2), " F0 F1 B0 B1") << "fewer micro-batches than stages";
  EXPECT_EQ(schedule_text(0, 1, 2), " F0 B0 F1 B1") << "no pipeline";
  EXPECT_EQ(schedule_text(1, 2, 0), "");
}

/// Runs all stages with operations of one unit each, and messages that take no time; an operation
/// begins when its stage is free and what it needs has been made. Returns the span, or 0 where
/// stages wait for each other for ever.
int span_of(int stage_count, int micro_count) {
  std::vector<std::vector<PipelineOp>> left;
  std::vector<int> free_at(static_cast<std::size_t>(stage_count), 0);
  std::vector<std::vector<int>> ends[2];
  for (auto& way : ends)
    way.assign(free_at.size(), std::vector<int>(static_cast<std::size_t>(micro_count), 0));
  for (int stage = 0; stage < stage_count; ++stage) {
    left.push_back(pipeline_schedule(stage, stage_count, micro_count));
    std::reverse(left.back().begin(), left.back().end());
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t stage = 0; stage < left.size(); ++stage) {
      if (left[stage].empty()) continue;
      const PipelineOp op = left[stage].back();
      const bool back = op.way == PipelineOp::Way::kBackward;
      const auto micro = static_cast<std::size_t>(op.micro);
      int ready = 0;
      if (back && stage + 1 < left.size()) ready = ends[1][stage + 1][micro];
      if (back && stage + 1 == left.size()) ready = ends[0][stage][micro];
      if (!back && stage > 0) ready = ends[0][stage - 1][micro];
      const bool first = !back && stage == 0;
      if (!first && ready == 0) continue;
      free_at[stage] = std::max(free_at[stage], ready) + 1;
      ends[back ? 1 : 0][stage][micro] = free_at[stage];
      left[stage].pop_back();
      moved = true;
    }
  }
  for (const auto& one : left)
    if (!one.empty()) return 0;
  return *std::max_element(free_at.begin(), free_at.end());
}

TEST(PipelineSchedule, TakesAsLongAsTheFormulaSaysAndNeedsFewSlots) {
  for (const int stages : {1, 2, 3, 4, 7}) {
    for (const int micros : {1, 2, 3, 4, 8, 16}) {
      SCOPED_TRACE(testing::Message() << stages << " stages, " << micros << " micro-batches");
      const int span = span_of(stages, micros);
      EXPECT_EQ(span, 2 * (micros + stages - 1));
      EXPECT_NEAR(1 - 2.0 * micros / span, pipeline_bubble(stages, micros), 1e-12);
      for (int stage = 0; stage < stages; ++stage) {
        int under_way = 0;
        int most = 0;
        int next[2] = {0, 0};
        for (const PipelineOp& op : pipeline_schedule(stage, stages, micros)) {
          const bool back = op.way == PipelineOp::Way::kBackward;
          EXPECT_EQ(op.micro, next[back ? 1 : 0]++) << "in their order";
          under_way += back ? -1 : 1;
          EXPECT_GE(under_way, 0);
          most = std::max(most, under_way);
        }
        EXPECT_EQ(next[0], micros);
        EXPECT_EQ(next[1], micros);
        EXPECT_EQ(most, pipeline_slots(stage, stages, micros));
      }
    }
  }
}

}  // namespace
}  // namespace sluice::train
