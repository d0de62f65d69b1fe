// The memory half of the simulated machine: what the daemon reads of claims, how it carries out
// holds, room words and checkpoints, and the commands, clock jumps and losses of an experiment.
#include <algorithm>

#include "broker/protocol/pages.h"
#include "broker/sim/process.h"
#include "broker/sim/world.h"

namespace sluice::sim {
namespace {

constexpr core::RequestId kCommandRequests = 1'000'000;  // numbers beyond those of the jobs

Nanos copy_ns(Bytes bytes, Bytes rate) {
  return static_cast<Nanos>(static_cast<double>(bytes) * 1e9 / static_cast<double>(rate));
}

}  // namespace

Nanos World::copy_done_at(std::uint32_t gpu, bool out, Bytes bytes) {
  DeviceMemory& link = memory_[gpu];
  Nanos& free_at = out ? link.out_free_at : link.in_free_at;
  free_at = std::max(free_at, clock_.now()) + copy_ns(bytes, setup_.copy_rate);
  return free_at;
}

void World::claims_feed(Job& job) {
  if (job.forgotten) return;
  for (std::uint32_t index = 0; index < job.gpus.size(); ++index) {
    core::MemorySeen seen{job.tenant, index, 0, 0, 0};
    for (const auto& process : job.processes) {
      if (!process->alive() || process->index() != index) continue;
      seen.held += process->held();
      seen.movable += process->movable();
      seen.swapped += process->swapped();
    }
    for (Bytes* bytes : {&seen.held, &seen.movable, &seen.swapped})
      *bytes = static_cast<Bytes>(static_cast<double>(*bytes) * job.spec.claims_factor);
    if (up_) step(seen);
  }
}

void World::look_feed(const core::GpuUuid& gpu) {
  const std::uint32_t g = gpu_of(gpu);
  for (auto& job : jobs_)
    if (job->tenant != 0 && !job->forgotten && std::ranges::find(job->gpus, g) != job->gpus.end())
      claims_feed(*job);
}

void World::act(const core::MemoryLookWanted& action) { looks_.push_back(action.gpu); }

void World::act(const core::HoldSet& action) {
  Job& job = *job_of(action.tenant);
  job.holds[action.gpu_index] = action.word;
  clock_.after(setup_.delay_ns, [&job, index = action.gpu_index] {
    for (std::size_t i = 0; i < job.processes.size(); ++i) job.processes[i]->hold_changed(index);
  });
}

void World::act(const core::RoomSet& action) {
  Job& job = *job_of(action.tenant);
  job.rooms[action.gpu_index] = action.word;
  clock_.after(setup_.delay_ns, [&job, index = action.gpu_index] {
    for (std::size_t i = 0; i < job.processes.size(); ++i) job.processes[i]->room_changed(index);
  });
}

bool World::checkpoint_take(Job& job) {
  if (job.frozen) return true;
  if (random_.chance(job.spec.checkpoint_fails)) return false;
  for (auto& process : job.processes)
    if (process->alive()) process->freeze();
  job.frozen = true;
  return true;
}

bool World::checkpoint_return(Job& job, const core::CheckpointWanted& action) {
  if (!job.frozen) return true;
  std::vector<Process*> back;
  for (auto& process : job.processes) {
    if (!process->alive()) continue;
    if (process->thaw(gpu_of(action.gpus[process->index()].to))) {
      back.push_back(process.get());
      continue;
    }
    for (Process* other : back) other->freeze();
    return false;
  }
  job.frozen = false;
  return true;
}

/// The helper program ends with its broker: what it has not done by then is not done.
void World::act(const core::CheckpointWanted& action) {
  Job& job = *job_of(action.tenant);
  Bytes bytes = 0;
  for (const auto& process : job.processes)
    if (process->alive()) bytes += process->held() - process->swapped();
  const Nanos took = copy_ns(bytes, setup_.copy_rate);
  clock_.after(took, [this, &job, action, took, broker = broker_] {
    if (broker != broker_ || !up_) return;
    const bool out = action.step == core::CheckpointStep::kOut;
    const bool ok = out ? checkpoint_take(job) : checkpoint_return(job, action);
    feed(core::CheckpointDone{action.tenant, action.step, ok, took, ok ? "" : "no room"});
  });
}

void World::act(const core::TenantMoved& action) {
  Job& job = *job_of(action.tenant);
  job.gpus[action.gpu_index] = gpu_of(action.to);
  job.grant.gpus[action.gpu_index] = action.to;
  job.result.gpus = job.gpus;
}

void World::act(const core::StayNoted& action) { job_of(action.tenant)->stay = action; }

void World::act(const core::CommandAnswered& action) {
  (action.code == core::RefusalCode::kNone ? result_.commands_done : result_.commands_refused)++;
}

void World::act(const core::TenantLost& action) {
  Job& job = *job_of(action.tenant);
  job.result.lost++;
  job.released = true;  // it gets no lease any more, and what it had whole is handed back
  clock_.after(0, [this, &job] { job_kill(job, true); });
}

/// The device has it until the driver has taken the dead down.
void World::memory_leave(std::uint32_t gpu, Bytes bytes) {
  if (bytes == 0) return;
  const Nanos after = setup_.teardown_ns_max == 0 ? 0 : teardown_.range(0, setup_.teardown_ns_max);
  if (after == 0) {
    memory_[gpu].give(bytes);
    return;
  }
  memory_[gpu].leaving += bytes;
  clock_.after(after, [this, gpu, bytes] {
    memory_[gpu].leaving -= bytes;
    memory_[gpu].give(bytes);
  });
}

void World::device_feed(std::uint32_t gpu) {
  Bytes claimed = 0;
  for (const auto& job : jobs_) {
    for (const auto& process : job->processes)
      if (process->alive() && job->gpus[process->index()] == gpu)
        claimed += job->frozen ? 0 : process->held() - process->swapped();
  }
  feed(core::DeviceSeen{uuid_of(gpu), memory_[gpu].used, claimed, claimed});
}

void World::act(const core::DeviceLookWanted& action) {
  result_.device_looks++;
  clock_.after(setup_.delay_ns, [this, gpu = gpu_of(action.gpu), broker = broker_] {
    if (broker == broker_) device_feed(gpu);
  });
}

void World::act(const core::MemoryNotReturned&) { result_.memory_kept++; }

/// Whoever is admitted can fill its quota at once: what others have left there is not in the way,
/// if nobody lies and the broker that saw them end is this one.
void World::freed_check(const core::TenantAdmitted& action) const {
  if (!setup_.broker_dies_at.empty() || result_.memory_kept > 0) return;
  for (const auto& job : jobs_)
    if (job->spec.claims_factor != 1) return;
  for (const core::GpuUuid& uuid : action.gpus) {
    const std::uint32_t g = gpu_of(uuid);
    Bytes promised = 0;
    for (const auto& job : jobs_) {
      const bool lives = job->tenant != 0 && !job->forgotten;
      if (!lives || job->stay.swapped || job->stay.frozen) continue;
      if (job->released && job->spec.tenant_class == TenantClass::kExclusive) {
        for (const auto& process : job->processes)
          if (process->alive() && job->gpus[process->index()] == g) promised += process->held();
        continue;
      }
      for (std::uint32_t own : job->gpus)
        if (own == g) promised += job->grant.swap ? job->grant.memory_min : job->grant.memory_max;
    }
    assert(promised + memory_[g].leaving <= memory_[g].capacity &&
           "nobody is promised what the device does not show free");
  }
}

void World::act(const core::GpuNoted& action) { closed_[gpu_of(action.gpu)] = action.closed; }

void World::command_give(std::size_t number) {
  const CommandSpec& spec = setup_.commands[number];
  core::CommandAsked event;
  event.request = kCommandRequests + number;
  event.verb = spec.verb;
  event.tenant = jobs_[spec.job]->tenant;
  event.gpu.bytes[0] = static_cast<std::uint8_t>(spec.gpu + 1);
  event.root = true;
  feed(event);
}

void World::idle_tell() {
  clock_.after(setup_.idle_every_ns, [this] { idle_tell(); });
  if (!up_) return;
  for (const auto& job : jobs_)
    if (job->tenant != 0 && !job->forgotten) feed(core::TenantIdle{job->tenant});
}

void World::limits_change(const LimitsChange& change) {
  const Job& job = *jobs_[change.job];
  if (job.tenant == 0 || job.forgotten || job.spec.tenant_class == TenantClass::kExclusive) return;
  feed(core::LimitsChanged{
      job.tenant, change.sm_percent, change.memory_max,
      job.grant.swap ? std::min(job.grant.memory_min, change.memory_max) : change.memory_max});
}

void World::act(const core::LimitsSet& action) {
  core::TenantAdmitted& grant = job_of(action.tenant)->grant;
  grant.sm_percent = action.sm_percent;
  grant.sm_kind = action.sm_kind;
  grant.memory_max = action.memory_max;
  grant.memory_min = action.memory_min;
}

void World::clock_jump(Nanos by) {
  offset_ += by;
  alarm_schedule();
  feed(core::Tick{});
}

}  // namespace sluice::sim
