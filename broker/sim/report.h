// A Result in words and numbers: a table for a terminal, JSON for programs.
#pragma once

#include <string>

#include "broker/sim/sim.h"

namespace sluice::sim {

struct ReportHead {
  std::string scenario;
  std::uint64_t seed = 0;
  Nanos duration_ns = 0;
};

std::string report_text(const ReportHead& head, const Result& result);
std::string report_json(const ReportHead& head, const Result& result);

}  // namespace sluice::sim
