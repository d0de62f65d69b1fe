// See worker.h.
#include "trainer/train/worker.h"

namespace sluice::train {

Worker::Worker(const TrainOptions& options)
    : plan(train_plan(options, options.place.rank_count, options.place.gpu_count)),
      board(options.place.board_fd),
      line(board.line(options.place.slot)),
      heartbeat(board, options.place.slot),
      log(options.log, JobLog::Open::kAppend),
      checkpoints(options.faults.checkpoint, options.faults.checkpoint_keep),
      device(plan.gpu_of(options.place.slot)),
      hangs(options.place.slot == options.place.rank_count - 1 && !options.place.joins) {}

}  // namespace sluice::train
