// The named situations. Lengths and loads are chosen so that the figure of interest is not the
// noise of a short run.
#include "broker/sim/scenarios.h"

#include <algorithm>

#include "broker/sim/random.h"
#include "broker/sim/units.h"

namespace sluice::sim {
namespace {

JobSpec batch_job(std::string name, std::uint32_t percent) {
  JobSpec job;
  job.name = std::move(name);
  job.sm_percent = percent;
  return job;
}

JobSpec inference_job(std::string name, std::uint32_t percent, double load, std::uint32_t gpu) {
  JobSpec job;
  job.name = std::move(name);
  job.tenant_class = TenantClass::kInference;
  job.sm_percent = percent;
  job.behaviour = Behaviour::kRequests;
  job.rate_hz = load * 100;  // requests of ten 1 ms kernels
  job.pinned = {gpu};
  return job;
}

Experiment gang_setup(std::uint64_t seed) {
  Experiment setup;
  setup.seed = seed;
  setup.policy = policy_usual();
  setup.gpus.resize(2);
  setup.duration_ns = 20 * kSecond;
  JobSpec training = batch_job("training", 40);
  training.behaviour = Behaviour::kTraining;
  training.gpu_count = 2;
  training.kernels = 20;
  setup.jobs = {training, inference_job("serve-0", 40, 0.3, 0),
                inference_job("serve-1", 40, 0.3, 1)};
  JobSpec debug = batch_job("debug", 20);
  debug.tenant_class = TenantClass::kDebug;
  debug.behaviour = Behaviour::kBursts;
  debug.think_ns = 50 * kMs;
  setup.jobs.push_back(debug);
  return setup;
}

Experiment gang_long_setup(std::uint64_t seed) { return setup_gang(GangSetup{}, seed); }

Experiment gang_light_setup(std::uint64_t seed) {
  GangSetup gang;
  gang.load = 0.25;
  return setup_gang(gang, seed);
}

Experiment gangs_setup(std::uint64_t seed) {
  Experiment setup;
  setup.seed = seed;
  setup.policy = policy_usual();
  setup.gpus.resize(3);
  setup.duration_ns = 10 * kSecond;
  for (std::uint32_t i = 0; i < 3; ++i) {
    JobSpec gang = batch_job("ring-" + std::to_string(i), 50);
    gang.behaviour = Behaviour::kTraining;
    gang.gpu_count = 2;
    gang.kernels = 5;
    gang.pinned = {i, (i + 1) % 3};
    setup.jobs.push_back(gang);
  }
  for (std::uint32_t i = 0; i < 3; ++i) {
    setup.jobs.push_back(batch_job("single-" + std::to_string(i), 50));
    setup.jobs.back().pinned = {i};
  }
  return setup;
}

Experiment runaway_setup(std::uint64_t seed) {
  Experiment setup = setup_shares({50, 25, 25}, seed);
  setup.jobs[0].name = "endless";
  setup.jobs[0].endless_at = 2 * kSecond;
  setup.policy.drain_timeout_ns = 200 * kMs;
  setup.policy.runaway_after_ns = 300 * kMs;
  setup.duration_ns = 6 * kSecond;
  return setup;
}

/// Bursts that no window bounds: each is one launch of many long kernels.
JobSpec bursting_job(std::string name, std::uint32_t percent, Nanos burst_ns) {
  constexpr Nanos kKernelNs = 30 * kMs;
  JobSpec job = batch_job(std::move(name), percent);
  job.behaviour = Behaviour::kBursts;
  job.think_ns = kMs;
  job.kernel_ns = kKernelNs;
  job.kernels = job.launch_kernels = static_cast<std::uint32_t>(burst_ns / kKernelNs);
  return job;
}

Experiment exclusive_setup(std::uint64_t seed) {
  Experiment setup;
  setup.seed = seed;
  setup.policy = policy_usual();
  setup.gpus.resize(2);
  setup.duration_ns = 10 * kSecond;
  for (std::uint32_t i = 0; i < 2; ++i) {
    setup.jobs.push_back(inference_job("serve-" + std::to_string(i), 50, 0.3, i));
    setup.jobs.back().end_ns = (2 + i) * kSecond;
  }
  JobSpec training = batch_job("training", 100);
  training.tenant_class = TenantClass::kExclusive;
  training.behaviour = Behaviour::kTraining;
  training.gpu_count = 2;
  training.tasks = 200;
  training.start_ns = kSecond;
  setup.jobs.push_back(training);
  JobSpec late = batch_job("late", 50);
  late.start_ns = 1500 * kMs;
  setup.jobs.push_back(late);
  return setup;
}

Experiment modes_setup(std::uint64_t seed) {
  Experiment setup = setup_shares({25, 30, 70}, seed);
  setup.jobs[0].sm_mode = SmMode::kEqual;
  setup.jobs[0].name = "equal";
  return setup;
}

Experiment fixed_setup(std::uint64_t seed) {
  Experiment setup = setup_shares({25}, seed);
  setup.jobs[0].sm_mode = SmMode::kFixed;
  setup.jobs[0].name = "fixed-25";
  return setup;
}

Experiment crowd_setup(std::uint64_t seed) {
  Experiment setup;
  setup.seed = seed;
  setup.policy = policy_usual();
  setup.policy.tenants_per_user_max = 1000;
  setup.gpus.assign(4, GpuSpec{Bytes{64} * kGiB, 32 * kMiB});
  setup.duration_ns = 2 * kSecond;
  setup.check = false;  // a thousand tenants are checked by the smaller scenarios
  Random random(seed);
  for (std::uint32_t i = 0; i < 1000; ++i) {
    JobSpec job =
        batch_job("tenant-" + std::to_string(i), static_cast<std::uint32_t>(random.range(1, 100)));
    job.uid = 1000 + i % 50;
    if (i % 3 == 0) {
      job.tenant_class = TenantClass::kDebug;
      job.behaviour = Behaviour::kBursts;
      job.think_ns = 100 * kMs;
    }
    job.start_ns = random.range(0, kSecond / 5);
    setup.jobs.push_back(job);
  }
  return setup;
}

core::Policy policy_swapping() {
  core::Policy policy = policy_usual();
  policy.swap = true;
  policy.oversell_memory = 4;
  return policy;
}

/// Somebody who has most of the memory and sleeps beside two that work and take turns; then a
/// fourth one comes that needs room.
Experiment idle_setup(std::uint64_t seed) {
  Experiment setup = setup_oversold(4, 30, 0, seed);
  setup.duration_ns = 10 * kSecond;
  JobSpec& sleeper = setup.jobs[2];
  sleeper.name = "sleeper";
  sleeper.behaviour = Behaviour::kBursts;
  sleeper.kernels = 1;
  sleeper.think_ns = 3600 * kSecond;
  setup.jobs[3].name = "late";
  setup.jobs[3].start_ns = 3 * kSecond;
  return setup;
}

/// Shared tenants, one of which cannot be swapped, step aside for an exclusive gang and come back.
Experiment aside_setup(std::uint64_t seed) {
  Experiment setup;
  setup.seed = seed;
  setup.policy = policy_swapping();
  setup.policy.exclusive_room = core::ExclusiveRoom::kSuspend;
  setup.gpus.resize(2);
  setup.duration_ns = 20 * kSecond;
  for (std::uint32_t i = 0; i < 4; ++i) {
    JobSpec job = batch_job("shared-" + std::to_string(i), 50);
    job.memory_max = 2 * kGiB;
    job.memory_use = job.memory_max - 32 * kMiB;
    job.swap = i != 3;
    job.pinned = {i % 2};
    job.tasks = 4000;
    setup.jobs.push_back(job);
  }
  JobSpec training = batch_job("training", 100);
  training.tenant_class = TenantClass::kExclusive;
  training.behaviour = Behaviour::kTraining;
  training.gpu_count = 2;
  training.tasks = 200;
  training.start_ns = 2 * kSecond;
  training.memory_use = 6 * kGiB;
  setup.jobs.push_back(training);
  return setup;
}

/// An exclusive job over four shared ones, for two of which the other GPU has room.
Experiment aside_move_setup(std::uint64_t seed) {
  Experiment setup = aside_setup(seed);
  setup.policy.exclusive_room = core::ExclusiveRoom::kMove;
  for (JobSpec& job : setup.jobs) {
    job.swap = false;
    job.pinned.clear();
    job.tasks = 8000;
  }
  JobSpec& training = setup.jobs.back();
  training.tasks = 400;
  training.gpu_count = 1;
  training.pinned = {0};
  JobSpec there = batch_job("there", 50);
  there.memory_max = 4 * kGiB;
  there.memory_use = there.memory_max - 32 * kMiB;
  there.pinned = {1};
  setup.jobs.push_back(there);
  setup.duration_ns = 60 * kSecond;
  return setup;
}

const Scenario kScenarios[] = {
    {"shares-50-50", "two batch tenants at 50 and 50 %",
     [](std::uint64_t s) {
       return setup_shares({50, 50}, s);
     }},
    {"shares-30-70", "two batch tenants at 30 and 70 %",
     [](std::uint64_t s) {
       return setup_shares({30, 70}, s);
     }},
    {"shares-10-90", "two batch tenants at 10 and 90 %",
     [](std::uint64_t s) {
       return setup_shares({10, 90}, s);
     }},
    {"shares-25-25-50", "three batch tenants",
     [](std::uint64_t s) {
       return setup_shares({25, 25, 50}, s);
     }},
    {"shares-10-20-30-40", "four batch tenants",
     [](std::uint64_t s) {
       return setup_shares({10, 20, 30, 40}, s);
     }},
    {"modes", "an equal tenant beside best-effort 30 and 70: a third, and the rest 30:70",
     modes_setup},
    {"fixed", "a fixed tenant of 25 % alone: capped on an idle GPU", fixed_setup},
    {"priority", "inference requests at load 0.5 beside batch",
     [](std::uint64_t s) { return setup_priority(0.5, true, s); }},
    {"priority-alone", "the same inference requests with nobody else",
     [](std::uint64_t s) { return setup_priority(0.5, false, s); }},
    {"gang", "training on two GPUs (spinning collectives) beside inference on both and debug",
     gang_setup},
    {"gang-long",
     "training on two GPUs beside inference at load 0.44 and debug with kernels of 20-40 ms",
     gang_long_setup},
    {"gang-light", "the same with inference at load 0.25", gang_light_setup},
    {"gangs", "three gangs in a ring of three GPUs, and a single on each", gangs_setup},
    {"runaway", "an endless kernel beside two tenants; ended by policy", runaway_setup},
    {"endless", "an endless kernel of a fixed 5 % beside a fixed 90 %, again and again",
     [](std::uint64_t s) { return setup_endless(1, true, s); }},
    {"endless-six", "six processes with one each",
     [](std::uint64_t s) { return setup_endless(6, true, s); }},
    {"bursts", "bursts of 1.5 s of a tenant of 25 % beside one of 75 %",
     [](std::uint64_t s) { return setup_bursts(1500 * kMs, 1, s); }},
    {"bursts-two", "two tenants of 12 % with such bursts",
     [](std::uint64_t s) { return setup_bursts(1500 * kMs, 2, s); }},
    {"pulses", "a tenant of half whose processes are stopped for 0.9 s at a time beside another",
     [](std::uint64_t s) { return setup_pulses(900 * kMs, s); }},
    {"exclusive", "an exclusive gang waits for two GPUs, gets them, hands them back",
     exclusive_setup},
    {"crowd", "a thousand tenants on four GPUs", crowd_setup},
    {"oversold", "eight tenants of 40 % of the memory each, all working all the time",
     [](std::uint64_t s) { return setup_oversold(8, 40, 3000, s); }},
    {"idle-victim", "a sleeper makes room for somebody who comes late, workers do not", idle_setup},
    {"aside", "shared tenants are suspended for an exclusive gang and come back", aside_setup},
    {"aside-move",
     "an exclusive job over shared ones that go on on another GPU, as far as it has room",
     aside_move_setup},
    {"chaos", "a random mixture of everything, by seed", setup_chaos},
    {"restarts", "the same, with a broker that is killed and started again", setup_restarts},
};

}  // namespace

Experiment setup_gang(const GangSetup& gang, std::uint64_t seed) {
  Experiment setup;
  setup.seed = seed;
  setup.policy = policy_usual();
  for (core::ClassPolicy& c : setup.policy.classes) {
    c.window_ns = 20 * kMs;  // the default
    c.sm = core::SmRule::kAsked;
  }
  setup.gpus.resize(gang.gpus);
  setup.duration_ns = 30 * kSecond;
  setup.window_ns = 2 * kSecond;
  JobSpec training = batch_job("training", gang.percent);
  training.behaviour = Behaviour::kTraining;
  training.gpu_count = gang.gpus;
  training.sm_weight = gang.weight;
  training.kernels = gang.step_kernels;
  training.kernel_ns = gang.step_kernel_ns;
  training.kernel_jitter = 0.5;
  training.communication_ns = gang.collective_ns;
  training.collective_host_ns = gang.collective_host_ns;
  setup.jobs = {training};
  for (std::uint32_t gpu = 0; gpu < gang.gpus; ++gpu) {
    const std::string number = "-" + std::to_string(gpu);
    if (gang.load > 0) {
      JobSpec serve = inference_job("serve" + number, 40, gang.load, gpu);
      serve.kernel_ns = gang.serve_kernel_ns;
      serve.kernel_jitter = 1.0 / 3;
      serve.kernels = gang.serve_kernels;
      serve.rate_hz = gang.load * 1e9 /
                      static_cast<double>(serve.kernel_ns * static_cast<Nanos>(serve.kernels));
      setup.jobs.push_back(serve);
    }
    if (gang.debug_percent == 0) continue;
    JobSpec debug = batch_job("debug" + number, gang.debug_percent);
    debug.tenant_class = TenantClass::kDebug;
    debug.pinned = {gpu};
    debug.kernel_ns = gang.debug_kernel_ns;
    debug.kernel_jitter = 1.0 / 3;
    debug.kernels = 1;
    debug.behaviour = gang.debug_think_ns > 0 ? Behaviour::kBursts : Behaviour::kLoop;
    debug.think_ns = gang.debug_think_ns;
    setup.jobs.push_back(debug);
  }
  for (JobSpec& job : setup.jobs) job.busy_host = true;
  return setup;
}

Experiment setup_endless(std::uint32_t processes, bool again, std::uint64_t seed) {
  Experiment setup = setup_shares({90, 5}, seed);
  for (JobSpec& job : setup.jobs) job.sm_mode = SmMode::kFixed;
  JobSpec& endless = setup.jobs[1];
  endless.name = "endless";
  endless.uid = 1001;
  endless.processes = processes;
  endless.endless_at = 1;
  endless.again = again;
  setup.window_ns = 2 * kSecond;
  setup.duration_ns = 300 * kSecond;
  return setup;
}

Experiment setup_bursts(Nanos burst_ns, std::uint32_t bursting, std::uint64_t seed) {
  Experiment setup = setup_shares({75}, seed);
  for (std::uint32_t i = 0; i < bursting; ++i)
    setup.jobs.push_back(bursting_job("bursts-" + std::to_string(i), 25 / bursting, burst_ns));
  setup.window_ns = 2 * kSecond;
  setup.duration_ns = 300 * kSecond;
  return setup;
}

Experiment setup_pulses(Nanos stop_ns, std::uint64_t seed) {
  Experiment setup = setup_shares({50, 50}, seed);
  JobSpec& pulses = setup.jobs[1];
  pulses.name = "pulses";
  pulses.uid = 1001;
  pulses.stop_at = 100 * kMs;
  pulses.stop_ns = stop_ns;
  pulses.stop_every_ns = 100 * kMs;
  setup.window_ns = 2 * kSecond;
  setup.duration_ns = 60 * kSecond;
  return setup;
}

core::Policy policy_usual() {
  core::Policy policy;
  policy.inference_window_ns = kMs;
  return policy;
}

Experiment setup_shares(const std::vector<std::uint32_t>& percents, std::uint64_t seed) {
  Experiment setup;
  setup.seed = seed;
  setup.policy = policy_usual();
  for (std::uint32_t percent : percents) {
    setup.jobs.push_back(batch_job("batch-" + std::to_string(percent), percent));
    setup.jobs.back().kernel_jitter = 0.5;
  }
  return setup;
}

Experiment setup_priority(double load, bool batch, std::uint64_t seed) {
  Experiment setup;
  setup.seed = seed;
  setup.policy = policy_usual();
  setup.duration_ns = 60 * kSecond;
  setup.jobs = {inference_job("serve", 70, load, 0)};
  if (batch) setup.jobs.push_back(batch_job("batch", 30));
  return setup;
}

Experiment setup_oversold(std::uint32_t tenants, std::uint32_t memory_percent,
                          std::uint64_t kernels, std::uint64_t seed) {
  Experiment setup;
  setup.seed = seed;
  setup.policy = policy_swapping();
  setup.duration_ns = 60 * kSecond;
  const GpuSpec& gpu = setup.gpus.front();
  for (std::uint32_t i = 0; i < tenants; ++i) {
    JobSpec job = batch_job("tenant-" + std::to_string(i), 100);
    job.memory_max = gpu.capacity * memory_percent / 100;
    job.memory_use = job.memory_max - gpu.context_bytes;
    job.swap = true;
    job.tasks = kernels;
    job.kernel_jitter = 0.5;
    setup.jobs.push_back(job);
  }
  return setup;
}

std::span<const Scenario> scenarios() { return kScenarios; }

std::optional<Experiment> scenario_make(const std::string& name, std::uint64_t seed) {
  for (const Scenario& scenario : kScenarios)
    if (name == scenario.name) return scenario.make(seed);
  return std::nullopt;
}

}  // namespace sluice::sim
