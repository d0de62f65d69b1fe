// See others.h.
#include "interpose/memory/others.h"

#include <string.h>

#include "interpose/process.h"
#include "interpose/residual.h"
#include "interpose/usage.h"

namespace sluice::interpose {
namespace {

using protocol::kTenantGpusMax;

// Who else is on a GPU, at one moment. With its lock held.
struct Others {
  uint32_t count;
  uint32_t slots[protocol::kTenantProcessesMax];
  uint32_t pids[protocol::kTenantProcessesMax];
  uint64_t charged[protocol::kTenantProcessesMax];
  uint64_t used[protocol::kTenantProcessesMax];
};
Others others;
// The processes that have had a slot since all was charged on the GPU: one that ends may lose its
// slot before the driver has its memory back.
struct Seen {
  uint32_t count;
  uint32_t pids[protocol::kTenantProcessesMax];
};
Seen seen[kTenantGpusMax];
Lock others_lock;

uint64_t charged_now(uint32_t slot, int gpu) {
  return charged_on_device(*process.claims, slot, static_cast<uint32_t>(gpu));
}

constexpr uint32_t kNoSlot = UINT32_MAX;

bool others_have(uint32_t pid) {
  for (uint32_t k = 0; k < others.count; ++k) {
    if (others.pids[k] == pid) return true;
  }
  return false;
}

void others_add(uint32_t slot, uint32_t pid, uint64_t bytes) {
  if (others.count == protocol::kTenantProcessesMax) return;
  others.slots[others.count] = slot;
  others.pids[others.count] = pid;
  others.charged[others.count++] = bytes;
}

void others_list(int gpu) {
  others.count = 0;
  for (uint32_t i = 0; i < protocol::kTenantProcessesMax; ++i) {
    const protocol::ClaimsSlot& slot = process.claims->slots[i];
    const uint32_t pid = slot.pid.load();
    if (i != process.slot && pid != 0) others_add(i, pid, charged_now(i, gpu));
  }
  const Seen& before = seen[gpu];
  for (uint32_t k = 0; k < before.count; ++k) {
    if (!others_have(before.pids[k])) others_add(kNoSlot, before.pids[k], 0);
  }
}

// From now on those that were listed are seen, or those of them that have slots.
void others_see(int gpu, bool all) {
  Seen& now = seen[gpu];
  now.count = 0;
  for (uint32_t k = 0; k < others.count; ++k) {
    if (all || others.slots[k] != kNoSlot) now.pids[now.count++] = others.pids[k];
  }
}

// Returns what this process has by its figure and has not charged. It may not have taken yet what
// it has reserved.
uint64_t own_uncharged(int gpu) {
  uint64_t used = 0;
  const uint64_t known = charged_now(process.slot, gpu);
  return usage_read(gpu, &used) && used > known ? used - known : 0;
}

// Returns a number that changes when another process of the tenant comes or goes. A slot is zeroed
// from its account to its pid.
uint64_t others_present(int gpu) {
  uint64_t sum = 1;
  const uint32_t used = process.claims->slots_used.load();
  for (uint32_t i = 0; i < used && i < protocol::kTenantProcessesMax; ++i) {
    const protocol::ClaimsSlot& slot = process.claims->slots[i];
    if (i == process.slot) continue;
    const uint64_t holds = slot.gpus[gpu].held_bytes.load() != 0 ? uint64_t{1} << 32 : 0;
    sum = (sum ^ (holds | slot.pid.load())) * 0x9E3779B97F4A7C15u;
  }
  return sum;
}

// The last reading since processes came or went.
struct Uncharged {
  uint64_t present;       // others_present() when all was charged; 0 = never
  uint64_t read_present;  // when it was read last
  uint64_t since_ns;      // when it changed last
  uint64_t read_ns;
  uint64_t bytes, own_bytes;
};
Uncharged uncharged[kTenantGpusMax];
// Allocations go by the last reading for so long: NVML takes about as long to tell anew.
constexpr uint64_t kUnchargedAgainNs = 2'000'000;

}  // namespace

uint64_t charged_on_device(const protocol::ClaimsPage& claims, uint32_t slot, uint32_t gpu) {
  const protocol::ClaimsSlot& account = claims.slots[slot];
  const uint64_t held = account.gpus[gpu].held_bytes.load();
  const uint64_t out = account.gpus[gpu].swapped_bytes.load() +
                       account.limits_pages[gpu].load() * protocol::kLimitPageBytes +
                       claims.released_bytes[slot][gpu].load();
  return held > out ? held - out : 0;
}

void others_remember(int gpu) {
  const LockScope scope(others_lock);
  others_list(gpu);
  others_see(gpu, true);
}

uint64_t others_uncharged(int gpu, bool forgets) {
  const SystemGuard guard;
  const LockScope scope(others_lock);
  if (forgets) seen[gpu].count = 0;
  others_list(gpu);
  if (!usage_read_of(gpu, others.pids, others.used, others.count)) return 0;
  uint64_t sum = 0;
  for (uint32_t k = 0; k < others.count; ++k) {
    const uint32_t slot = others.slots[k];
    const uint64_t now = slot == kNoSlot ? 0 : charged_now(slot, gpu);
    const uint64_t least = now < others.charged[k] ? now : others.charged[k];
    if (others.used[k] > least) sum += others.used[k] - least;
  }
  others_see(gpu, sum != 0);
  return sum;
}

uint64_t tenant_unread(int gpu) { return others_uncharged(gpu, false) + own_uncharged(gpu); }

uint64_t tenant_used(int gpu) {
  uint64_t sum = 0;
  const SystemGuard guard;
  const LockScope scope(others_lock);
  others_list(gpu);
  if (!usage_read(gpu, &sum) || !usage_read_of(gpu, others.pids, others.used, others.count))
    return 0;
  for (uint32_t k = 0; k < others.count; ++k) sum += others.used[k];
  return sum;
}

uint64_t others_changes() {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < protocol::kTenantProcessesMax; ++i) {
    const protocol::ClaimsSlot& slot = process.claims->slots[i];
    const uint32_t pid = slot.pid.load();
    if (i == process.slot || pid == 0) continue;
    sum = (sum ^ pid) * 0x9E3779B97F4A7C15u;
    for (uint32_t gpu = 0; gpu < process.gpu_count; ++gpu)
      sum = (sum ^ slot.gpus[gpu].version.load()) * 0x9E3779B97F4A7C15u;
  }
  return sum;
}

