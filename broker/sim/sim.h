// The simulator: the broker's real core over a model of GPUs, shims and programs, in virtual time.
//
// It exists to prove claims about policy exactly and repeatably: the same seed gives the same run
// to the nanosecond. The core under test is the daemon's, unchanged; everything around it is a
// model, described in README.md. It must not know the daemon, a clock or a socket.
//
// Thread safety: simulate() keeps no global state; runs may go on in parallel. Failure: a broken
// invariant of the core aborts with its text; a Experiment that makes no sense (no GPU, a job with
// no process) asserts.
#pragma once

#include <string>
#include <vector>

#include "broker/core/core.h"

namespace sluice::sim {

using core::Bytes;
using core::Nanos;
using core::SmMode;
using core::TenantClass;

enum class Behaviour : std::uint8_t {
  kLoop,      // launches kernels for ever (or `tasks` kernels)
  kRequests,  // open loop: Poisson arrivals at rate_hz, each `kernels` kernels; latency from the
              // intended arrival
  kBursts,  // closed loop: thinks for think_ns on average, then `kernels` kernels; latency from the
            // end of thinking
  kTraining,  // one process per GPU; steps of `kernels` kernels and one collective in which each
              // rank spins for the others
};

struct JobSpec {
  std::string name;
  std::uint32_t uid = 1000;
  TenantClass tenant_class = TenantClass::kBatch;
  SmMode sm_mode = SmMode::kBestEffort;
  std::uint32_t sm_percent = 100;
  bool sm_weight = false;  // sm_percent is a weight, whatever the class says
  Bytes memory_max = Bytes{256} << 20;
  Bytes memory_min = 0;  // 0 = memory_max
  std::uint32_t gpu_count = 1;
  std::vector<std::uint32_t> pinned;  // indexes into Experiment::gpus
  Nanos wait_ns_max = 0;
  bool no_wait = false;

  Behaviour behaviour = Behaviour::kLoop;
  std::uint32_t processes = 1;  // kTraining: always one per GPU
  Nanos start_ns = 0;
  Nanos end_ns = 0;         // its processes exit then; 0 = at the end of its work, or never
  std::uint64_t tasks = 0;  // kernels, requests, bursts or steps to do per process; 0 = no limit
  Nanos kernel_ns = 1'000'000;
  std::vector<Nanos> rank_kernel_ns;  // by GPU; empty = kernel_ns on each
  double kernel_jitter = 0;    // each kernel's length is uniform within +- this part of kernel_ns
  std::uint32_t kernels = 10;  // per task
  std::uint32_t queue_depth =
      4;  // kernels the program itself keeps in flight where no window is set
  std::uint32_t launch_kernels = 1;  // kernels that pass the gate together: a graph's
  Nanos host_ns = 0;  // from the end of a synchronisation to the next launch; with queue_depth 1
                      // each launch is followed by one
  double rate_hz = 10;
  Nanos think_ns = 20'000'000;
  bool eager = false;     // kTraining: ranks do not synchronise, they launch step after step
  Nanos wake_ns_max = 0;  // a sleeper at the gate takes up to so long to look (a busy host)
  Nanos communication_ns = 500'000;
  Nanos collective_host_ns = 0;  // kTraining: the host's part of a collective, before it and after
                                 // it, with nothing on the GPU
  bool busy_host = false;  // whatever waits for a lease or for the end of a kernel looks late,
                           // by Random::wake

  // Memory: each process allocates so much at its start, in `memory_steps` parts with a task
  // between them; 0 = it is not modelled. Swappable jobs can move all but their contexts.
  Bytes memory_use = 0;
  std::uint32_t memory_steps = 1;
  bool swap = false;
  double move_fails = 0;        // part of its orders to move that it cannot carry out
  double claims_factor = 1;     // what its claims say over the truth
  double checkpoint_fails = 0;  // part of the driver's checkpoints of it that fail

