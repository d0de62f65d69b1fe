// The named situations. Lengths and loads are chosen so that the figure of interest is not the
// noise of a short run.
#include "broker/sim/scenarios.h"

#include <algorithm>

#include "broker/sim/random.h"

namespace sluice::sim {
namespace {

constexpr Nanos kMs = 1'000'000;
constexpr Nanos kSecond = 1'000'000'000;
constexpr Bytes kGiB = Bytes{1} << 30;
constexpr Bytes kMiB = Bytes{1} << 20;

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
  setup.policy.runaway = core::RunawayPolicy::kEnd;
  setup.duration_ns = 6 * kSecond;
  return setup;
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

// ---- chaos: small random helpers ----

void chaos_behaviour(Random& random, JobSpec& job, std::size_t gpus) {
  switch (random.range(0, 3)) {
    case 0:
      break;
    case 1:
      job.behaviour = Behaviour::kRequests;
      job.rate_hz = static_cast<double>(random.range(1, 60));
      break;
    case 2:
      job.behaviour = Behaviour::kBursts;
      job.think_ns = random.range(1, 50) * kMs;
      break;
    default:
      job.behaviour = Behaviour::kTraining;
      job.gpu_count = static_cast<std::uint32_t>(random.range(1, static_cast<std::int64_t>(gpus)));
  }
  if (job.behaviour == Behaviour::kLoop && random.chance(0.3))
    job.processes = static_cast<std::uint32_t>(random.range(2, 4));
  if (gpus > 1 && job.behaviour != Behaviour::kTraining && random.chance(0.1)) job.gpu_count = 2;
  job.kernels = static_cast<std::uint32_t>(random.range(1, 12));
  job.kernel_ns = random.range(100'000, 3'000'000);
  job.kernel_jitter = random.chance(0.5) ? 0.5 : 0;
  if (random.chance(0.4)) job.tasks = static_cast<std::uint64_t>(random.range(1, 60));
}

void chaos_accidents(Random& random, JobSpec& job, Nanos duration) {
  if (random.chance(0.3)) {
    job.crash_at = job.start_ns + random.range(1, duration / 2);
    job.crash_all = random.chance(0.7);
  }
  if (random.chance(0.1)) job.endless_at = job.start_ns + random.range(1, duration / 2);
  if (random.chance(0.1)) job.meter_factor = random.chance(0.5) ? 0 : 3;
  if (random.chance(0.1)) job.release_at = job.start_ns + random.range(1, duration);
  if (random.chance(0.2)) job.end_ns = job.start_ns + random.range(1, duration / 2);
  if (random.chance(0.2)) job.wait_ns_max = random.range(1, duration / 4);
}

void chaos_memory(Random& random, JobSpec& job) {
  const Bytes part = job.memory_max / job.processes;
  const Bytes context = GpuSpec{}.context_bytes;
  if (part <= context || random.chance(0.2)) return;
  const double used = 0.5 + 0.5 * random.unit();
  job.memory_use = static_cast<Bytes>(static_cast<double>(part - context) * used);
  job.memory_steps = static_cast<std::uint32_t>(random.range(1, 3));
  job.swap = random.chance(0.8);
  if (random.chance(0.3)) job.move_fails = 0.4;
  if (random.chance(0.05)) job.claims_factor = random.chance(0.5) ? 0 : 5;
  if (random.chance(0.3)) job.checkpoint_fails = 0.5;
}

/// Commands of people, a clock that jumps, a GPU that is lost.
void chaos_events(Random& random, Experiment& setup) {
  const auto last = static_cast<std::int64_t>(setup.jobs.size()) - 1;
  const auto last_gpu = static_cast<std::int64_t>(setup.gpus.size()) - 1;
  for (std::int64_t left = random.chance(0.5) ? random.range(1, 12) : 0; left > 0; --left) {
    CommandSpec command;
    command.at = random.range(0, setup.duration_ns);
    command.verb = static_cast<protocol::CommandVerb>(random.range(1, 5));
    command.job = static_cast<std::uint32_t>(random.range(0, last));
    command.gpu = static_cast<std::uint32_t>(random.range(0, last_gpu));
    setup.commands.push_back(command);
  }
  if (random.chance(0.2))
    setup.jumps.push_back({random.range(0, setup.duration_ns), random.range(-200, 2000) * kMs});
  if (random.chance(0.1))
    setup.losses.push_back({random.range(0, setup.duration_ns),
                            static_cast<std::uint32_t>(random.range(0, last_gpu))});
}

void chaos_policy(Random& random, core::Policy& policy) {
  policy.swap = random.chance(0.8);
  policy.swap_quantum_ns = random.range(0, 100) * kMs;
  policy.hold_timeout_ns = random.range(20, 500) * kMs;
  policy.move_timeout_ns = random.range(50, 1000) * kMs;
  if (random.chance(0.2))
    policy.swap_host_bytes_per_user = static_cast<Bytes>(random.range(1, 4)) * kGiB;
  if (random.chance(0.5)) policy.exclusive_room = core::ExclusiveRoom::kSuspend;
  if (random.chance(0.5)) policy.oversell_memory = 3;
}

/// Reloads of the configuration, and processes that are stopped for a while. Draws of its own, so
/// that the other seeds stay what they are.
void chaos_changes(std::uint64_t seed, Experiment& setup) {
  Random random(seed ^ 0x5eed);
  const auto last = static_cast<std::int64_t>(setup.jobs.size()) - 1;
  for (std::int64_t left = seed % 4 == 1 ? random.range(1, 4) : 0; left > 0; --left) {
    PolicyChange change{random.range(0, setup.duration_ns), setup.policy};
    change.policy.order = static_cast<core::Order>(random.range(0, core::kOrders - 1));
    change.policy.quantum_ns = random.range(5, 20) * kMs;
    change.policy.drain_timeout_ns = random.range(5, 100) * kMs;
    change.policy.inference_window_ns = random.range(100'000, 2 * kMs);
    change.policy.exclusive_room = static_cast<core::ExclusiveRoom>(random.range(0, 2));
    change.policy.oversell_memory = static_cast<double>(random.range(2, 6)) / 2;
    change.policy.swap = random.chance(0.7);
    setup.policy_changes.push_back(change);
  }
  for (std::int64_t left = seed % 4 < 2 ? random.range(0, 6) : 0; left > 0; --left)
    setup.limits.push_back({random.range(0, setup.duration_ns),
                            static_cast<std::uint32_t>(random.range(0, last)),
                            static_cast<std::uint32_t>(random.range(1, 100)),
                            static_cast<Bytes>(random.range(16, 3000)) * kMiB});
  for (JobSpec& job : setup.jobs) {
    if (seed % 4 < 2 || !random.chance(0.2)) continue;
    job.stop_at = job.start_ns + random.range(1, setup.duration_ns / 2);
    job.stop_ns = random.range(1, 400) * kMs;
  }
}

JobSpec chaos_job(Random& random, std::uint32_t number, std::size_t gpus, Nanos duration) {
  JobSpec job;
  job.name = "job-" + std::to_string(number);
  job.uid = static_cast<std::uint32_t>(random.range(1000, 1003));
  job.tenant_class = static_cast<TenantClass>(random.range(0, random.chance(0.2) ? 3 : 2));
  job.sm_mode = static_cast<SmMode>(random.range(0, 2));
  job.sm_percent = static_cast<std::uint32_t>(random.range(1, 100));
  job.memory_max = static_cast<Bytes>(random.range(16, 3000)) * kMiB;
  if (random.chance(0.3)) job.memory_min = job.memory_max / 2;
  job.no_wait = random.chance(0.1);
  job.start_ns = random.range(0, duration / 2);
  chaos_behaviour(random, job, gpus);
  chaos_memory(random, job);
  chaos_accidents(random, job, duration);
  return job;
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
    {"gangs", "three gangs in a ring of three GPUs, and a single on each", gangs_setup},
    {"runaway", "an endless kernel beside two tenants; ended by policy", runaway_setup},
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

Experiment setup_chaos(std::uint64_t seed) {
  Random random(seed);
  Experiment setup;
  setup.seed = random.next();
  setup.policy = policy_usual();
  setup.policy.order = static_cast<core::Order>(seed % core::kOrders);
  setup.policy.drain_timeout_ns = random.range(5, 100) * kMs;
  setup.policy.quantum_ns = random.range(5, 20) * kMs;
  setup.policy.oversell_memory = random.chance(0.5) ? 1.5 : 1.0;
  setup.policy.runaway =
      random.chance(0.5) ? core::RunawayPolicy::kEnd : core::RunawayPolicy::kReport;
  setup.policy.rank_loss = seed % 2 == 0 ? core::RankLoss::kEnd : core::RankLoss::kKeep;
  setup.policy.tenants_per_user_max = static_cast<std::uint32_t>(random.range(2, 8));
  setup.gpus.resize(static_cast<std::size_t>(random.range(1, 4)));
  for (GpuSpec& gpu : setup.gpus) gpu.capacity = static_cast<Bytes>(random.range(2, 8)) * kGiB;
  setup.delay_ns = random.range(0, 200'000);
  setup.duration_ns = kSecond;
  const std::int64_t jobs = random.range(3, 16);
  for (std::int64_t i = 0; i < jobs; ++i)
    setup.jobs.push_back(
        chaos_job(random, static_cast<std::uint32_t>(i), setup.gpus.size(), setup.duration_ns));
  chaos_policy(random, setup.policy);
  setup.copy_rate = static_cast<Bytes>(random.range(4, 64)) * kGiB;
  chaos_events(random, setup);
  // Not drawn, so that the other seeds stay what they are.
  if (seed % 2 == 0 && setup.policy.exclusive_room == core::ExclusiveRoom::kSuspend)
    setup.policy.exclusive_room = core::ExclusiveRoom::kMove;
  chaos_changes(seed, setup);
  if (seed % 3 != 0) setup.teardown_ns_max = static_cast<Nanos>(1 + seed % 40) * 5 * kMs;
  // Hardly any host memory now and then; not drawn, so that the other seeds stay what they are.
  constexpr std::uint64_t kScarceEvery = 5;
  if (seed % kScarceEvery == 0)
    setup.policy.swap_host_bytes_per_user = (1 + seed / kScarceEvery % 8) * 256 * kMiB;
  return setup;
}

Experiment setup_multitude(std::uint64_t seed) {
  Random random(seed);
  Experiment setup;
  setup.seed = seed;
  setup.policy = policy_usual();
  setup.policy.tenants_per_user_max = 1000;
  setup.gpus.assign(8, GpuSpec{Bytes{128} * kGiB, 32 * kMiB});
  setup.duration_ns = 2 * kSecond;
  setup.teardown_ns_max = 20 * kMs;
  setup.check_every = 97;  // a look at three thousand tenants takes as long as hundreds of steps
  constexpr std::uint32_t kJobs = 3000;
  for (std::uint32_t i = 0; i < kJobs; ++i) {
    JobSpec job =
        batch_job("tenant-" + std::to_string(i), static_cast<std::uint32_t>(random.range(1, 100)));
    job.uid = 1000 + i % 40;
    job.tenant_class = static_cast<TenantClass>(i % 3);
    job.memory_max = static_cast<Bytes>(random.range(64, 512)) * kMiB;
    job.memory_use = job.memory_max / 2;
    job.start_ns = random.range(0, kSecond / 2);
    job.behaviour = i % 5 == 0 ? Behaviour::kRequests : Behaviour::kBursts;
    job.think_ns = 200 * kMs;
    job.kernels = 1;
    job.tasks = static_cast<std::uint64_t>(random.range(1, 3));
    job.rate_hz = 5;
    if (i % 50 == 1) {
      job.behaviour = Behaviour::kTraining;
      job.gpu_count = 2;
      job.kernels = 2;
    }
    if (i % 500 == 7) {
      job.tenant_class = TenantClass::kExclusive;
      job.start_ns = kSecond / 20;
      job.tasks = 2;
    }
    if (i % 20 == 3) job.crash_at = job.start_ns + random.range(1, kSecond / 2);
    setup.jobs.push_back(job);
  }
  return setup;
}

Experiment setup_restarts(std::uint64_t seed) {
  Experiment setup = setup_chaos(seed);
  setup.losses.clear();  // a broker that finds a GPU gone is another matter
  Random random(~seed);
  setup.broker_away_ns = random.range(1, 100) * kMs;
  setup.register_ns_max = random.range(1, 200) * kMs;
  setup.restore_grace_ns = setup.register_ns_max + random.range(1, 100) * kMs;
  Nanos at = 0;
  for (std::int64_t deaths = random.range(1, 4); deaths > 0; --deaths) {
    at += setup.broker_away_ns + random.range(1, 300) * kMs;
    setup.broker_dies_at.push_back(at);
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
