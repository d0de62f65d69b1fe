// See checkpoint_lock.h.
#include "trainer/train/checkpoint_lock.h"

#include <cstdio>

#include "trainer/train/checkpoint.h"

namespace sluice::train {

int checkpoints_open(const TrainOptions& options, const TrainPlan& plan, bool is_first) {
  const FaultOptions& faults = options.faults;
  if (faults.checkpoint.empty() || !is_first) return -1;
  CheckpointDirectory directory(faults.checkpoint);
  const int lock = directory.lock_take();
  if (!faults.resume) {
    if (directory.names().empty()) return lock;
    throw Failure(
        faults.checkpoint +
        " has checkpoints already; give --resume to go on from them, or another directory");
  }
  const auto found = directory.newest(
      checkpoint_identity(options, plan.shape, plan.rank_count, 0), [](const std::string& text) {
        std::fprintf(stderr, "sluice: sluice-train: %s\n", text.c_str());
      });
  if (options.quiet) return lock;
  if (found) {
    std::printf("checkpoint: going on after step %llu of %s, %d rank%s then\n",
                static_cast<unsigned long long>(found->state.step), faults.checkpoint.c_str(),
                found->state.rank_count, found->state.rank_count == 1 ? "" : "s");
  } else {
    std::printf("checkpoint: there is none in %s yet; from the beginning\n",
                faults.checkpoint.c_str());
  }
  return lock;
}

}  // namespace sluice::train
