// Observes the processes that tenants registered, through BPF programs in the kernel. Needs the
// rights to load them; where it cannot, or was built without, it says why in one sentence and the
// exporter goes on without. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exporter/collect.h"

namespace sluice::exporter {

class Watch {
 public:
  virtual ~Watch() = default;

  /// Watches exactly these processes from now on; what ended or left is added up under its tenant
  /// first. Tenants without a process in the list keep their figures as long as they are in
  /// `tenants`.
  virtual void watch_set(const std::vector<protocol::SnapshotProcess>& processes,
                         const std::vector<protocol::SnapshotTenant>& tenants) = 0;
  /// Adds what was seen to `out` (exits since loading, figures per tenant).
  virtual void figures_read(WatchFigures& out) = 0;
};

/// Loads and attaches the programs. On failure null, and `reason` says why and what to do.
std::unique_ptr<Watch> watch_open(std::string* reason);

/// Whether this build contains the programs at all.
bool watch_built();

}  // namespace sluice::exporter
