// memfds, seals, and sums over untrusted slots.
#include "broker/daemon/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cassert>
#include <climits>
#include <cstring>

namespace sluice::daemon {
namespace {

using protocol::ClaimsGpu;
using protocol::ClaimsPage;
using protocol::LeasePage;

constexpr std::uint32_t kFirstEpoch = 1;

// Creates, sizes, maps and then seals: the broker's own writable mapping is older than the seal and
// stays writable.
void* page_create(const char* name, std::size_t size, int seals, devices::Fd* out) {
  devices::Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(size)) < 0) return nullptr;
  void* page = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) return nullptr;
  if (fcntl(fd.get(), F_ADD_SEALS, seals) < 0) {
    munmap(page, size);
    return nullptr;
  }
  *out = std::move(fd);
  return page;
}

std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
  std::uint64_t out;
  return __builtin_add_overflow(a, b, &out) ? UINT64_MAX : out;
}

// Counters of one process joined to the tenant's: every figure but the held bytes, which die with
// the process.
void counters_add(Usage* usage, const ClaimsGpu& gpu) {
  usage->peak_bytes = std::max(usage->peak_bytes, gpu.peak_bytes.load());
  usage->busy_ns = sum(usage->busy_ns, gpu.busy_ns.load());
  usage->launches = sum(usage->launches, gpu.launches.load());
  usage->graph_launches = sum(usage->graph_launches, gpu.graph_launches.load());
  usage->gate_wait_ns = sum(usage->gate_wait_ns, gpu.gate_wait_ns.load());
  usage->gate_waits = sum(usage->gate_waits, gpu.gate_waits.load());
  usage->refused = sum(usage->refused, gpu.refused.load());
}

void waits_add(WaitUsage* waits, const protocol::ClaimsSlot& slot) {
  for (std::size_t i = 0; i < waits->gate_wait_counts.size(); ++i)
    waits->gate_wait_counts[i] = sum(waits->gate_wait_counts[i], slot.gate_wait_counts[i].load());
  waits->refused_full = sum(waits->refused_full, slot.refused_full.load());
}

