// Jobs that a file describes, as an experiment: what the simulator says of one's own mixture, and
// of what benchmarks run as processes.
#pragma once

#include <istream>
#include <optional>
#include <string>

#include "broker/sim/sim.h"

namespace sluice::sim {

/// Reads JSON: {"jobs": [...]} with, for each job, `name`, `percent` (1 to 100; guaranteed, or with
/// `"weight": true` a weight), `class` ("inference", "batch" or "debug"; default batch), `mode`
/// ("best-effort", "equal" or "fixed"; default best-effort), `gpu` (its index; default: the broker
/// places the job), `program`, its `kernel_us`, and `jitter_percent` (0; each kernel is longer or
/// shorter by up to so much):
///   loop      kernels, `depth` in flight (4)
///   bursts    `kernels` (10), a synchronisation, a pause of `pause_us` on average
///   graphs    graphs of `kernels`, `depth` graphs in flight (2)
///   sync      a kernel, a synchronisation, again
///   requests  `kernels` at random times, `gap_us` on average
///   training  a rank on each of `gpus` (all); a step is `kernels` (10) and a collective, in which
///             each rank spins for the others and then works for `collective_us` (500); before and
///             after it `host_us` (0) with nothing on the GPU
/// Beside "jobs": `gpus` of the machine (1), `window_ms` (1000), for which shares are recorded, and
/// `busy_host` (false; waiters wake up late).
/// All jobs start at once and have the broker's default settings. Returns null where the text is
/// not that, with `error` set: which job, and what is wrong with it.
std::optional<Experiment> jobs_read(std::istream& text, std::uint64_t seed, std::string* error);

}  // namespace sluice::sim
