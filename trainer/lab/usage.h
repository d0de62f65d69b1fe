// What jobs did with their GPUs as the broker accounts it: time used (the figure of scenes on real
// GPUs, where no device account exists), time granted, and time spent waiting for the grant. Short
// jobs come and go within a window and their tenants with them, so the broker is asked often and
// the last that was seen of each tenant counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sluice::lab {

/// One tenant on one GPU; seconds since the tenant began.
struct TenantUse {
  double busy_s = 0;    // work of it ran
  double held_s = 0;    // its lease was open
  double waited_s = 0;  // threads of it stood at a closed gate, summed over the threads
};

/// One look at the broker.
struct Usage {
  struct Tenant {
    std::string name;
    std::vector<TenantUse> gpus;  // in the broker's order
  };
  std::int64_t taken_ns = 0;  // CLOCK_MONOTONIC
  std::size_t gpu_count = 0;
  std::map<std::uint64_t, Tenant> tenants;  // by id; ids are never reused
};

/// Asks the broker at `socket`; nothing when there is none, or the socket is a stranger's.
std::optional<Usage> usage_read(const std::string& socket);

/// One look as a line of JSON, for the raw records.
std::string usage_format(const Usage& usage);

/// Adds up over a window what was seen of every tenant.
class UsageMeter {
 public:
  /// The first look is the window's begin: what tenants had done before it does not count.
  void look(const std::optional<Usage>& now);
  bool empty() const { return !begin_; }
  std::size_t gpu_count() const { return begin_ ? begin_->gpu_count : 0; }
  /// Of all tenants of this name (the jobs of one kind), over the window.
  TenantUse use(const std::string& name, std::size_t gpu) const;

 private:
  std::optional<Usage> begin_;
  std::map<std::uint64_t, Usage::Tenant> last_;
};

}  // namespace sluice::lab
