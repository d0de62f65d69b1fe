// See fault_options.h.
#include "trainer/train/fault_options.h"

#include <cstdlib>

#include "trainer/job/command_line.h"
#include "trainer/train/options.h"

namespace sluice::train {
namespace {

std::vector<int> split_parse(const std::string& text) {
  std::vector<int> weights;
  const char* at = text.c_str();
  for (;;) {
    char* end = nullptr;
    const long weight = std::strtol(at, &end, 10);
    if (end == at || (*end != ',' && *end != '\0') || weight < 1 || weight > kSplitWeightMax) {
      throw Failure("--split " + text + " is not auto, and no list of whole numbers as 3,1 either");
    }
    weights.push_back(static_cast<int>(weight));
    if (*end == '\0') return weights;
    at = end + 1;
  }
}

void split_check(TrainOptions& o) {
  FaultOptions& f = o.faults;
  if (f.split.empty()) return;
  if (o.sharing != Sharing::kIndex)
    throw Failure("--split is for --sharing index: it says who takes what of a global batch");
  if (f.is_elastic())
    throw Failure("--split is not for --elastic: it is for the ranks that the job starts with");
  if (f.split != "auto") f.split_weights = split_parse(f.split);
}

void elastic_check(const TrainOptions& o) {
  const FaultOptions& f = o.faults;
  if (!f.is_elastic()) {
    if (f.replace) throw Failure("--replace is for --elastic: give the least number of ranks too");
    return;
  }
  if (o.sharing != Sharing::kIndex) {
    throw Failure(
        "--elastic is for --sharing index: what a lost rank alone had, the others cannot train on");
  }
  if (o.algorithm == Algorithm::kBcube)
    throw Failure("--elastic is not for --algorithm bcube, which needs 2, 4, 8, ... ranks");
}

/// Ranks that are not all alike.
void state_check(const TrainOptions& o) {
  const FaultOptions& f = o.faults;
  const char* const of = o.tensor > 1 || o.pipeline > 1   ? "--tensor and --pipeline"
                         : o.strategy == Strategy::kAsync ? "--strategy async"
                                                          : nullptr;
  const char* const option = f.is_elastic() ? "--elastic" : !f.split.empty() ? "--split" : nullptr;
  if (of == nullptr || option == nullptr) return;
  throw Failure(std::string(option) + " is not for " + of +
                ": it needs ranks of which each has all that the job goes on from");
}

}  // namespace

void fault_options_add(CommandLine& line, FaultOptions& f) {
  line.text("--checkpoint", f.checkpoint,
            "directory for checkpoints; written at the end, and every --checkpoint-every steps");
  line.number("--checkpoint-every", f.checkpoint_every, "steps between checkpoints", 1, 1ULL << 40);
  line.number("--checkpoint-keep", f.checkpoint_keep, "keep so many of them", 1, 1000);
  line.flag("--resume", f.resume,
            "go on from the newest checkpoint, with any number of ranks; from the beginning where "
            "there is none yet");
  line.number("--elastic", f.elastic,
              "when ranks are lost go on with the others, while there are so many at least; 0 = "
              "end the job",
              0, kRanksMax);
  line.flag("--replace", f.replace, "with --elastic: start a new rank for a lost one");
  line.number("--commit-every", f.commit_every,
              "with --elastic: steps between states that every rank keeps in host memory; a loss "
              "undoes the steps after the last one",
              1, 1ULL << 40);
  line.seconds("--heartbeat-timeout", f.heartbeat_timeout_s,
               "time without a sign of life after which a rank is lost, stopped or hanging; it "
               "must be longer than a step. 0 = 30, and only for processes that do not run at all",
               0.0, 1e5);
  line.text("--split", f.split,
            "who takes how much of each global batch: 3,1 (a number for every rank), or auto: by "
            "what the ranks' passes take, measured once before the first step");
  line.flag("--exclusive", f.exclusive,
            "ask the broker for whole GPUs, one for each rank, before anything is placed, and do "
            "not start without them");
  line.number("--plant-hang", f.hang_step,
              "experiment: the last rank hangs in this step (the first is 1); 0 = none", 0,
              1ULL << 40);
}

void fault_options_check(TrainOptions& o) {
  const FaultOptions& f = o.faults;
  const FaultOptions usual;
  if (f.checkpoint.empty() &&
      (f.checkpoint_every > 0 || f.resume || f.checkpoint_keep != usual.checkpoint_keep)) {
    throw Failure("--checkpoint-every, --checkpoint-keep and --resume need --checkpoint DIRECTORY");
  }
  split_check(o);
  elastic_check(o);
  state_check(o);
}

}  // namespace sluice::train
