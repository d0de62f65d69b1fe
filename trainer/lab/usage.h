// GPU time by tenant as the broker accounts it: the figure of scenes on real GPUs, where no device
// account exists.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sluice::lab {

struct Usage {
  std::vector<std::string> gpus;  // UUIDs in the broker's order
  std::map<std::string, std::vector<double>>
      by_tenant;  // name -> GPU seconds by GPU; tenants of one name add up
  double seconds(const std::string& tenant, std::size_t gpu) const;
};

/// Asks the broker at `socket`; nothing when there is none.
std::optional<Usage> usage_read(const std::string& socket);

}  // namespace sluice::lab
