// The table of shares: tenants with given percentages, all of one kind of program, and how far what
// they got in windows of a second is from what they were promised. The tests hold it to limits, the
// program prints it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "broker/sim/sim.h"

namespace sluice::sim {

/// What the tenants do. All of them always have work, apart from pauses of the host.
enum class Programs : std::uint8_t {
  kEqual,       // kernels of 1 ms
  kUnequal,     // kernels of 0.2 to 12 ms, other ones for each tenant, each half longer or shorter
  kBursty,      // bursts of forty kernels, a synchronisation and a pause of 200 us on average
  kGraphs,      // graphs of four kernels, launched as one
  kLaunchSync,  // launch, synchronise, 5 us on the host, again
  kMixed,       // one of these each
};
inline constexpr std::size_t kProgramKinds = 6;
const char* programs_name(Programs);

/// 50/50, 30/70, 10/90, 25/25/50 and 10/20/30/40.
std::span<const std::vector<std::uint32_t>> share_splits();

/// Batch tenants of these percentages on one GPU.
Experiment setup_programs(const std::vector<std::uint32_t>& percents, Programs programs,
                          std::uint64_t seed);

struct ShareFigures {
  double mean = 0;            // of the windows, as a part of the GPU's time
  double absolute_error = 0;  // mean over the windows of |share - target|
};
ShareFigures share_figures(const JobResult& job, double target, Nanos window_ns);

/// The whole table for one order and mode, for people: thirty virtual seconds of every split and
/// kind.
std::string share_table(core::Order order, SmMode mode, std::uint64_t seed);

}  // namespace sluice::sim
