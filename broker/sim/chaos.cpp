// Random situations by seed: mixtures of everything that can happen to jobs, to the broker and to
// the machine. A draw that is added later has a stream of its own, or is made of the seed itself,
// so that the seeds of before stay what they are.
#include <algorithm>

#include "broker/sim/random.h"
#include "broker/sim/scenarios.h"
#include "broker/sim/units.h"

namespace sluice::sim {
namespace {

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

/// Processes that lose their sockets and come back. Draws of its own as well.
void chaos_detaching(std::uint64_t seed, Experiment& setup) {
  Random random(seed ^ 0xde7ac4);
  for (JobSpec& job : setup.jobs) {
    if (seed % 3 != 1 || !random.chance(0.3)) continue;
    job.detach_at = job.start_ns + random.range(1, setup.duration_ns / 2);
    job.detach_ns = random.range(1, 300) * kMs;
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

void multitude_accidents(Random& random, std::uint32_t i, JobSpec& job) {
  const Nanos at = job.start_ns + random.range(1, kSecond);
  if (i % 20 == 3) job.crash_at = at;
  if (i % 30 == 4) {
    job.stop_at = at;
    job.stop_ns = 100 * kMs;
  }
  if (i % 25 == 6) {
    job.detach_at = at;
    job.detach_ns = 80 * kMs;
  }
  if (i % 100 == 9) job.kernel_ns = 30 * kMs;
  if (i % 200 == 11) job.endless_at = job.start_ns;
}

JobSpec multitude_job(Random& random, std::uint32_t i) {
  JobSpec job;
  job.name = "tenant-" + std::to_string(i);
  job.sm_percent = static_cast<std::uint32_t>(random.range(1, 100));
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
  multitude_accidents(random, i, job);
  return job;
}

/// A broker that dies, two reloads, a clock that jumps both ways, and at last a GPU that is lost.
void multitude_events(Experiment& setup) {
  setup.broker_dies_at = {800 * kMs};
  setup.broker_away_ns = 20 * kMs;
  setup.register_ns_max = 50 * kMs;
  setup.restore_grace_ns = 100 * kMs;
  for (const Nanos at : {400 * kMs, 1200 * kMs}) {
    PolicyChange change{at, setup.policy};
    change.policy.order = at < kSecond ? core::Order::kRoundRobin : core::Order::kFair;
    change.policy.quantum_ns = 5 * kMs;
    setup.policy_changes.push_back(change);
  }
  for (std::uint32_t job = 0; job < setup.jobs.size(); job += 10)
    setup.limits.push_back({kSecond, job, 1 + job % 100, Bytes{128} * kMiB});
  setup.jumps = {{1100 * kMs, 300 * kMs}, {1300 * kMs, -100 * kMs}};
  setup.losses = {{1500 * kMs, 7}};
}

}  // namespace

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
  setup.policy.runaway_after_ns = 2 * setup.policy.drain_timeout_ns;
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
  chaos_detaching(seed, setup);
  if (seed % 3 != 0) setup.teardown_ns_max = static_cast<Nanos>(1 + seed % 40) * 5 * kMs;
  constexpr std::uint64_t kIdleEvery = 4;
  if (seed % kIdleEvery == 3) setup.idle_every_ns = static_cast<Nanos>(1 + seed % 7) * 10 * kMs;
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
  setup.policy.drain_timeout_ns = 50 * kMs;
  setup.policy.runaway_after_ns = 2 * setup.policy.drain_timeout_ns;
  setup.gpus.assign(8, GpuSpec{Bytes{128} * kGiB, 32 * kMiB});
  setup.duration_ns = 4 * kSecond;
  setup.teardown_ns_max = 20 * kMs;
  setup.check_every = 31;  // a look at three thousand tenants takes as long as hundreds of steps
  constexpr std::uint32_t kJobs = 3000;
  for (std::uint32_t i = 0; i < kJobs; ++i) setup.jobs.push_back(multitude_job(random, i));
  multitude_events(setup);
  return setup;
}

Experiment setup_restarts(std::uint64_t seed) {
  Experiment setup = setup_chaos(seed);
  setup.losses.clear();  // a broker that finds a GPU gone is another matter
  if (seed % 3 == 0)     // their percentages are guarantees
    for (core::ClassPolicy& policy : setup.policy.classes) policy.sm = core::SmRule::kAsked;
  for (PolicyChange& change : setup.policy_changes) change.policy.classes = setup.policy.classes;
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

}  // namespace sluice::sim
