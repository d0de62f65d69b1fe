// See nccl_sharing.h.
#include "trainer/comm/nccl_sharing.h"

#include <cstdlib>

namespace sluice::train {

std::vector<NcclVariable> nccl_sharing_variables(const std::string& job, int rank,
                                                 const std::string& interface) {
  return {{"NCCL_HOSTID", job + "-" + std::to_string(rank)},
          // Neither way is open between hosts, so NCCL must not find one by the GPU's bus.
          {"NCCL_P2P_DISABLE", "1"},
          {"NCCL_SHM_DISABLE", "1"},
          {"NCCL_NET", "Socket"},
          {"NCCL_SOCKET_IFNAME", interface}};
}

void nccl_sharing_set(const std::vector<NcclVariable>& variables) {
  for (const NcclVariable& one : variables) setenv(one.name, one.value.c_str(), 0);
}

}  // namespace sluice::train
