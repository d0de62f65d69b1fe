// Jobs that own whole GPUs, as `sluice why` sees them: nothing is metered there, so all that can be
// told is how busy the driver says the GPU is.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exporter/devices.h"
#include "exporter/snapshot.h"
#include "exporter/why/report.h"

namespace sluice::exporter {

class WholeGpus {
 public:
  /// Who is there now; of those who have left the rows stay as they are.
  void tenants_set(const Snapshot& snapshot, std::uint64_t now_ns);
  /// Asks the driver, if there is anybody.
  void look(std::uint64_t now_ns);
  std::vector<WhyWholeRow> rows() const;

 private:
  struct Entry {
    WhyWholeRow row;
    std::uint64_t since_ns = 0;
    bool is_there = false;
  };
  std::map<std::pair<protocol::TenantId, std::string>, Entry> entries_;
  std::unique_ptr<Devices> devices_;
  bool opened_ = false;
};

}  // namespace sluice::exporter
