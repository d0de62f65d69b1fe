// What the device tells of itself and of its clients: one consistent copy of the accounts, and who
// has used it lately. Totals are sums of the accounts, never stored, so that no death can make them
// disagree. See device.h.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "softgpu/device/device.h"

namespace softgpu::device {
namespace {

constexpr std::uint64_t kRecent = 10;  // complete windows: one second

void totals_add(Snapshot& snapshot, const Account& account) {
  snapshot.busy_ns += account.busy_ns;
  snapshot.sm_ns += account.sm_ns;
  snapshot.lag_ns += account.lag_ns;
}

void recent_read(const Segment& segment, Snapshot& snapshot) {
  const auto present = static_cast<std::uint64_t>(segment.now_ns) / kWindowNs;
  for (std::uint64_t number = present - kRecent; number < present; ++number) {
    if (segment.window_number[number % kWindows] != number) continue;
    snapshot.recent_busy_ratio += segment.window_busy_ns[number % kWindows] / (kRecent * kWindowNs);
    snapshot.recent_copy_ratio += segment.window_copy_ns[number % kWindows] / (kRecent * kWindowNs);
  }
  snapshot.recent_busy_ratio = std::min(snapshot.recent_busy_ratio, 1.0);
  snapshot.recent_copy_ratio = std::min(snapshot.recent_copy_ratio, 1.0);
}

std::uint64_t shared_bytes(const Segment& segment, std::uint32_t client) {
  std::uint64_t bytes = 0;
  shared_each(segment, [&](const Shared& object) {
    if (object.owner == client && bit_get(object.holders, client)) bytes += object.bytes;
  });
  return bytes;
}

/// Pids of clients as this process may know them. Those of other pid namespaces are searched for
/// once: a pid does not change while its process lives, and a life has one process.
class PidsFound {
 public:
  static PidsFound& all() {
    static auto* found = new PidsFound;
    return *found;
  }
  /// Of an ended process in another namespace only what was found while it lived is known.
  /// `here` is the caller's namespace.
  int pid(std::uint64_t here, const Segment* segment, const Account& account, bool alive) {
    if (account.space == here) return account.pid;
    const std::lock_guard lock(mutex_);
    if (here_ != here || pids_.size() >= kPidsMax) pids_.clear();
    here_ = here;
    const auto known = pids_.find({segment, account.life});
    if (known != pids_.end()) return known->second;
    if (!alive) return 0;
    return pids_[{segment, account.life}] =
               process_pid({account.pid, account.space}, account.start_ticks);
  }

 private:
  static constexpr std::size_t kPidsMax = 2 * kEndedMax;
  std::mutex mutex_;
  std::uint64_t here_ = 0;
  std::map<std::pair<const Segment*, std::uint32_t>, int> pids_;
};

}  // namespace

Snapshot Device::snapshot() {
  Snapshot result;
  snapshot_take(result);
  const std::uint64_t here = process_named(getpid()).space;
  for (Snapshot::Process& process : result.processes)
    process.pid = PidsFound::all().pid(here, segment_, process.account, process.alive);
  return result;
}

void Device::snapshot_take(Snapshot& result) {
  const Lock lock(*this);
  reap_locked();
  const Segment& segment = *segment_;
  std::memcpy(result.uuid, segment.uuid, sizeof result.uuid);
  result.index = segment.index;
  result.capacity_bytes = segment.memory_bytes;
  result.used_bytes = used_locked();
  result.peak_bytes = segment.memory_peak_bytes;
  result.elapsed_ns = segment.now_ns - segment.created_ns;
  result.lost = segment.lost != 0;
  recent_read(segment, result);
  for (std::uint32_t client = 0; client < kClientsMax; ++client) {
    if (segment.clients[client].life == 0) continue;
    Snapshot::Process process{segment.clients[client], true, 0};
    process.account.memory_bytes += shared_bytes(segment, client);
    process.account.memory_peak_bytes =
        std::max(process.account.memory_peak_bytes, process.account.memory_bytes);
    totals_add(result, process.account);
    result.processes.push_back(process);
  }
  const std::uint64_t oldest =
      segment.ended_count - std::min<std::uint64_t>(segment.ended_count, kEndedMax);
  for (std::uint64_t i = std::max(oldest, segment.forgotten_count); i < segment.ended_count; ++i) {
    result.processes.push_back({segment.ended[i % kEndedMax], false, 0});
    totals_add(result, result.processes.back().account);
  }
  result.forgotten = segment.forgotten[segment.forgotten_count % 2];
  totals_add(result, result.forgotten);
}

std::vector<Use> Device::uses(double since_ns) {
  std::vector<Account> accounts;
  std::vector<Use> result = uses_take(since_ns, accounts);
  const std::uint64_t here = process_named(getpid()).space;
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i].pid = PidsFound::all().pid(here, segment_, accounts[i], true);
  std::erase_if(result, [](const Use& use) { return use.pid == 0; });
  return result;
}

/// One use for each client that has been busy, and its account.
std::vector<Use> Device::uses_take(double since_ns, std::vector<Account>& accounts) {
  const Lock lock(*this);
  reap_locked();
  const Segment& segment = *segment_;
  const auto present = static_cast<std::uint64_t>(segment.now_ns) / kWindowNs;
  // A window counts when it ended after `since_ns`; half a microsecond of rounding is forgiven.
  const double since =
      std::max(since_ns, static_cast<double>((present - kWindows + 1) * kWindowNs));
  const auto first =
      static_cast<std::uint64_t>(since / static_cast<double>(kWindowNs) + 0.5e3 / kWindowNs);
  std::vector<Use> result;
  for (std::uint32_t client = 0; client < kClientsMax; ++client) {
    if (segment.clients[client].life == 0) continue;
    Use use;
    for (std::uint64_t number = first; number < present; ++number) {
      if (segment.window_number[number % kWindows] != number) continue;
      const double busy = segment.window_client_ns[number % kWindows][client];
      use.ratio += busy;
      if (busy > 0) use.until_ns = static_cast<double>((number + 1) * kWindowNs);
    }
    if (use.until_ns <= 0) continue;
    use.ratio = std::min(1.0, use.ratio / static_cast<double>((present - first) * kWindowNs));
    result.push_back(use);
    accounts.push_back(segment.clients[client]);
  }
  return result;
}

}  // namespace softgpu::device
