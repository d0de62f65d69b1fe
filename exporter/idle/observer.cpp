#include "exporter/idle/observer.h"

#include <algorithm>

#include "exporter/clock.h"
#include "exporter/idle/proc.h"

namespace sluice::exporter {
namespace {

// How far back threads are remembered where an account cannot go on, and how much longer than
// anybody asks otherwise.
constexpr std::uint64_t kRememberMaxNs = 60'000'000'000;
constexpr std::uint64_t kRememberMinNs = 1'000'000'000;
// Of a process's ancestors; more is no tree of processes but a chain somebody builds.
constexpr int kAncestorsMax = 32;

}  // namespace

IdleObserver::IdleObserver(std::unique_ptr<ThreadWatch> watch,
                           std::unique_ptr<ActivitySource> source)
    : watch_(std::move(watch)), source_(std::move(source)), history_(thread_letter) {}

void IdleObserver::tenants_set(const Snapshot& snapshot) {
  std::map<protocol::TenantId, Tenant> living;
  std::vector<std::uint32_t> watched;
  for (const protocol::SnapshotTenant& row : snapshot.tenants) {
    if (row.tenant == 0 || row.tenant_class == protocol::TenantClass::kExclusive) continue;
    auto& tenant = living[row.tenant];
    if (const auto found = tenants_.find(row.tenant); found != tenants_.end())
      tenant = std::move(found->second);
    if (tenant.page == nullptr) {
      const int fd = source_->activity_fd(row.tenant);
      if (fd >= 0) tenant.page = ActivityPage::open(fd);
    }
    tenant.registered.clear();
    tenant.gpus.clear();
  }
  for (const auto& row : snapshot.tenant_gpus) {
    const auto found = living.find(row.tenant);
    if (found == living.end()) continue;
    Tenant& tenant = found->second;
    tenant.gpus.push_back(uuid_text(row.gpu));
    if (tenant.accounts.size() < tenant.gpus.size()) tenant.accounts.emplace_back(monotonic_ns());
  }
  owners_.clear();
  for (const auto& row : snapshot.processes) {
    const auto found = living.find(row.tenant);
    if (found == living.end()) continue;
    found->second.registered.insert(row.pid);
    owners_[row.pid] = row.tenant;
    watched.push_back(row.pid);
  }
  for (auto& [id, tenant] : living) tenant.processes = tenant.registered;
  tenants_ = std::move(living);
  watch_->processes_set(watched);
}

// A process that no tenant registered belongs to the nearest ancestor's.
protocol::TenantId IdleObserver::tenant_of(std::uint32_t process) {
  const auto known = owners_.find(process);
  if (known != owners_.end()) return known->second;
  protocol::TenantId owner = 0;
  std::uint32_t at = process;
  for (int depth = 0; depth < kAncestorsMax && at > 1; ++depth) {
    at = process_parent(at);
    const auto found = owners_.find(at);
    if (found == owners_.end()) continue;
    owner = found->second;
    break;
  }
  return owners_[process] = owner;
}

void IdleObserver::look() {
  const std::uint64_t now_ns = monotonic_ns();
  std::map<protocol::TenantId, std::vector<ProcessNews>> news;
  for (auto& [id, tenant] : tenants_) {
    if (tenant.page == nullptr) continue;
    news[id] = tenant.page->news(now_ns);
    for (const ProcessNews& one : news[id])
      for (const ToldWait& wait : one.waits) history_.wait_add(wait);
  }
  std::vector<OffCpu> periods;
  const std::uint64_t known_ns = std::min(now_ns, watch_->periods_read(periods));
  history_.periods_add(periods);
  for (const OffCpu& period : periods) {
    const protocol::TenantId owner = tenant_of(period.process);
    if (const auto found = tenants_.find(owner); found != tenants_.end())
      found->second.processes.insert(period.process);
  }
  std::uint64_t asked_ns = now_ns;
  for (auto& [id, tenant] : tenants_) {
    if (tenant.page == nullptr) continue;
    for (std::size_t gpu = 0; gpu < tenant.accounts.size(); ++gpu) {
      std::vector<ProcessTold> told;
      for (const ProcessNews& one : news[id]) told.push_back({one.process, one.gpus[gpu]});
      tenant.accounts[gpu].advance(std::move(told), known_ns, history_, tenant.processes);
      asked_ns = std::min(asked_ns, tenant.accounts[gpu].done_ns());
    }
  }
  const std::uint64_t oldest_ns = now_ns > kRememberMaxNs ? now_ns - kRememberMaxNs : 0;
  const std::uint64_t keep_ns = asked_ns > kRememberMinNs ? asked_ns - kRememberMinNs : 0;
  history_.forget(std::max(oldest_ns, keep_ns));
}

IdleTable IdleObserver::figures() const {
  IdleTable out;
  for (const auto& [id, tenant] : tenants_) {
    for (std::size_t gpu = 0; gpu < tenant.gpus.size() && gpu < tenant.accounts.size(); ++gpu)
      out[{id, tenant.gpus[gpu]}] = tenant.accounts[gpu].figures();
  }
  return out;
}

std::uint64_t IdleObserver::periods_lost() const { return watch_->lost(); }

}  // namespace sluice::exporter
