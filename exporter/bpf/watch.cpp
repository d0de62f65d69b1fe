// The loader: probe, open, load, attach; then maps are read and written until the object is
// destroyed, which detaches all.
#include "exporter/bpf/watch.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>

#include <iterator>
#include <map>
#include <set>

#include "exporter/bpf/loading.h"
#include "exporter/bpf/watch_shared.h"
#include "watch.skel.h"

namespace sluice::exporter {
namespace {

struct Unload {
  void operator()(watch_bpf* skeleton) const { watch_bpf__destroy(skeleton); }
};
using Skeleton = std::unique_ptr<watch_bpf, Unload>;

void add(SchedFigures& sum, const watched_process& seen) {
  sum.switches += seen.switches;
  sum.sleeping_ns += seen.sleeping_ns;
  sum.runnable_ns += seen.runnable_ns;
}

class BpfWatch : public Watch {
 public:
  explicit BpfWatch(Skeleton skeleton)
      : skeleton_(std::move(skeleton)),
        watched_fd_(bpf_map__fd(skeleton_->maps.watched)),
        exits_fd_(bpf_map__fd(skeleton_->maps.exits)) {}

  void watch_set(const std::vector<protocol::SnapshotProcess>& processes,
                 const std::vector<protocol::SnapshotTenant>& tenants) override {
    std::map<std::uint32_t, protocol::TenantId> wanted;
    for (const auto& process : processes) wanted[process.pid] = process.tenant;
    for (auto at = tenants_.begin(); at != tenants_.end();) {
      const auto& [pid, tenant] = *at;
      const auto still = wanted.find(pid);
      const watched_process seen = entry_read(pid);
      const bool keep = still != wanted.end() && still->second == tenant && seen.ended == 0;
      if (!keep) {
        add(past_[tenant], seen);
        bpf_map_delete_elem(watched_fd_, &pid);
      }
      at = keep ? std::next(at) : tenants_.erase(at);
    }
    for (const auto& [pid, tenant] : wanted) {
      const watched_process fresh{};
      if (tenants_.size() >= WATCHED_MAX || tenants_.count(pid) != 0) continue;
      if (bpf_map_update_elem(watched_fd_, &pid, &fresh, BPF_ANY) == 0) tenants_[pid] = tenant;
    }
    std::set<protocol::TenantId> alive;
    for (const auto& tenant : tenants) alive.insert(tenant.tenant);
    std::erase_if(past_, [&](const auto& row) { return alive.count(row.first) == 0; });
  }

  void figures_read(WatchFigures& out) override {
    for (std::uint32_t i = 0; i < EXIT_COUNTS; ++i) {
      std::uint64_t count = 0;
      if (bpf_map_lookup_elem(exits_fd_, &i, &count) == 0) out.exits[i] = count;
    }
    out.tenants = past_;
    for (const auto& [pid, tenant] : tenants_) add(out.tenants[tenant], entry_read(pid));
  }

 private:
  watched_process entry_read(std::uint32_t pid) const {
    watched_process seen{};
    if (bpf_map_lookup_elem(watched_fd_, &pid, &seen) != 0) seen.ended = 1;
    return seen;
  }

  Skeleton skeleton_;
  int watched_fd_;
  int exits_fd_;
  std::map<std::uint32_t, protocol::TenantId> tenants_;  // of the watched processes
  std::map<protocol::TenantId, SchedFigures> past_;      // of processes that are watched no more
};

}  // namespace

bool watch_built() { return true; }

std::unique_ptr<Watch> watch_open(std::string* reason) {
  if (!bpf_possible(reason)) return nullptr;
  Skeleton skeleton(watch_bpf__open());
  if (skeleton == nullptr) {
    *reason = bpf_failure("open", errno);
    return nullptr;
  }
  if (const int rc = watch_bpf__load(skeleton.get()); rc != 0) {
    *reason = bpf_failure("load", -rc);
    return nullptr;
  }
  if (const int rc = watch_bpf__attach(skeleton.get()); rc != 0) {
    *reason = bpf_failure("attach", -rc);
    return nullptr;
  }
  *reason = "loaded";
  return std::make_unique<BpfWatch>(std::move(skeleton));
}

}  // namespace sluice::exporter
