// How full the rules of placement get a machine, and how much of what is left is of no use.
//
// Requests are drawn from a list of pods and arrive one after the other; none leaves, and one that
// does not fit is turned away. The figures are those of Weng et al., "Beware of Fragmentation:
// Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023), whose
// rule stands beside ours as what is possible: it knows the whole list of pods, and ours do not.
#pragma once

#include <array>
#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "broker/core/core.h"

namespace sluice::sim {

/// A request for GPUs: a part of one, or several whole ones.
struct Pod {
  std::uint32_t gpus = 1;
  std::uint32_t percent = 100;  // of each
};

/// Reads the columns num_gpu and gpu_milli of a table of pods with a header, as in Alibaba's
/// cluster-trace-gpu-v2023. Pods without a GPU, or with more than a job may have, are left out.
/// On failure *error says what is wrong, and the list is empty.
std::vector<Pod> pods_read(std::istream& in, std::string* error);

enum class PackingRule : std::uint8_t { kSpread, kPack, kGradient };
constexpr std::array<PackingRule, 3> kPackingRules{PackingRule::kSpread, PackingRule::kPack,
                                                   PackingRule::kGradient};
/// "spread", "pack", or "gradient" for the fragmentation gradient descent.
const char* packing_rule_name(PackingRule rule);

/// Parts of the machine's GPUs: 0 to 1.
struct Packing {
  double allocated_at_100 = 0;  // in use when as much as the machine has was asked for,
  double allocated_at_130 = 0;  // and when 1.3 times as much was
  double useless_at_100 = 0;    // and what is free at the former and a pod of the list cannot use
};

/// One machine with so many GPUs; the core decides, but for kGradient. Precondition: pods is not
/// empty, gpus is 1 to 64.
Packing packing_run(const std::vector<Pod>& pods, PackingRule rule, std::uint32_t gpus,
                    std::uint64_t seed);

/// The mean of `runs` runs, by rule, as a table with the standard deviations.
std::string packing_table(const std::vector<Pod>& pods, std::uint32_t gpus, std::uint64_t seed,
                          std::uint32_t runs);

}  // namespace sluice::sim
