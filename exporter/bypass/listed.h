// Which process a number in NVML's list means. The memory of a process may outlive it, and is then
// listed under its number, which another process may have by now.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "exporter/bypass/process_name.h"
#include "exporter/idle/proc.h"

namespace sluice::exporter {

class ListedProcesses {
 public:
  /// Ticks at which a process started; 0 where there is none.
  using StartTicks = std::function<std::uint64_t(std::uint32_t pid)>;
  explicit ListedProcesses(StartTicks start_ticks = start_ticks_of)
      : start_ticks_(std::move(start_ticks)) {}

  /// `pids`: all that are listed now. Returns those that live, without those that came to a number
  /// which was already listed.
  std::vector<ProcessName> look(const std::set<std::uint32_t>& pids);

 private:
  StartTicks start_ticks_;
  // By number, for as long as it is listed: the process of the first look.
  std::map<std::uint32_t, std::uint64_t> first_;
};

}  // namespace sluice::exporter
