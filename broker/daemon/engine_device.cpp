// What the devices themselves say, by way of the helper program that asks them: which are lost, and
// how much of their memory is in use. The core wants the latter after the end of a process; once a
// second it is asked anyway, so that what belongs to nobody here is known before that.
#include <algorithm>

#include "broker/daemon/engine.h"
#include "broker/devices/uuid.h"
#include "broker/protocol/gpu_index.h"

namespace sluice::daemon {
namespace {

constexpr int kBeatsPerAsk = 4;

}  // namespace

/// What the tenants claim of the GPU; `still` is cleared while memory moves, because the claims
/// then tell of it before or after the device does.
std::uint64_t Engine::device_claimed(const protocol::GpuUuid& gpu, bool* still) const {
  std::uint64_t sum = 0;
  for (const auto& [id, tenant] : tenants_) {
    for (std::uint32_t i = 0; i < tenant->gpus.size(); ++i) {
      if (!(tenant->gpus[i] == gpu)) continue;
      if ((tenant->pages->hold_load(i) & protocol::kHoldSet) != 0) *still = false;
      const MemoryClaims claims = memory_of(*tenant, i);
      // Who boasts makes the rest look smaller by no more than it may have anyway.
      const std::uint64_t held = tenant->stay.frozen
                                     ? left_bytes(*tenant, gpu)
                                     : std::min(claims.held_bytes, tenant->quota_most);
      const std::uint64_t here = held - std::min(held, claims.swapped_bytes);
      const std::uint64_t there = here - std::min(here, claims.limits_bytes);
      const std::uint64_t doubted = doubted_bytes(*tenant, i);
      if (doubted != 0) *still = false;
      sum += there - std::min(there, doubted);
    }
  }
  return sum;
}

/// What ended processes of the tenant may have on the GPU or may not.
std::uint64_t Engine::doubted_bytes(const Tenant& tenant, std::uint32_t gpu_index) const {
  std::uint64_t sum = 0;
  for (const core::ProcessId id : tenant.processes) {
    const Process& process = *processes_.at(id);
    if (process.ending == Ending::kDoubt) sum += process.on_device[gpu_index];
  }
  return sum;
}

std::uint32_t Engine::gpu_number(const protocol::GpuUuid& gpu) const {
  const auto at = std::ranges::find(gpus_, gpu, &ServedGpu::uuid);
  return static_cast<std::uint32_t>(at - gpus_.begin());
}

/// One question at a time about each GPU, so that an answer is never taken for that to a later one.
/// Does nothing while one has no answer yet, however long the driver takes: each has one, unless
/// the helper ends (devices_poll).
void Engine::device_ask(const protocol::GpuUuid& gpu) {
  const std::uint32_t g = gpu_number(gpu);
  if (g == gpus_.size() || device_asked_.contains(g) || !losses_.ask_used(gpu, ended_names(g)))
    return;
  DeviceAsked asked{0, true, clock_ns(), released_claims(g)};
  asked.claimed = device_claimed(gpu, &asked.still);
  device_asked_[g] = asked;
}

void Engine::device_answered(const devices::LossWatch::Used& used) {
  const std::uint32_t g = gpu_number(used.gpu);
  const auto found = device_asked_.find(g);
  if (found == device_asked_.end()) return;
  const DeviceAsked asked = found->second;
  device_asked_.erase(found);
  bool still = asked.still;
  const std::uint64_t now = device_claimed(used.gpu, &still);
  core::DeviceSeen seen;
  seen.gpu = used.gpu;
  seen.used = used.bytes;
  seen.claimed_least = std::min(asked.claimed, now);
  seen.claimed_most = std::max(asked.claimed, now) + (still ? 0 : 1);
  log_.line(Level::kDebug, "device_used",
            {{"gpu", devices::uuid_format(used.gpu)},
             {"bytes", used.bytes},
             {"claimed_bytes", seen.claimed_least}});
  feed(seen);
  left_look(g, used, asked);
}

void Engine::devices_poll() {
  constexpr std::int64_t kNsPerMs = 1'000'000;
  const devices::LossWatch::News news = losses_.look(clock_ns() / kNsPerMs);
  if (losses_.descriptor() != losses_fd_) {
    loop_.remove(losses_key_);
    losses_fd_ = losses_.descriptor();
    losses_key_ = losses_fd_ < 0 ? 0
                                 : loop_.add(
                                       losses_fd_, [this] { devices_poll(); }, "devices");
    device_asked_.clear();
  }
  if (!news.fault.empty())
    log_.message(Level::kWarning, "loss_watch_failed",
                 "nobody watches whether a GPU is lost (" + news.fault +
                     "); the broker tries again every half a minute",
                 {});
  for (const protocol::GpuUuid& uuid : news.lost) {
    const std::uint32_t g = protocol::gpu_index(gpus_, uuid);
    const bool software = g < gpus_.size() && gpus_[g].software;
    log_.message(Level::kError, "gpu_lost",
                 std::string("a GPU no longer answers: its jobs are ended, and it takes no new "
                             "ones; ") +
                     devices::lost_remedy(software) + ", then start the broker again",
                 {{"gpu", devices::uuid_format(uuid)}});
    feed(core::GpuLost{uuid});
  }
  for (const protocol::GpuUuid& uuid : news.unknown) device_asked_.erase(gpu_number(uuid));
  for (const devices::LossWatch::Used& used : news.used) device_answered(used);
}

/// Called with every heartbeat.
void Engine::devices_beat() {
  devices_poll();
  if (beats_++ % kBeatsPerAsk != 0) return;
  for (const ServedGpu& gpu : gpus_) device_ask(gpu.uuid);
}

void Engine::carry_out(const core::DeviceLookWanted& action) { device_ask(action.gpu); }

void Engine::carry_out(const core::MemoryNotReturned& action) {
  constexpr core::Nanos kNsPerMs = 1'000'000;
  log_.message(Level::kWarning, "memory_kept",
               "the device still shows memory in use that ended processes had; a program that this "
               "broker does not know may have taken it, or the driver does not free it (nvidia-smi "
               "shows who has what); new jobs no longer wait for it",
               {{"gpu", devices::uuid_format(action.gpu)},
                {"bytes", action.bytes},
                {"ms", action.waited_ns / kNsPerMs}});
}

}  // namespace sluice::daemon
