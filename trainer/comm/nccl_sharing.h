// What NCCL must be told so that it takes several ranks on one GPU. It refuses two ranks of one
// host on one GPU, and it takes ranks with different NCCL_HOSTIDs for ranks of different hosts;
// those speak over the network, which on one machine is a socket on the loopback.
#pragma once

#include <string>
#include <vector>

namespace sluice::train {

struct NcclVariable {
  const char* name;
  std::string value;
};

/// Of a rank that shares its GPU. `job` is the same for all ranks and no other job's; `interface`
/// is where the machines of the job reach each other, "lo" where there is but one.
std::vector<NcclVariable> nccl_sharing_variables(const std::string& job, int rank,
                                                 const std::string& interface);

/// Sets those that are not in the environment yet: what the user has set stays. Before NCCL's first
/// call, which reads them, and while this process has one thread.
void nccl_sharing_set(const std::vector<NcclVariable>& variables);

}  // namespace sluice::train
