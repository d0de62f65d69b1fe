// Whose the GPU was while `sluice why` watched, and what each job there may have of it, by the
// broker's books.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "exporter/snapshot.h"
#include "exporter/why/report.h"

namespace sluice::exporter {

class ShareWatch {
 public:
  /// Each snapshot, with all jobs in it.
  void look(const Snapshot& snapshot);
  /// Of one job on one GPU; a percentage of 0 where it has not been seen there.
  WhyShares shares(protocol::TenantId tenant, const std::string& gpu) const;

 private:
  struct Who {
    std::string name, user;
    bool takes_part = false;  // in the last snapshot, and not suspended
    protocol::SmMode mode{};
  };
  struct Part {
    protocol::SnapshotTenantGpu first{}, last{};
    std::uint64_t since_ns = 0, until_ns = 0;
  };
  std::map<protocol::TenantId, Who> who_;
  std::map<std::pair<std::string, protocol::TenantId>, Part> parts_;
  std::map<std::string, std::uint32_t> guaranteed_;
};

}  // namespace sluice::exporter
