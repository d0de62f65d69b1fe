// The kinds of programs, and the figures of a run.
#include "broker/sim/shares.h"

#include <cmath>
#include <cstdio>

#include "broker/sim/scenarios.h"

namespace sluice::sim {
namespace {

constexpr Nanos kMicro = 1'000;
constexpr const char* kProgramNames[kProgramKinds] = {"equal",  "unequal",     "bursty",
                                                      "graphs", "launch-sync", "mixed"};
constexpr Nanos kUnequalKernelNs[] = {200 * kMicro, 5'000 * kMicro, 1'000 * kMicro,
                                      12'000 * kMicro};

void program_set(JobSpec& job, Programs programs, std::size_t number) {
  switch (programs) {
    case Programs::kEqual:
      break;
    case Programs::kUnequal:
      job.kernel_ns = kUnequalKernelNs[number % std::size(kUnequalKernelNs)];
      job.kernel_jitter = 0.5;
      break;
    case Programs::kBursty:
      job.behaviour = Behaviour::kBursts;
      job.kernels = 40;
      job.think_ns = 200 * kMicro;
      break;
    case Programs::kGraphs:
      job.launch_kernels = 4;
      break;
    case Programs::kLaunchSync:
      job.queue_depth = 1;
      job.host_ns = 5 * kMicro;
      break;
    case Programs::kMixed:
      program_set(job, static_cast<Programs>(1 + number % (kProgramKinds - 2)), number);
  }
}

std::string row(const std::vector<std::uint32_t>& split, Programs programs, core::Order order,
                SmMode mode, std::uint64_t seed) {
  Experiment setup = setup_programs(split, programs, seed);
  setup.policy.order = order;
  setup.duration_ns = 30'000'000'000;
  std::string targets;
  std::string achieved;
  std::string errors;
  for (JobSpec& job : setup.jobs) job.sm_mode = mode;
  const Result result = simulate(setup);
  for (std::size_t i = 0; i < split.size(); ++i) {
    const ShareFigures got = share_figures(result.jobs[i], split[i] / 100.0, setup.window_ns);
    char text[32];
    std::snprintf(text, sizeof text, "%s%u", i == 0 ? "" : "/", split[i]);
    targets += text;
    std::snprintf(text, sizeof text, "%7.2f", 100 * got.mean);
    achieved += text;
    std::snprintf(text, sizeof text, "%6.2f", 100 * got.absolute_error);
    errors += text;
  }
  char text[160];
  std::snprintf(text, sizeof text, "%-12s %-12s %-29s %s\n", targets.c_str(),
                programs_name(programs), achieved.c_str(), errors.c_str());
  return text;
}

}  // namespace

const char* programs_name(Programs programs) {
  return kProgramNames[static_cast<std::size_t>(programs)];
}

std::span<const std::vector<std::uint32_t>> share_splits() {
  static const std::vector<std::uint32_t> splits[] = {
      {50, 50}, {30, 70}, {10, 90}, {25, 25, 50}, {10, 20, 30, 40}};
  return splits;
}

Experiment setup_programs(const std::vector<std::uint32_t>& percents, Programs programs,
                          std::uint64_t seed) {
  Experiment setup = setup_shares(percents, seed);
  for (std::size_t i = 0; i < setup.jobs.size(); ++i) {
    setup.jobs[i].kernel_jitter = 0;
    program_set(setup.jobs[i], programs, i);
  }
  return setup;
}

ShareFigures share_figures(const JobResult& job, double target, Nanos window_ns) {
  const std::vector<Nanos>& windows = job.window_busy_ns[0];
  ShareFigures result;
  for (Nanos busy : windows) {
    const double share = static_cast<double>(busy) / static_cast<double>(window_ns);
    result.mean += share / static_cast<double>(windows.size());
    result.absolute_error += std::abs(share - target) / static_cast<double>(windows.size());
  }
  return result;
}

std::string share_table(core::Order order, SmMode mode, std::uint64_t seed) {
  std::string table =
      "target, %    programs     achieved, %                   mean absolute error "
      "of windows of 1 s, % of the GPU\n";
  for (const auto& split : share_splits())
    for (std::size_t kind = 0; kind < kProgramKinds; ++kind)
      table += row(split, static_cast<Programs>(kind), order, mode, seed);
  return table;
}

}  // namespace sluice::sim
