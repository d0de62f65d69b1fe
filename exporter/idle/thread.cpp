#include "exporter/idle/thread.h"

#include <signal.h>

#include <chrono>
#include <set>

#include "exporter/idle/proc_wait.h"

namespace sluice::exporter {
namespace {

// Rings of gaps hold 256: more than 2,560 a second are not all seen.
constexpr std::chrono::milliseconds kLookEvery{100};
constexpr std::uint64_t kSampleEveryNs = 20'000'000;

}  // namespace

IdleThread::IdleThread(IdleSetup setup)
    : sampled_(setup.watch == nullptr),
      tenants_max_(setup.tenants_max),
      observer_(sampled_ ? thread_watch_proc(kSampleEveryNs) : std::move(setup.watch),
                std::move(setup.source)) {
  state_.kind = sampled_ ? "proc" : "bpf";
  state_.reason = std::move(setup.reason);
  // Signals are the main thread's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { look_on(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

IdleThread::~IdleThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void IdleThread::tenants_set(const Snapshot& snapshot) {
  const std::lock_guard lock(mutex_);
  next_ = snapshot;
}

IdleState IdleThread::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

/// Leaves those that can be observed, oldest first.
void IdleThread::narrow(Snapshot& snapshot) {
  std::set<protocol::TenantId> readable;
  for (const protocol::SnapshotProcess& row : snapshot.processes)
    if (sampled_ && !readable.contains(row.tenant) && wait_can_be_read(row.pid))
      readable.insert(row.tenant);
  std::uint32_t given = 0;
  left_out_ = 0;
  std::erase_if(snapshot.tenants, [&](const protocol::SnapshotTenant& row) {
    if (row.tenant == 0) return true;
    const bool good = given++ < tenants_max_ && (!sampled_ || readable.contains(row.tenant));
    if (!good && row.tenant_class != protocol::TenantClass::kExclusive) ++left_out_;
    return !good;
  });
}

void IdleThread::look_on() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    std::optional<Snapshot> next;
    next.swap(next_);
    lock.unlock();
    if (next) {
      narrow(*next);
      observer_.tenants_set(*next);
    }
    observer_.look();
    IdleTable table = observer_.figures();
    const std::uint64_t unseen = left_out_ + observer_.unseen_tenants();
    lock.lock();
    state_.table = std::move(table);
    state_.unseen = unseen;
    state_.lost = observer_.periods_lost();
    wake_.wait_for(lock, kLookEvery, [this] { return stop_; });
  }
}

}  // namespace sluice::exporter
