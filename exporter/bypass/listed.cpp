#include "exporter/bypass/listed.h"

namespace sluice::exporter {

std::vector<ProcessName> ListedProcesses::look(const std::set<std::uint32_t>& pids) {
  std::erase_if(first_, [&](const auto& one) { return !pids.contains(one.first); });
  std::vector<ProcessName> out;
  for (const std::uint32_t pid : pids) {
    const std::uint64_t now = start_ticks_(pid);
    const std::uint64_t first = first_.try_emplace(pid, now).first->second;
    if (now != 0 && now == first) out.push_back({pid, now});
  }
  return out;
}

}  // namespace sluice::exporter
