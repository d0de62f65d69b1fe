// What a process of a training job keeps however often the ranks around it change: its GPU, its
// line on the board, its log, the data that it has opened, and the state that a loss goes back to.
#pragma once

#include <memory>
#include <optional>

#include "trainer/data/source.h"
#include "trainer/job/log.h"
#include "trainer/job/stop.h"
#include "trainer/train/board.h"
#include "trainer/train/checkpoint.h"
#include "trainer/train/heartbeat.h"
#include "trainer/train/plan.h"
#include "trainer/train/state.h"

namespace sluice::train {

struct Worker {
  /// The launcher has made the board and the log. Throws Failure.
  explicit Worker(const TrainOptions& options);

  StopSignal stop;
  const TrainPlan plan;  // that the job started with: placement stays
  BoardMap board;
  RankLine& line;
  Heartbeat heartbeat;
  JobLog log;
  CheckpointDirectory checkpoints;
  Device device;
  const bool hangs;  // where a hang is planted
  std::shared_ptr<Source> source;
  std::optional<TrainState> commit;  // what a loss goes back to
};

}  // namespace sluice::train
