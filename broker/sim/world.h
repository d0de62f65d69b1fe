// The simulated machine: core, clock, devices and jobs, and the wires between them. Private to the
// simulator.
#pragma once

#include <cassert>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "broker/sim/clock.h"
#include "broker/sim/device.h"
#include "broker/sim/random.h"
#include "broker/sim/sim.h"

namespace sluice::sim {

class Process;

inline constexpr Nanos kNoAlarm = INT64_MAX;

inline core::GpuUuid uuid_of(std::uint32_t gpu) {
  core::GpuUuid uuid{};
  uuid.bytes[0] = static_cast<std::uint8_t>(gpu + 1);
  return uuid;
}

/// What the lease page says about one GPU of a tenant.
struct Lease {
  std::uint32_t epoch = 1;
  bool open = false;
  bool contended = false;
  Nanos window_ns = 0;
  Nanos idle_grace_ns = 0;
};

struct Job {
  JobSpec spec;
  core::RequestId request = 0;
  bool asked = false;
  core::TenantId tenant = 0;
  std::vector<std::uint32_t> gpus;
  std::vector<Lease> leases;
  std::vector<std::unique_ptr<Process>> processes;
  core::TenantAdmitted grant;        // what the journal has of it
  bool released = false;             // the broker has heard so
  bool forgotten = false;            // the broker has ended it
  std::vector<std::uint32_t> holds;  // hold words, and room words, of its pages
  std::vector<std::uint32_t> rooms;
  core::StayNoted stay;   // what the journal has of where its memory is
  bool vacated() const {  // it has left its GPUs to others
    const bool for_long = stay.suspended || stay.rests || stay.returns || released;
    return for_long && (stay.swapped || stay.frozen);
  }
  bool frozen = false;              // in the driver's checkpoint
  std::vector<Nanos> dead_busy_ns;  // per GPU, metered, of processes that are gone
  std::map<std::uint64_t, std::shared_ptr<Collective>> collectives;  // by step
  JobResult result;
};

/// Device memory of one GPU, and its link to the host: one copy each way at a time.
struct DeviceMemory {
  Bytes capacity = 0;
  Bytes used = 0;
  Nanos out_free_at = 0;
  Nanos in_free_at = 0;
  Bytes leaving = 0;  // of `used`: of processes that are gone

  bool take(Bytes bytes) {
    if (used + bytes > capacity) return false;
    used += bytes;
    return true;
  }
  void give(Bytes bytes) {
    assert(used >= bytes && "memory is freed once");
    used -= bytes;
  }
};

class World {
 public:
  explicit World(const Experiment& setup);
  ~World();
  Result run();

  Clock& clock() { return clock_; }
  Device& device(std::uint32_t gpu) { return *devices_[gpu]; }
  /// A message from a shim: reaches the core after the delay.
  void post(const core::Event& event);
  /// The same from a process without a socket: what it writes into its claims the daemon reads at
  /// its next heartbeat.
  void post_by_claims(const core::Event& event);
  /// What the daemon sees by itself (deaths): reaches the core now.
  void feed(const core::Event& event);
  Nanos delay() const { return setup_.delay_ns; }
  void process_exit(Job& job, Process& process, bool lost = false);
  /// Ends all its processes, or the last of them.
  void job_kill(Job& job, bool all);
  DeviceMemory& memory(std::uint32_t gpu) { return memory_[gpu]; }
  Bytes context_bytes(std::uint32_t gpu) const { return setup_.gpus[gpu].context_bytes; }
  /// When a copy of so many bytes is done that begins as soon as the link is free.
  Nanos copy_done_at(std::uint32_t gpu, bool out, Bytes bytes);
  /// The process had so much on the GPU when it ended.
  void memory_leave(std::uint32_t gpu, Bytes bytes);
  /// One process more, or less, waits at a gate of this GPU.
  void waits(std::uint32_t gpu, int more);
  /// What the claims of the job say now.
  void claims_feed(Job& job);

 private:
  void act(const core::TenantAdmitted& action);
  void act(const core::TenantQueued& action);
  void act(const core::TenantRefused& action);
  void act(const core::TenantEnded& action);
  void act(const core::LimitsSet& action);
  void act(const core::LeaseSet& action);
  void act(const core::UsageWanted& action);
  void act(const core::RunawaySeen& action);
  void act(const core::RankLost& action);
  void act(const core::HoldSet& action);
  void act(const core::RoomSet& action);
  void act(const core::MemoryLookWanted& action);
  void act(const core::CheckpointWanted& action);
  void act(const core::TenantMoved& action);
  void act(const core::StayNoted& action);
  void act(const core::MoveFailed&) { result_.moves_failed++; }
  void act(const core::CommandAnswered& action);
  void act(const core::TenantLost& action);
  void act(const core::GpuNoted& action);
  void act(const core::DeviceLookWanted& action);
  void act(const core::MemoryNotReturned& action);
  void act(const core::AlarmSet& action);

  void step(const core::Event& event);
  void look_feed(const core::GpuUuid& gpu);
  std::uint32_t gpu_of(const core::GpuUuid& uuid) const { return uuid.bytes[0] - 1U; }
  bool checkpoint_take(Job& job);
  bool checkpoint_return(Job& job, const core::CheckpointWanted& action);
  void command_give(std::size_t number);
  void idle_tell();
  void limits_change(const LimitsChange& change);
  void clock_jump(Nanos by);
  void alarm_schedule();
  Nanos core_now() const { return clock_.now() + offset_; }
  void job_ask(Job& job);
  void job_again(JobSpec spec);
  void job_start(Job& job);
  void job_plan(Job& job);
  /// Stops the job's processes then, and as often as it says.
  void job_stop(Job& job, Nanos at);
  void core_make();
  void broker_die();
  void broker_start();
  void job_restore(Job& job);
  void job_rejoin(Job& job);
  void grace_over(Job& job);
  void restore_check() const;
  void promises_check() const;
  void device_feed(std::uint32_t gpu);
  void freed_check(const core::TenantAdmitted& action) const;
  void used(Device::Context context, Nanos from, Nanos to);
  Job* job_of(core::TenantId tenant);
  Nanos metered(const Job& job, std::uint32_t index) const;

  Experiment setup_;
  Clock clock_;
  Random random_;
  Random teardown_;  // a stream of its own, so that other draws stay what they are
  std::unique_ptr<core::State, void (*)(core::State*)> core_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::unordered_map<core::TenantId, Job*> by_tenant_;
  std::unordered_map<core::ProcessId, std::pair<Job*, Process*>> by_process_;
  std::vector<bool> closed_;  // GPUs, by the journal
  std::vector<DeviceMemory> memory_;
  struct Waits {
    int processes = 0;
    Nanos since = 0;
    Nanos busy_then = 0;
  };
  std::vector<Waits> waits_;  // at the gates of each GPU
  std::vector<core::UsageWanted> wanted_;
  std::vector<core::GpuUuid> looks_;
  core::ProcessId next_process_ = 1;
  std::uint64_t alarm_ = 0;  // number of the alarm in force
  Nanos alarm_at_ = kNoAlarm;
  Nanos offset_ = 0;          // of the broker's clock
  bool up_ = true;            // a broker serves
  std::uint64_t broker_ = 1;  // which one: what was posted to another is lost
  Result result_;
};

}  // namespace sluice::sim