  Nanos crash_at = 0;  // kill -9 of one process (of all, where crash_all); 0 = never
  bool crash_all = true;
  Nanos endless_at = 0;     // the first kernel after this time never ends; 0 = never
  bool again = false;       // its user starts it anew whenever it has ended: one more job
  Nanos stop_at = 0;        // its processes are stopped (SIGSTOP) then; 0 = never
  Nanos stop_ns = 0;        // and go on after that
  Nanos stop_every_ns = 0;  // again and again, so long after they went on; 0 = once
  Nanos detach_at = 0;      // its processes lose their sockets then; 0 = never
  Nanos detach_ns = 0;      // and register again after that
  Nanos release_at = 0;     // the job says that it is over, and lives on
  double meter_factor = 1;  // what its meter says over the truth: a liar's is not 1
};

struct GpuSpec {
  Bytes capacity = Bytes{8} << 30;
  Bytes context_bytes = Bytes{32} << 20;
};

/// A reload of the configuration.
struct PolicyChange {
  Nanos at = 0;
  core::Policy policy;
};

/// Other limits for a job that runs, as a reload brings them.
struct LimitsChange {
  Nanos at = 0;
  std::uint32_t job = 0;  // index into Experiment::jobs
  std::uint32_t sm_percent = 100;
  Bytes memory_max = 0;
};

/// `sluice suspend` and its kin, by root.
struct CommandSpec {
  Nanos at = 0;
  protocol::CommandVerb verb = protocol::CommandVerb::kSuspend;
  std::uint32_t job = 0;  // index into Experiment::jobs
  std::uint32_t gpu = 0;  // index into Experiment::gpus
};

/// The broker's clock, seen against the model's time.
struct ClockJump {
  Nanos at = 0;
  Nanos by = 0;  // negative = back
};

struct GpuLoss {
  Nanos at = 0;
  std::uint32_t gpu = 0;
};

struct Experiment {
  std::uint64_t seed = 1;
  std::vector<GpuSpec> gpus{GpuSpec{}};
  core::Policy policy;
  std::vector<JobSpec> jobs;
  Nanos duration_ns = 10'000'000'000;
  Nanos delay_ns = 20'000;          // one way between shim and broker, and of waking a sleeper
  Nanos window_ns = 1'000'000'000;  // shares are recorded per window of this length
  bool check = true;                // invariants,
  std::uint64_t check_every = 1;    // after every so many steps
  Nanos teardown_ns_max = 0;  // the device frees what a process had up to so long after its end
  Bytes copy_rate = Bytes{12} << 30;  // bytes a second between a GPU and the host, each way
  std::vector<PolicyChange> policy_changes;
  std::vector<LimitsChange> limits;
  std::vector<CommandSpec> commands;
  Nanos idle_every_ns = 0;  // so often each tenant is told of as idle; 0 = never
  std::vector<ClockJump> jumps;
  std::vector<GpuLoss> losses;

  // kill -9 of the broker, and the next one with its journal.
  std::vector<Nanos> broker_dies_at;       // ascending, further apart than broker_away_ns
  Nanos broker_away_ns = 100'000'000;      // until the next one serves
  Nanos register_ns_max = 500'000'000;     // a process finds the new broker within this time
  Nanos restore_grace_ns = 1'000'000'000;  // how long it keeps tenants of whom nobody shows up
};

struct JobResult {
  std::string name;
  bool admitted = false;
  std::string refused;       // the refusal's text
  std::uint32_t queued = 0;  // announcements while it waited
  Nanos admitted_ns = 0;
  Nanos ended_ns = 0;  // 0 = still there at the end
  std::vector<std::uint32_t> gpus;
  std::vector<Nanos> busy_ns;                      // true device time, per GPU of the job
  std::vector<std::vector<Nanos>> window_busy_ns;  // the same per window
  std::vector<Nanos> latency_ns;  // requests, bursts, steps, in the order of their ends
  std::uint64_t tasks = 0;        // tasks done by all its processes
  std::uint64_t kernels = 0;
  std::uint32_t runaways = 0;
  std::uint32_t refused_allocations = 0;  // the driver had no room, and none could be made
  std::uint32_t room_waits = 0;           // it had none at first
  Bytes moved_out_bytes = 0;
  Bytes moved_in_bytes = 0;
  std::uint32_t lost = 0;        // told that its GPU is gone
  Nanos longest_wait_ns = 0;     // of any process at the gate
  std::vector<Nanos> starts_ns;  // per task: from wanting to launch to the first launch
};

struct Result {
  std::vector<JobResult> jobs;
  std::vector<Nanos> gpu_busy_ns;
  std::vector<Nanos> gpu_idle_wanted_ns;  // idle while a process waited at a gate of it
  Nanos makespan_ns = 0;                  // end of the last job that ended; duration if none did
  std::uint64_t steps = 0;                // events the core took
  std::uint64_t restored = 0;   // tenants taken over by a new broker, all restarts together
  std::uint64_t over_away = 0;  // of them: ended while there was no broker
  std::uint64_t actions = 0;
  std::uint64_t moves_failed = 0;
  std::uint64_t device_looks = 0;  // times the device was asked what is in use
  std::uint64_t memory_kept = 0;   // times it was not believed any longer that memory comes back
  std::uint64_t commands_done = 0;
  std::uint64_t commands_refused = 0;
  std::vector<Bytes> memory_used;  // per GPU, at the end
  core::View view;                 // the core's own books at the end
};

Result simulate(const Experiment& setup);

/// The value below which `part` (0..1) of the values lie (nearest rank); 0 for none.
Nanos percentile(std::vector<Nanos> values, double part);

}  // namespace sluice::sim
