// Tells the broker how the job goes, where there is one: a JobReport of cumulative counters at most
// once a second. Where there is none, or it does not listen, nothing happens. All that the trainer
// knows of the broker is here and in gang.h.
#pragma once

#include <cstdint>

#include "trainer/base/clock.h"

namespace sluice::train {

struct JobFigures {
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;
  std::uint64_t tokens = 0;  // of text; 0 else
  Nanos exposed_communication_ns = 0;
  double straggler_score = 1;  // slowest rank's median compute time over the median of all ranks
  int rank_count = 1;
};

/// Whether the broker started this process, so that what the driver says of memory is a quota.
bool job_has_quota();

class JobReporter {
 public:
  JobReporter();
  ~JobReporter();
  JobReporter(const JobReporter&) = delete;
  JobReporter& operator=(const JobReporter&) = delete;

  /// Sends when it is time to, or always when `last`. Never waits.
  void report(const JobFigures& figures, bool last);

 private:
  bool connect();

  bool wanted_ = false;
  std::uint64_t tenant_ = 0;
  std::uint64_t key_ = 0;
  int fd_ = -1;
  Nanos next_ns_ = 0;
};

}  // namespace sluice::train
