#include "exporter/bypass/leaver_time.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace sluice::exporter {

void LeaverTime::add(std::uint32_t uid, std::uint64_t begin_ns, std::uint64_t end_ns) {
  if (end_ns <= begin_ns) return;
  Spans& spans = users_[uid];
  auto at = spans.upper_bound(begin_ns);
  if (at != spans.begin() && std::prev(at)->second >= begin_ns) --at;
  while (at != spans.end() && at->first <= end_ns) {
    begin_ns = std::min(begin_ns, at->first);
    end_ns = std::max(end_ns, at->second);
    at = spans.erase(at);
  }
  spans.emplace(begin_ns, end_ns);
  if (spans.size() > kSpansMax) spans.erase(spans.begin());
}

void LeaverTime::forget(std::uint64_t before_ns) {
  for (auto& [uid, spans] : users_) {
    while (!spans.empty() && spans.begin()->second <= before_ns) spans.erase(spans.begin());
    if (spans.empty() || spans.begin()->first >= before_ns) continue;
    const std::uint64_t end_ns = spans.begin()->second;
    spans.erase(spans.begin());
    spans.emplace(before_ns, end_ns);
  }
  std::erase_if(users_, [](const auto& row) { return row.second.empty(); });
}

std::uint64_t LeaverTime::of(std::uint32_t uid) const {
  const auto found = users_.find(uid);
  if (found == users_.end()) return 0;
  return std::accumulate(
      found->second.begin(), found->second.end(), std::uint64_t{0},
      [](std::uint64_t sum, const auto& span) { return sum + span.second - span.first; });
}

bool LeaverTime::is_any(std::uint64_t least_ns, std::uint64_t since_ns) const {
  return std::any_of(users_.begin(), users_.end(), [&](const auto& row) {
    return row.second.rbegin()->second > since_ns && of(row.first) >= least_ns;
  });
}

}  // namespace sluice::exporter
