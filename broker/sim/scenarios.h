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
/// A gang of 40 % on two GPUs, with host time in its collectives, beside inference of 40 % at this
/// load and debugging of 20 % on each, whose kernels last 20 to 40 ms, all on a busy host.
Experiment setup_gang_long(double load, Nanos quantum_ns, std::uint64_t seed);
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
