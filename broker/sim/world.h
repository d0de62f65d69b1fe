// The simulated machine: core, clock, devices and jobs, and the wires between them. Private to the
// simulator.
#pragma once

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
  core::TenantAdmitted grant;       // what the journal has of it
  bool released = false;            // the broker has heard so
  bool forgotten = false;           // the broker has ended it
  std::vector<Nanos> dead_busy_ns;  // per GPU, metered, of processes that are gone
  std::map<std::uint64_t, std::shared_ptr<Collective>> collectives;  // by step
  JobResult result;
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
  /// What the daemon sees by itself (deaths): reaches the core now.
  void feed(const core::Event& event);
  Nanos delay() const { return setup_.delay_ns; }
  void process_exit(Job& job, Process& process);

 private:
  void act(const core::TenantAdmitted& action);
  void act(const core::TenantQueued& action);
  void act(const core::TenantRefused& action);
  void act(const core::TenantEnded& action);
  void act(const core::LimitsSet&) {}
  void act(const core::LeaseSet& action);
  void act(const core::UsageWanted& action);
  void act(const core::RunawaySeen& action);
  void act(const core::AlarmSet& action);

  void job_ask(Job& job);
  void job_start(Job& job);
  void job_kill(Job& job, bool all);
  void job_plan(Job& job);
  void core_make();
  void broker_die();
  void broker_start();
  void job_restore(Job& job);
  void job_rejoin(Job& job);
  void grace_over(Job& job);
  void restore_check() const;
  void promises_check() const;
  void used(Device::Context context, Nanos from, Nanos to);
  Job* job_of(core::TenantId tenant);
  Nanos metered(const Job& job, std::uint32_t index) const;

  Experiment setup_;
  Clock clock_;
  Random random_;
  std::unique_ptr<core::State, void (*)(core::State*)> core_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::unordered_map<core::TenantId, Job*> by_tenant_;
  std::unordered_map<core::ProcessId, std::pair<Job*, Process*>> by_process_;
  std::vector<core::UsageWanted> wanted_;
  core::ProcessId next_process_ = 1;
  std::uint64_t alarm_ = 0;   // number of the alarm in force
  bool up_ = true;            // a broker serves
  std::uint64_t broker_ = 1;  // which one: what was posted to another is lost
  Result result_;
};

}  // namespace sluice::sim
