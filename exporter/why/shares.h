// Which jobs had a GPU while `sluice why` watched, and what each may have of it, by the broker's
// books.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "exporter/snapshot.h"
#include "exporter/why/report.h"

namespace sluice::exporter {

class ShareWatch {
 public:
  /// Adds a snapshot, which has all jobs in it.
  void look(const Snapshot& snapshot);
  /// Returns what one job may have of one GPU; `percent` is 0 if it was not seen there.
  WhyShares shares(protocol::TenantId tenant, const std::string& gpu) const;

 private:
  struct Job {
    std::string name, user;
    bool takes_part = false;  // in the last snapshot, and not suspended
    protocol::SmMode mode{};
  };
  struct Part {
    protocol::SnapshotTenantGpu first{}, last{};
    std::uint64_t since_ns = 0, until_ns = 0;
    std::uint32_t guaranteed = 0;  // of the GPU, to all jobs, when this one was last there
  };
  std::map<protocol::TenantId, Job> jobs_;
  std::map<std::pair<std::string, protocol::TenantId>, Part> parts_;
};

}  // namespace sluice::exporter
