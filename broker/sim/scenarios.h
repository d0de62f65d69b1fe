// The named situations that the program and the tests run. Each is a Experiment; a seed varies what
// is random in it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "broker/sim/sim.h"

namespace sluice::sim {

struct Scenario {
  const char* name;
  const char* what;  // one line for people
  Experiment (*make)(std::uint64_t seed);
};

std::span<const Scenario> scenarios();
/// By name; nothing where there is none.
std::optional<Experiment> scenario_make(const std::string& name, std::uint64_t seed);

/// The policy that scenarios start from: an inference window of 1 ms and otherwise the defaults.
core::Policy policy_usual();
/// One GPU, batch tenants that always want, with these shares.
Experiment setup_shares(const std::vector<std::uint32_t>& percents, std::uint64_t seed);
/// Inference at this load (requests of ten 1 ms kernels), beside a batch tenant of 1 ms kernels or
/// alone.
Experiment setup_priority(double load, bool batch, std::uint64_t seed);
/// A gang over all GPUs whose collectives have a part on the host, beside inference of 40 % and
/// debugging on each, all on a busy host. Percentages are guaranteed. As it stands: the situation
/// in which training that was promised 40 % had 17.5 with processes.
struct GangSetup {
  std::uint32_t gpus = 2;
  std::uint32_t percent = 40;
  bool weight = false;  // percent is no guarantee
  std::uint32_t step_kernels = 4;
  Nanos step_kernel_ns = 1'000'000;
  Nanos collective_ns = 300'000;
  Nanos collective_host_ns = 300'000;
  double load = 0.44;  // of inference on each GPU; 0 = there is none
  Nanos serve_kernel_ns = 30'000'000;
  std::uint32_t serve_kernels = 1;   // per request
  std::uint32_t debug_percent = 20;  // 0 = there is none
  Nanos debug_kernel_ns = 30'000'000;
  Nanos debug_think_ns = 60'000'000;  // 0 = it always wants
};
Experiment setup_gang(const GangSetup& gang, std::uint64_t seed);
/// One GPU of 8 GiB and so many swappable batch tenants, each with this part of its memory and so
/// many kernels of 1 ms to do.
Experiment setup_oversold(std::uint32_t tenants, std::uint32_t memory_percent,
                          std::uint64_t kernels, std::uint64_t seed);
/// A fixed 90 % that always wants beside a fixed 5 % of another user with so many processes, each
/// of which launches an endless kernel at once; `again`: the job is started anew whenever it was
/// ended.
Experiment setup_endless(std::uint32_t processes, bool again, std::uint64_t seed);
/// 75 % that always want beside so many tenants that share 25 % and launch bursts of this length.
Experiment setup_bursts(Nanos burst_ns, std::uint32_t bursting, std::uint64_t seed);
/// A tenant of half the GPU whose processes are stopped for so long, a tenth of a second after each
/// stop again, beside another of half.
Experiment setup_pulses(Nanos stop_ns, std::uint64_t seed);
/// Anything at once: every class, mode and behaviour, crashes, liars, endless kernels, on one to
/// four GPUs.
Experiment setup_chaos(std::uint64_t seed);
/// Thousands of tenants of all classes.
Experiment setup_multitude(std::uint64_t seed);
/// setup_chaos with a broker that dies now and then and another that reads its journal.
Experiment setup_restarts(std::uint64_t seed);

}  // namespace sluice::sim