void futex_store(protocol::AtomicU32& word, std::uint32_t value) {
  word.store(value);
  syscall(SYS_futex, &word.raw, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void counter_hold(std::uint64_t* now, std::uint64_t* shown) {
  *now = std::max(*now, *shown);
  *shown = *now;
}

}  // namespace

std::unique_ptr<Pages> Pages::create(const PageSetup& setup) {
  assert(setup.gpus.size() <= protocol::kTenantGpusMax);
  std::unique_ptr<Pages> pages(new Pages);
  pages->lease_ = static_cast<LeasePage*>(
      page_create("sluice-lease", sizeof(LeasePage), kLeaseSeals, &pages->lease_fd_));
  if (pages->lease_ == nullptr) return nullptr;
  pages->claims_ = static_cast<ClaimsPage*>(
      page_create("sluice-claims", sizeof(ClaimsPage), kSizeSeals, &pages->claims_fd_));
  if (pages->claims_ == nullptr) return nullptr;
  // Who was given it to read cannot open it again to write: a memfd is everybody's otherwise.
  if (fchmod(pages->claims_fd_.get(), 0600) < 0) return nullptr;

  LeasePage& lease = *pages->lease_;
  lease.magic = protocol::kLeasePageMagic;
  lease.version = protocol::kVersion;
  lease.tenant_class = setup.tenant_class;
  lease.sm_mode = setup.sm_mode;
  lease.tenant = setup.tenant;
  lease.gpu_count = static_cast<std::uint32_t>(setup.gpus.size());
  lease.broker_pid = static_cast<std::uint32_t>(getpid());
  for (std::size_t i = 0; i < setup.gpus.size(); ++i) {
    protocol::LeaseEntry& entry = lease.gpus[i];
    entry.gpu = setup.gpus[i].uuid;
    entry.context_bytes = setup.gpus[i].context_bytes;
    entry.memory_max_bytes = setup.memory_max_bytes;
    entry.memory_min_bytes = setup.memory_min_bytes;
    entry.sm_percent = setup.sm_percent;
    entry.flags = setup.swap ? protocol::kEntrySwap : 0;
    entry.lease.store(protocol::lease_word(kFirstEpoch, 0));
  }
  ClaimsPage& claims = *pages->claims_;
  claims.magic = protocol::kClaimsPageMagic;
  claims.version = protocol::kVersion;
  claims.slot_count = protocol::kTenantProcessesMax;
  claims.gpu_count = lease.gpu_count;
  return pages;
}

Pages::~Pages() {
  if (lease_ != nullptr) munmap(lease_, sizeof(LeasePage));
  if (claims_ != nullptr) munmap(claims_, sizeof(ClaimsPage));
}

void Pages::lease_store(std::uint32_t gpu, std::uint32_t word, std::uint64_t window_ns,
                        std::uint64_t idle_grace_ns) {
  assert(gpu < gpu_count());
  protocol::LeaseEntry& entry = lease_->gpus[gpu];
  entry.window_ns.store(window_ns);
  entry.idle_grace_ns.store(idle_grace_ns);
  futex_store(entry.lease, word);
}

void Pages::hold_store(std::uint32_t gpu, std::uint32_t word) {
  assert(gpu < gpu_count());
  futex_store(lease_->gpus[gpu].hold, word);
}

void Pages::room_store(std::uint32_t gpu, std::uint32_t word) {
  assert(gpu < gpu_count());
  futex_store(lease_->gpus[gpu].room, word);
}

void Pages::delayed_store(std::uint32_t gpu, std::uint32_t milliseconds) {
  assert(gpu < gpu_count());
  lease_->gpus[gpu].delayed_ms.store(milliseconds);
}

void Pages::suspended_store(std::uint32_t suspended) {
  for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu) {
    protocol::LeaseEntry& entry = lease_->gpus[gpu];
    if (entry.suspended.load() == suspended) continue;
    entry.suspended.store(suspended);
    // Wakes the threads that sleep on it: the helper looks at this as well. It sees a place in line
    // at its next look, if the job still has one then.
    if (suspended == protocol::kSuspendedByCommand || suspended == protocol::kSuspendedIdle)
      futex_store(entry.hold, entry.hold.load());
  }
}

void Pages::idle_store(std::uint32_t idle, std::uint32_t idle_s, std::uint32_t release_s,
                       std::uint32_t end_s) {
  for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu) {
    protocol::LeaseEntry& entry = lease_->gpus[gpu];
    entry.idle_s = idle_s;
    entry.idle_release_s = release_s;
    entry.idle_end_s = end_s;
    entry.idle.store(idle);
  }
}

void Pages::gpu_store(std::uint32_t gpu, const protocol::GpuUuid& uuid,
                      std::uint64_t context_bytes) {
  assert(gpu < gpu_count());
  lease_->gpus[gpu].gpu = uuid;
  __atomic_store_n(&lease_->gpus[gpu].context_bytes, context_bytes, __ATOMIC_SEQ_CST);
}

void Pages::limits_store(std::uint64_t memory_max_bytes, std::uint64_t memory_min_bytes,
                         std::uint32_t sm_percent) {
  // Clients read each of them on its own, at every allocation.
  for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu) {
    protocol::LeaseEntry& entry = lease_->gpus[gpu];
    __atomic_store_n(&entry.memory_max_bytes, memory_max_bytes, __ATOMIC_SEQ_CST);
    __atomic_store_n(&entry.memory_min_bytes, memory_min_bytes, __ATOMIC_SEQ_CST);
    __atomic_store_n(&entry.sm_percent, sm_percent, __ATOMIC_SEQ_CST);
  }
}

