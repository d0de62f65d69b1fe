#include "exporter/idle/observer.h"

#include <algorithm>

#include "exporter/clock.h"

namespace sluice::exporter {
namespace {

// How far back threads are remembered where an account cannot go on, and how much longer than
// anybody asks otherwise.
constexpr std::uint64_t kRememberMaxNs = 60'000'000'000;
constexpr std::uint64_t kRememberMinNs = 1'000'000'000;
constexpr int kAskEvery = 30;
// Gaps of peers that wait to be explained; older ones are left out.
constexpr std::size_t kPeerGapsMax = 8192;

}  // namespace

IdleObserver::IdleObserver(std::unique_ptr<ThreadWatch> watch,
                           std::unique_ptr<ActivitySource> source)
    : watch_(std::move(watch)), source_(std::move(source)) {}

void IdleObserver::tenants_set(const Snapshot& snapshot) {
  std::map<protocol::TenantId, Tenant> living;
  std::vector<std::uint32_t> watched;
  for (const protocol::SnapshotTenant& row : snapshot.tenants) {
    if (row.tenant == 0 || row.tenant_class == protocol::TenantClass::kExclusive) continue;
    if (auto known = tenants_.extract(row.tenant); !known.empty()) living.insert(std::move(known));
    const auto state_now = [this](HostThread thread) { return watch_->letter_of(thread); };
    Tenant& tenant = living.try_emplace(row.tenant, state_now).first->second;
    if (tenant.page == nullptr && tenant.asked_ago++ % kAskEvery == 0) {
      const int fd = source_->activity_fd(row.tenant);
      if (fd >= 0) tenant.page = ActivityPage::open(fd);
      // What was before is nobody's account.
      if (tenant.page != nullptr) tenant.accounts.clear();
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
  for (auto& [id, tenant] : living) {
    tenant.processes = tenant.registered;
    std::erase_if(tenant.peer_waits,
                  [&](const auto& row) { return !tenant.registered.contains(row.first); });
  }
  tenants_ = std::move(living);
  watch_->processes_set(watched);
}

// A process that no tenant registered belongs to the one that it descends from. Remembered, so that
// one that has ended since is still known when its last periods are read.
protocol::TenantId IdleObserver::tenant_of(std::uint32_t process) {
  const auto known = owners_.find(process);
  if (known != owners_.end()) return known->second;
  const auto found = owners_.find(watch_->root_of(process));
  return owners_[process] = found == owners_.end() ? 0 : found->second;
}

void IdleObserver::look() {
  const std::uint64_t now_ns = monotonic_ns();
  std::map<protocol::TenantId, std::vector<ProcessNews>> news;
  for (auto& [id, tenant] : tenants_)
    if (tenant.page != nullptr) news[id] = tenant.page->news(now_ns);
  const std::uint64_t known_ns = periods_take(now_ns);
  for (auto& [id, tenant] : tenants_)
    if (tenant.page != nullptr) account(tenant, news[id], now_ns, known_ns);
}

// Gives each tenant the periods of its own processes; until when they are known.
std::uint64_t IdleObserver::periods_take(std::uint64_t now_ns) {
  std::vector<OffCpu> periods;
  const std::uint64_t known_ns = std::min(now_ns, watch_->periods_read(periods));
  std::map<protocol::TenantId, std::vector<OffCpu>> by_tenant;
  for (const OffCpu& period : periods) by_tenant[tenant_of(period.process)].push_back(period);
  for (const auto& [id, own] : by_tenant) {
    const auto found = tenants_.find(id);
    if (found == tenants_.end() || found->second.page == nullptr) continue;
    found->second.history.periods_add(own);
    for (const OffCpu& period : own) found->second.processes.insert(period.process);
  }
  return known_ns;
}

void IdleObserver::account(Tenant& tenant, const std::vector<ProcessNews>& news,
                           std::uint64_t now_ns, std::uint64_t known_ns) {
  // The page may name any process: waits are believed of those that the broker or the kernel counts
  // among the tenant's.
  for (const ProcessNews& one : news) {
    if (!tenant.processes.contains(one.process)) continue;
    for (const ToldWait& wait : one.waits) tenant.history.wait_add(wait);
  }
  peers_look(tenant, news, known_ns);
  std::uint64_t asked_ns = now_ns;
  for (std::size_t gpu = 0; gpu < tenant.accounts.size(); ++gpu) {
    std::vector<ProcessTold> told;
    for (const ProcessNews& one : news) told.push_back({one.process, one.gpus[gpu]});
    tenant.accounts[gpu].advance(std::move(told), known_ns, tenant.history, tenant.processes);
    asked_ns = std::min(asked_ns, tenant.accounts[gpu].done_ns());
  }
  const std::uint64_t oldest_ns = now_ns > kRememberMaxNs ? now_ns - kRememberMaxNs : 0;
  const std::uint64_t keep_ns = asked_ns > kRememberMinNs ? asked_ns - kRememberMinNs : 0;
  tenant.history.forget(std::max(oldest_ns, keep_ns));
}

void IdleObserver::peers_look(Tenant& tenant, const std::vector<ProcessNews>& news,
                              std::uint64_t known_ns) {
  if (news.size() < 2) return;
  for (const ProcessNews& one : news) {
    for (const GpuTold& told : one.gpus) {
      for (const GpuTold::Gap& gap : told.gaps)
        if (!gap.unseen) tenant.peer_gaps.emplace_back(one.process, gap);
    }
  }
  while (tenant.peer_gaps.size() > kPeerGapsMax) tenant.peer_gaps.pop_front();
  std::erase_if(tenant.peer_gaps, [&](const auto& row) {
    const auto& [process, gap] = row;
    const HostThread thread{process, gap.thread};
    if (gap.end_ns > known_ns || tenant.history.explained_until(thread, known_ns) < gap.end_ns)
      return false;
    const CauseTimes times =
        tenant.history.explain(thread, gap.begin_ns, gap.end_ns, tenant.processes);
    tenant.peer_waits[process] += times[static_cast<std::size_t>(Cause::kNetwork)];
    return true;
  });
}

std::map<std::uint32_t, std::uint64_t> IdleObserver::peer_waits(protocol::TenantId tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? std::map<std::uint32_t, std::uint64_t>{}
                                 : found->second.peer_waits;
}

IdleTable IdleObserver::figures() const {
  IdleTable out;
  for (const auto& [id, tenant] : tenants_) {
    if (tenant.page == nullptr) continue;
    for (std::size_t gpu = 0; gpu < tenant.gpus.size() && gpu < tenant.accounts.size(); ++gpu)
      out[{id, tenant.gpus[gpu]}] = tenant.accounts[gpu].figures();
  }
  return out;
}

std::uint64_t IdleObserver::unseen_tenants() const {
  return static_cast<std::uint64_t>(
      std::count_if(tenants_.begin(), tenants_.end(),
                    [](const auto& row) { return row.second.page == nullptr; }));
}

std::uint64_t IdleObserver::periods_lost() const { return watch_->lost(); }

}  // namespace sluice::exporter
