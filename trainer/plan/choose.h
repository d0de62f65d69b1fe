// From the options of a job to its plan: what `sluice-train plan` shows and `--plan auto` takes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/plan/calibration.h"
#include "trainer/plan/search.h"
#include "trainer/train/options.h"

namespace sluice::train::planner {

struct PlanSearch {
  Job job;
  Calibration calibration;
  std::string source;  // where the calibration is from
  int rank_count = 1;
  std::vector<Ranked> ranked;
};

/// Reads or measures a calibration and searches. Throws Failure. Calls no driver in this process.
PlanSearch plan_search(const TrainOptions& options, int rank_count,
                       const std::function<void(const std::string&)>& progress);

/// The chosen one in the options, so that a run does it. Throws Failure where nothing fits.
Ranked plan_take(const PlanSearch& found, TrainOptions& options);

/// For the processes of the ranks, which must do the same: the value of --as-planned, and back.
std::string planned_format(const TrainOptions& options);
bool planned_parse(const std::string& text, TrainOptions* options);

/// "predicted step 3.214 ms: input 0.1, compute ..., ...".
std::string prediction_text(const Prediction& prediction);

}  // namespace sluice::train::planner
