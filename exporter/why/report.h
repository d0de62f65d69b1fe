// What `sluice why` prints.
#pragma once

#include <string>
#include <vector>

#include "exporter/idle/account.h"

namespace sluice::exporter {

struct WhyRow {
  std::uint64_t tenant = 0;
  std::string name;
  std::string gpu;
  IdleFigures figures;
};

struct WhyReport {
  bool coarse = false;     // sampled, not traced
  std::string reason;      // why it is coarse
  std::uint64_t lost = 0;  // periods of threads that nobody read in time
  std::vector<WhyRow> rows;
};

/// Bars, longest cause first, with what can be done about the longest; ends with a newline.
std::string why_text(const WhyReport& report);
/// One object: source, periods_lost, tenants[{tenant, name, gpu, accounted_ns, busy_ns,
/// unseen_ns, idle_ns{cause: ns}}].
std::string why_json(const WhyReport& report);

}  // namespace sluice::exporter