uint64_t tenant_uncharged(int gpu, bool own) {
  if (process.claims->slots_used.load() <= 1 || !residual_is_measured(gpu)) return 0;
  Uncharged& last = uncharged[gpu];
  const uint64_t present = others_present(gpu);
  if (SLUICE_LIKELY(load_relaxed(last.present) == present)) return 0;
  const uint64_t now_ns = clock_now_ns();
  const bool changed = load_relaxed(last.read_present) != present;
  if (changed) store_relaxed(last.since_ns, now_ns);
  if (changed || now_ns - load_relaxed(last.read_ns) >= kUnchargedAgainNs) {
    const bool forgets = now_ns - load_relaxed(last.since_ns) > kEndedForgottenNs;
    const uint64_t bytes = others_uncharged(gpu, forgets), own_bytes = own_uncharged(gpu);
    store_relaxed(last.bytes, bytes);
    store_relaxed(last.own_bytes, own_bytes);
    store_relaxed(last.read_ns, now_ns);
    store_relaxed(last.read_present, present);
    if (bytes == 0 && own_bytes == 0) store_relaxed(last.present, present);
  }
  return load_relaxed(last.bytes) + (own ? load_relaxed(last.own_bytes) : 0);
}

void others_reset_after_fork() {
  memset(uncharged, 0, sizeof uncharged);
  memset(seen, 0, sizeof seen);
  others_lock.reset_after_fork();
}

}  // namespace sluice::interpose