devices::Fd Pages::claims_readable() const {
  const std::string path = "/proc/self/fd/" + std::to_string(claims_fd_.get());
  return devices::Fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

std::optional<std::uint32_t> Pages::slot_take(pid_t pid) {
  for (std::uint32_t slot = 0; slot < protocol::kTenantProcessesMax; ++slot) {
    if (taken_[slot]) continue;
    taken_[slot] = true;
    slot_zero(slot);  // a client of this tenant may have scribbled on a free slot
    pids_[slot] = static_cast<std::uint32_t>(pid);
    claims_->slots[slot].pid.store(pids_[slot]);
    slots_end_ = std::max(slots_end_, slot + 1);
    return slot;
  }
  return std::nullopt;
}

bool Pages::leaving(std::uint32_t slot) const { return claims_->slots[slot].leaving.load() != 0; }

std::uint64_t Pages::slot_on_device(std::uint32_t slot, std::uint32_t gpu) const {
  const ClaimsGpu& account = claims_->slots[slot].gpus[gpu];
  const std::uint64_t held = account.held_bytes.load();
  const std::uint64_t movable = std::min(account.movable_bytes.load(), held);
  const std::uint64_t limits =
      claims_->slots[slot].limits_pages[gpu].load() * protocol::kLimitPageBytes;
  return held - std::min(account.swapped_bytes.load(), movable) - std::min(limits, held - movable);
}

bool Pages::slot_in_flight(std::uint32_t slot, std::uint32_t gpu) const {
  return claims_->slots[slot].gpus[gpu].in_flight.load() != 0;
}

void Pages::slot_doubt(std::uint32_t slot) {
  for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu) {
    ClaimsGpu& account = claims_->slots[slot].gpus[gpu];
    account.version.store(account.version.load() | 1);
    account.held_bytes.store(slot_on_device(slot, gpu));
    account.reserved_bytes.store(0);
    account.asked_bytes.store(0);
    account.movable_bytes.store(0);
    account.swapped_bytes.store(0);
    claims_->slots[slot].limits_pages[gpu].store(0);
  }
  claims_->slots[slot].end_seen.store(1);
}

void Pages::slot_settle(std::uint32_t slot) {
  for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu) {
    protocol::AtomicU32& version = claims_->slots[slot].gpus[gpu].version;
    version.store((version.load() | 1) + 1);
  }
}

void Pages::slot_charge(std::uint32_t slot, std::uint32_t gpu, std::uint64_t bytes) {
  claims_->slots[slot].gpus[gpu].held_bytes.store(bytes);
}

std::uint64_t Pages::slot_released(std::uint32_t slot, std::uint32_t gpu) const {
  return std::min(claims_->released_bytes[slot][gpu].load(), slot_on_device(slot, gpu));
}

void Pages::slot_retire(std::uint32_t slot) {
  assert(slot < protocol::kTenantProcessesMax && taken_[slot]);
  for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu)
    counters_add(&dead_[gpu], claims_->slots[slot].gpus[gpu]);
  waits_add(&waits_dead_, claims_->slots[slot]);
  slot_zero(slot);
  // What it told of its idleness goes back to the kernel.
  madvise(&claims_->activity[slot], sizeof(protocol::ActivitySlot), MADV_REMOVE);
  taken_[slot] = false;
}

