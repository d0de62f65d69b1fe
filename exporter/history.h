// What can only be told from several looks at the broker: shares of the last seconds, and how long
// those waited who came in. Pure; keeps counters of ten seconds and nothing longer than its tenant.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "exporter/snapshot.h"

namespace sluice::exporter {

/// Shares are over about so long, or less where less was seen.
inline constexpr std::uint64_t kShareWindow_ns = 10'000'000'000;
/// Looks that follow each other faster add nothing.
inline constexpr std::uint64_t kLookEvery_ns = 500'000'000;
inline constexpr std::size_t kReasons = protocol::kQueueReasons;
inline constexpr std::array<double, 8> kWaitBounds_s{0.01, 0.1, 1, 10, 60, 300, 1800, 7200};

struct WaitHistogram {
  std::array<std::uint64_t, kWaitBounds_s.size() + 1> counts{};  // the last: beyond all bounds
  double sum_s = 0;
};

struct RecentShare {
  double achieved = 0;  // of the GPU's time
  bool waited = false;  // for its turn, at some moment of the window
};

/// By the GPU's UUID as text.
using VgpuKey = std::pair<protocol::TenantId, std::string>;

struct RecentFigures {
  std::map<std::string, double> gpu_time;  // fraction of the window in which work ran
  std::map<VgpuKey, RecentShare> shares;
  std::array<WaitHistogram, kReasons> waits;  // by what was waited for; since the exporter started
};

class History {
 public:
  void look(const Snapshot& snapshot);
  RecentFigures figures() const;

 private:
  struct Counters {
    std::uint64_t busy_ns = 0, gate_wait_ns = 0;
  };
  struct Look {
    std::uint64_t taken_ns = 0;
    std::map<std::string, std::uint64_t> gpu_busy_ns;
    std::map<VgpuKey, Counters> vgpus;
  };
  using Asker = std::pair<std::uint32_t, std::uint64_t>;  // uid, and when it asked

  void waits_look(const Snapshot& snapshot);

  std::deque<Look> looks_;
  std::uint64_t broker_started_ns_ = 0;
  std::optional<std::set<protocol::TenantId>> known_;
  std::map<Asker, std::size_t> queued_;  // the reason last seen
  std::array<WaitHistogram, kReasons> waits_;
};

}  // namespace sluice::exporter
