// What `sluice why` prints.
#pragma once

#include <string>
#include <vector>

#include "broker/protocol/words.h"
#include "exporter/idle/account.h"
#include "exporter/why/cgroup.h"

namespace sluice::exporter {

/// What a job may have of a GPU, and who had it meanwhile.
struct WhyShares {
  struct Holder {
    std::string name;
    std::uint64_t tenant = 0;
    std::string user;
    std::uint64_t ns = 0;
  };
  protocol::SmKind kind{};
  protocol::SmMode mode{};
  std::uint32_t percent = 0;     // its guarantee or weight; 0 = not known
  std::uint32_t guaranteed = 0;  // of the GPU, to all jobs
  std::uint32_t weights = 0;     // of all jobs there that have one, this one's too
  std::uint64_t watched_ns = 0;
  std::uint64_t own_ns = 0;    // in which it had the GPU,
  std::vector<Holder> others;  // and in which others had it; the longest first
};

struct WhyRow {
  std::uint64_t tenant = 0;
  std::string name;
  std::string gpu;     // its UUID,
  int gpu_index = -1;  // and as `sluice status` counts; -1 = not known
  IdleFigures figures;
  std::uint64_t watched_ns = 0;
  std::uint64_t owed_ns = 0;  // GPU time that it pays back, the most that was seen
  WhyShares shares;
  CgroupLook cgroup;           // of its first process, meanwhile
  double straggler_score = 0;  // the job's own report; 0 = it reports none
  // Of its processes, if it has several: who waited least for the network while its GPU was idle,
  // and how much the others did on average. 0 = not known.
  std::uint32_t least_waiting = 0;
  std::uint64_t least_wait_ns = 0, others_wait_ns = 0;
};

/// A GPU that a job owns as a whole: nothing is metered there, so there are no causes.
struct WhyWholeRow {
  std::uint64_t tenant = 0;
  std::string name;
  std::string gpu;     // its UUID,
  int gpu_index = -1;  // and as `sluice status` counts; -1 = not known
  std::uint64_t watched_ns = 0;
  double busy_sum = 0;      // of what the driver said in so many looks
  std::uint32_t looks = 0;  // 0 = it said nothing
};

struct WhyReport {
  bool coarse = false;       // sampled, not traced
  std::string reason;        // why it is coarse
  std::uint64_t lost = 0;    // periods of threads that nobody read in time
  std::uint64_t unseen = 0;  // jobs whose pages the broker does not give
  std::vector<WhyRow> rows;
  std::vector<WhyWholeRow> whole;
};

/// Bars, longest cause first, with what can be done about the longest; ends with a newline.
std::string why_text(const WhyReport& report);
/// One object: source, periods_lost, unseen_tenants, tenants[{tenant, name, gpu, accounted_ns,
/// busy_ns, unseen_ns, idle_ns{cause: ns}}], and what else is known: cgroup_..._ns,
/// owed_ns, shares{kind, percent, guaranteed_percent, weights, watched_ns, held_ns,
/// others[{tenant, name, user, held_ns}]}, straggler_score, least_waiting_process with
/// least_wait_ns and others_wait_ns; and whole_gpus[{tenant, name, gpu, watched_ns, busy_ratio or
/// null}].
std::string why_json(const WhyReport& report);

}  // namespace sluice::exporter