void Pages::slot_zero(std::uint32_t slot) {
  for (protocol::AtomicU64& kept : claims_->released_bytes[slot])
    __atomic_store_n(&kept.raw, 0, __ATOMIC_RELAXED);
  auto* words = reinterpret_cast<protocol::AtomicU64*>(&claims_->slots[slot]);
  // From the account to the pid: a slot that has a charge belongs to a process for every reader.
  // One barrier behind all of them: one for each word takes as long as the rest of a registration's
  // arithmetic.
  for (std::size_t i = sizeof(protocol::ClaimsSlot) / sizeof *words; i-- > 0;)
    __atomic_store_n(&words[i].raw, 0, __ATOMIC_RELEASE);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

std::uint32_t Pages::drained_epoch(std::uint32_t slot, std::uint32_t gpu) const {
  return claims_->slots[slot].gpus[gpu].drained_epoch.load();
}

std::uint32_t Pages::unhooked() const {
  std::uint32_t most = 0;
  for (std::size_t slot = 0; slot < taken_.size(); ++slot)
    if (taken_[slot]) most = std::max(most, claims_->slots[slot].unhooked_seen.load());
  return most;
}

std::uint32_t Pages::held_epoch(std::uint32_t slot, std::uint32_t gpu) const {
  return claims_->slots[slot].gpus[gpu].held_epoch.load();
}

std::uint32_t Pages::moved_word(std::uint32_t slot, std::uint32_t gpu) const {
  return claims_->slots[slot].gpus[gpu].moved_word.load();
}

bool Pages::slot_holds(std::uint32_t slot, std::uint32_t gpu) const {
  return claims_->slots[slot].gpus[gpu].held_bytes.load() != 0;
}

std::uint64_t Pages::slot_held(std::uint32_t slot, std::uint32_t gpu) const {
  return claims_->slots[slot].gpus[gpu].held_bytes.load();
}

// Each process's figures are bounded by each other before they are added: one that says too much of
// one of them must not make up for another.
MemoryClaims Pages::memory(std::uint32_t gpu) const {
  assert(gpu < gpu_count());
  MemoryClaims out;
  for (std::uint32_t slot = 0; slot < protocol::kTenantProcessesMax; ++slot) {
    if (!taken_[slot]) continue;
    const ClaimsGpu& account = claims_->slots[slot].gpus[gpu];
    const std::uint64_t held = account.held_bytes.load();
    const std::uint64_t movable = std::min(account.movable_bytes.load(), held);
    out.held_bytes = sum(out.held_bytes, held);
    out.movable_bytes = sum(out.movable_bytes, movable);
    out.context_bytes =
        sum(out.context_bytes, std::min(account.context_bytes.load(), held - movable));
    out.swapped_bytes = sum(out.swapped_bytes, std::min(account.swapped_bytes.load(), movable));
    const std::uint64_t limits =
        claims_->slots[slot].limits_pages[gpu].load() * protocol::kLimitPageBytes;
    out.limits_bytes = sum(out.limits_bytes, std::min(limits, held - movable));
  }
  return out;
}

WaitUsage Pages::waits() {
  WaitUsage waits = waits_dead_;
  for (std::uint32_t slot = 0; slot < protocol::kTenantProcessesMax; ++slot) {
    if (taken_[slot]) waits_add(&waits, claims_->slots[slot]);
  }
  for (std::size_t i = 0; i < waits.gate_wait_counts.size(); ++i)
    counter_hold(&waits.gate_wait_counts[i], &waits_shown_.gate_wait_counts[i]);
  counter_hold(&waits.refused_full, &waits_shown_.refused_full);
  return waits;
}

Usage Pages::usage(std::uint32_t gpu) {
  assert(gpu < gpu_count());
  Usage usage = dead_[gpu];
  for (std::uint32_t slot = 0; slot < protocol::kTenantProcessesMax; ++slot) {
    if (!taken_[slot]) continue;
    counters_add(&usage, claims_->slots[slot].gpus[gpu]);
    usage.held_bytes = sum(usage.held_bytes, claims_->slots[slot].gpus[gpu].held_bytes.load());
  }
  usage.peak_bytes = std::max(usage.peak_bytes, usage.held_bytes);
  Usage& shown = shown_[gpu];
  counter_hold(&usage.peak_bytes, &shown.peak_bytes);
  counter_hold(&usage.busy_ns, &shown.busy_ns);
  counter_hold(&usage.launches, &shown.launches);
  counter_hold(&usage.graph_launches, &shown.graph_launches);
  counter_hold(&usage.gate_wait_ns, &shown.gate_wait_ns);
  counter_hold(&usage.gate_waits, &shown.gate_waits);
  counter_hold(&usage.refused, &shown.refused);
  return usage;
}

}  // namespace sluice::daemon
