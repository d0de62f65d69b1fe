// Jobs that a file describes, as an experiment: what the simulator says of one's own mixture, and
// of what benchmarks run as processes.
#pragma once

#include <istream>
#include <optional>
#include <string>

#include "broker/sim/sim.h"

namespace sluice::sim {

/// Reads JSON: {"jobs": [...]} with, for each job, `name`, `percent` (1 to 100), `class`
/// ("inference", "batch" or "debug"; default batch), `mode` ("best-effort", "equal" or "fixed";
/// default best-effort), `program` and its `kernel_us`:
///   loop      kernels, `depth` in flight (4)
///   bursts    `kernels` (10), a synchronisation, a pause of `pause_us` on average
///   graphs    graphs of `kernels`, `depth` graphs in flight (2)
///   sync      a kernel, a synchronisation, again
///   requests  `kernels` at random times, `gap_us` on average
/// All are on one GPU, want it from the start, and have the broker's default settings. Null where
/// the text is not that, with `error` set: which job, and what is wrong with it.
std::optional<Experiment> jobs_read(std::istream& text, std::uint64_t seed, std::string* error);

}  // namespace sluice::sim
