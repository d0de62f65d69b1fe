// Carries events to the core and its actions out, as the daemon does, in virtual time.
#include "broker/sim/world.h"

#include <algorithm>
#include <cassert>

#include "broker/protocol/pages.h"
#include "broker/sim/process.h"

namespace sluice::sim {
namespace {

constexpr Nanos kStartNs = 1'000'000;   // from admission to a process's first CUDA call
constexpr Nanos kBeatNs = 250'000'000;  // at most from one heartbeat of the daemon to the next

}  // namespace

World::World(const Experiment& setup)
    : setup_(setup),
      random_(setup.seed),
      teardown_(~setup.seed),
      core_(core::state_create(setup.policy)) {
  assert(!setup.gpus.empty() && "a simulated machine has a GPU");
  for (std::size_t g = 0; g < setup.gpus.size(); ++g)
    devices_.push_back(std::make_unique<Device>(
        clock_, [this](Device::Context c, Nanos from, Nanos to) { used(c, from, to); }));
  closed_.resize(setup.gpus.size());
  for (const GpuSpec& gpu : setup.gpus) memory_.push_back(DeviceMemory{gpu.capacity, 0, 0, 0, 0});
  for (const JobSpec& spec : setup.jobs) {
    assert(spec.processes > 0 && "a job has a process");
    jobs_.push_back(std::make_unique<Job>());
    jobs_.back()->spec = spec;
    jobs_.back()->request = jobs_.size();
    jobs_.back()->result.name = spec.name;
  }
}

World::~World() = default;

Result World::run() {
  result_.gpu_busy_ns.assign(setup_.gpus.size(), 0);
  result_.gpu_idle_wanted_ns.assign(setup_.gpus.size(), 0);
  waits_.resize(setup_.gpus.size());
  core_make();
  for (auto& job : jobs_) job_plan(*job);
  for (const PolicyChange& change : setup_.policy_changes)
    clock_.at(change.at, [this, &change] {
      setup_.policy = change.policy;  // which the next broker reads as well
      feed(core::PolicyChanged{change.policy});
    });
  for (Nanos at : setup_.broker_dies_at) clock_.at(at, [this] { broker_die(); });
  for (std::size_t i = 0; i < setup_.commands.size(); ++i)
    clock_.at(setup_.commands[i].at, [this, i] { command_give(i); });
  if (setup_.idle_every_ns > 0) clock_.at(setup_.idle_every_ns, [this] { idle_tell(); });
  for (const LimitsChange& change : setup_.limits)
    clock_.at(change.at, [this, &change] { limits_change(change); });
  for (const ClockJump& jump : setup_.jumps)
    clock_.at(jump.at, [this, by = jump.by] { clock_jump(by); });
  for (const GpuLoss& loss : setup_.losses)
    clock_.at(loss.at, [this, gpu = loss.gpu] { feed(core::GpuLost{uuid_of(gpu)}); });
  clock_.run_until(setup_.duration_ns);
  for (auto& device : devices_) device->account();
  for (std::uint32_t g = 0; g < waits_.size(); ++g)
    if (waits_[g].processes > 0) waits(g, -waits_[g].processes);
  result_.view = core::state_view(*core_, core_now());
  for (const DeviceMemory& memory : memory_) result_.memory_used.push_back(memory.used);
  for (auto& job : jobs_) {
    result_.makespan_ns = std::max(result_.makespan_ns, job->result.ended_ns);
    result_.jobs.push_back(std::move(job->result));
  }
  if (result_.makespan_ns == 0) result_.makespan_ns = setup_.duration_ns;
  return std::move(result_);
}

void World::job_stop(Job& job, Nanos at) {
  clock_.at(at, [&job] {
    for (auto& process : job.processes) process->pause();
  });
  clock_.at(at + job.spec.stop_ns, [this, &job] {
    for (std::size_t i = 0; i < job.processes.size(); ++i) job.processes[i]->go_on();
    if (job.spec.stop_every_ns > 0) job_stop(job, clock_.now() + job.spec.stop_every_ns);
  });
}

void World::job_plan(Job& job) {
  clock_.at(job.spec.start_ns, [this, &job] { job_ask(job); });
  if (job.spec.end_ns > 0) clock_.at(job.spec.end_ns, [this, &job] { job_kill(job, true); });
  if (job.spec.crash_at > 0)
    clock_.at(job.spec.crash_at, [this, &job] { job_kill(job, job.spec.crash_all); });
  if (job.spec.stop_at > 0) job_stop(job, job.spec.stop_at);
  if (job.spec.detach_at > 0) {
    clock_.at(job.spec.detach_at, [&job] {
      for (auto& process : job.processes) process->detach();
    });
    clock_.at(job.spec.detach_at + job.spec.detach_ns, [&job] {
      for (std::size_t i = 0; i < job.processes.size(); ++i) job.processes[i]->attach();
    });
  }
  if (job.spec.release_at > 0)
    clock_.at(job.spec.release_at, [this, &job] {
      job.released = job.released || (up_ && job.tenant != 0);
      if (job.tenant != 0) claims_feed(job);
      feed(core::JobReleased{job.tenant});
    });
}

void World::core_make() {
  core_ = core::state_create(setup_.policy);
  for (std::uint32_t g = 0; g < setup_.gpus.size(); ++g)
    feed(core::GpuAdded{uuid_of(g), setup_.gpus[g].capacity, setup_.gpus[g].context_bytes});
  for (std::uint32_t g = 0; g < setup_.gpus.size(); ++g) device_feed(g);
}

/// kill -9: what was on its way is lost, who waited in the queue gives up, the shims keep what they
/// had.
void World::broker_die() {
  up_ = false;
  alarm_++;
  alarm_at_ = kNoAlarm;
  broker_++;
  wanted_.clear();
  looks_.clear();
  for (auto& job : jobs_) {
    if (job->asked && job->tenant == 0 && job->result.refused.empty())
      job->result.refused = "the broker died";
    for (auto& process : job->processes) process->broker_lost();
  }
  clock_.after(setup_.broker_away_ns, [this] { broker_start(); });
}

/// The next broker reads the journal: everybody it has, in the order of their numbers.
void World::broker_start() {
  up_ = true;
  core_make();
  std::vector<Job*> known;
  core::TenantId next = 1;
  for (auto& job : jobs_) {
    next = std::max(next, job->tenant + 1);
    if (job->tenant != 0 && !job->forgotten) known.push_back(job.get());
  }
  feed(core::TenantsNumbered{next});
  for (std::uint32_t g = 0; g < closed_.size(); ++g)
    if (closed_[g]) feed(core::GpuClosed{uuid_of(g)});
  std::ranges::sort(known, {}, [](const Job* job) { return job->tenant; });
  for (Job* job : known) job_restore(*job);
  restore_check();
  for (Job* job : known) job_rejoin(*job);
}

void World::job_restore(Job& job) {
  result_.restored++;
  result_.over_away += job.result.ended_ns > 0 ? 1 : 0;
  core::TenantRestored event;
  event.tenant = job.tenant;
  event.uid = job.spec.uid;
  event.tenant_class = job.spec.tenant_class;
  event.sm_mode = job.grant.sm_mode;
  event.sm_kind = job.grant.sm_kind;
  event.sm_percent = job.grant.sm_percent;
  event.memory_max = job.grant.memory_max;
  event.memory_min = job.grant.memory_min;
  event.admitted_at = job.result.admitted_ns;
  event.released = job.released;
  event.gpus = job.grant.gpus;
  event.name = job.spec.name;
  event.swap = job.grant.swap;
  event.suspended = job.stay.suspended;
  event.rests = job.stay.rests;
  event.returns = job.stay.returns;
  event.swapped = job.stay.swapped;
  event.frozen = job.stay.frozen;
  event.frozen_on = job.stay.frozen_on;
  std::ranges::fill(job.dead_busy_ns, 0);
  job.leases.assign(job.gpus.size(), Lease{});
  job.holds.assign(job.gpus.size(), 0);
  job.rooms.assign(job.gpus.size(), 0);
  feed(event);
}

/// Its processes live and are known to, and come back one by one; the founder's death is believed
/// after the grace.
void World::job_rejoin(Job& job) {
  for (auto& process : job.processes) {
    if (!process->alive()) continue;
    feed(core::ProcessJoined{job.tenant, process->id()});
    const Nanos delay = random_.range(0, setup_.register_ns_max);
    clock_.after(delay, [this, broker = broker_, found = process.get()] {
      if (broker == broker_) found->broker_found();
    });
  }
  clock_.after(setup_.restore_grace_ns, [this, broker = broker_, &job] {
    if (broker == broker_) grace_over(job);
  });
}

void World::grace_over(Job& job) {
  const bool started = !job.processes.empty();
  const bool founder = started ? job.processes.front()->alive() : job.result.ended_ns == 0;
  if (!founder) feed(core::FounderGone{job.tenant});
}

/// Nobody is lost and nobody is invented: each tenant of the journal has what it was promised.
void World::restore_check() const {
  const core::View view = core::state_view(*core_, core_now());
  std::size_t known = 0;
  for (const auto& job : jobs_) {
    if (job->tenant == 0 || job->forgotten) continue;
    known++;
    for (const protocol::SnapshotTenantGpu& part : view.tenant_gpus) {
      if (part.tenant != job->tenant) continue;
      assert(part.memory_max_bytes == job->grant.memory_max && "a quota survives a restart");
      assert(part.memory_min_bytes == job->grant.memory_min && "a minimum survives a restart");
      assert(part.sm_percent == job->grant.sm_percent && part.sm_kind == job->grant.sm_kind &&
             "a share survives a restart");
    }
  }
  for (std::uint32_t g = 0; g < closed_.size(); ++g)
    assert((!closed_[g] || view.gpus[g].draining != 0) && "what is closed stays closed");
  const auto admitted = std::ranges::count_if(
      view.tenants, [](const auto& row) { return row.state != protocol::TenantState::kQueued; });
  assert(static_cast<std::size_t>(admitted) == known &&
         "exactly the tenants of the journal are restored");
  promises_check();
}

/// By the model's own books, whatever the core believes: what living jobs were guaranteed fits, but
/// for those that have left their GPUs until they are resumed or want them. On a GPU that is used
/// whole, every other job has stepped aside and is out.
void World::promises_check() const {
  std::vector<Bytes> sum(setup_.gpus.size(), 0);
  std::vector<bool> whole(setup_.gpus.size(), false);
  auto each = [&](auto what) {
    for (const auto& job : jobs_) {
      if (job->tenant == 0 || job->forgotten || job->result.ended_ns > 0) continue;
      const bool exclusive = job->spec.tenant_class == TenantClass::kExclusive;
      if (exclusive && job->released) continue;
      for (std::uint32_t g : job->gpus) what(*job, g, exclusive);
    }
  };
  each([&](const Job& job, std::uint32_t g, bool exclusive) {
    if (!exclusive) return;
    whole[g] = true;
    sum[g] += job.grant.memory_min;
  });
  each([&](const Job& job, std::uint32_t g, bool exclusive) {
    if (exclusive) return;
    if (whole[g])
      assert((job.stay.swapped || job.stay.frozen) && "a whole GPU has no company that is in");
    else if (!job.vacated())
      sum[g] += job.grant.swap ? job.grant.memory_min : job.grant.memory_max;
  });
  for (std::size_t g = 0; g < sum.size(); ++g)
    assert(sum[g] <= setup_.gpus[g].capacity && "the living were promised what is there");
}

void World::job_ask(Job& job) {
  const JobSpec& spec = job.spec;
  job.asked = true;
  if (!up_) {
    job.result.refused = "no broker answers";
    return;
  }
  core::TenantAsked ask;
  ask.request = job.request;
  ask.uid = spec.uid;
  ask.tenant_class = spec.tenant_class;
  ask.sm_mode = spec.sm_mode;
  ask.sm_mode_given = true;
  ask.sm_percent = spec.sm_percent;
  ask.sm_weight = spec.sm_weight;
  ask.memory_max = spec.memory_max;
  ask.memory_min = spec.memory_min;
  ask.wait_ns_max = spec.wait_ns_max;
  ask.gpu_count = spec.gpu_count;
  for (std::uint32_t g : spec.pinned) ask.pinned.push_back(uuid_of(g));
  ask.no_wait = spec.no_wait;
  ask.swap = spec.swap;
  ask.name = spec.name;
  feed(ask);
}

void World::post(const core::Event& event) {
  clock_.after(setup_.delay_ns, [this, event, broker = broker_] {
    if (broker == broker_) feed(event);
  });
}

void World::post_by_claims(const core::Event& event) {
  clock_.after(kBeatNs, [this, event, broker = broker_] {
    if (broker == broker_) feed(event);
  });
}

void World::feed(const core::Event& event) {
  if (!up_) return;
  const auto* want = std::get_if<core::MemoryWanted>(&event);
  const auto* done = std::get_if<core::MoveDone>(&event);
  if (want != nullptr || done != nullptr) {  // what the daemon reads before these
    const auto it = by_process_.find(want != nullptr ? want->process : done->process);
    const std::uint32_t index = want != nullptr ? want->gpu_index : done->gpu_index;
    look_feed(uuid_of(it->second.first->gpus[index]));
  }
  step(event);
}

void World::step(const core::Event& event) {
  const std::vector<core::Action> actions = core::step(*core_, event, core_now());
  result_.steps++;
  result_.actions += actions.size();
  if (setup_.check && result_.steps % setup_.check_every == 0)
    core::invariants_check(*core_, core_now());
  std::vector<core::UsageWanted> before;
  std::vector<core::GpuUuid> looks_before;
  before.swap(wanted_);
  looks_before.swap(looks_);
  for (const core::Action& action : actions) std::visit([this](const auto& a) { act(a); }, action);
  std::vector<core::UsageWanted> mine;
  mine.swap(wanted_);
  wanted_.swap(before);
  std::vector<core::GpuUuid> looks;
  looks.swap(looks_);
  looks_.swap(looks_before);
  for (const core::UsageWanted& want : mine) {
    const Job* job = job_of(want.tenant);
    const double factor = job->spec.meter_factor;
    const auto said = static_cast<double>(metered(*job, want.gpu_index)) * factor;
    feed(core::UsageSeen{want.tenant, want.gpu_index, static_cast<Nanos>(said)});
  }
  for (const core::GpuUuid& gpu : looks) look_feed(gpu);
}

Job* World::job_of(core::TenantId tenant) {
  auto it = by_tenant_.find(tenant);
  assert(it != by_tenant_.end() && "the core speaks of tenants that it admitted");
  return it->second;
}

Nanos World::metered(const Job& job, std::uint32_t index) const {
  Nanos sum = job.dead_busy_ns[index];
  for (const auto& process : job.processes)
    if (process->alive() && process->index() == index) sum += process->metered_ns();
  return sum;
}

void World::act(const core::TenantAdmitted& action) {
  Job& job = *jobs_[action.request - 1];
  job.tenant = action.tenant;
  job.grant = action;
  by_tenant_[action.tenant] = &job;
  job.result.admitted = true;
  job.result.admitted_ns = clock_.now();
  for (const core::GpuUuid& uuid : action.gpus) job.gpus.push_back(uuid.bytes[0] - 1U);
  job.result.gpus = job.gpus;
  job.leases.resize(job.gpus.size());
  job.holds.resize(job.gpus.size());
  job.rooms.resize(job.gpus.size());
  job.dead_busy_ns.resize(job.gpus.size());
  job.result.busy_ns.resize(job.gpus.size());
  const auto windows =
      static_cast<std::size_t>((setup_.duration_ns + setup_.window_ns - 1) / setup_.window_ns);
  job.result.window_busy_ns.assign(job.gpus.size(), std::vector<Nanos>(windows, 0));
  promises_check();
  freed_check(action);
  clock_.after(kStartNs, [this, &job] { job_start(job); });
}

void World::act(const core::TenantEnded& action) { job_of(action.tenant)->forgotten = true; }

void World::act(const core::TenantQueued& action) { jobs_[action.request - 1]->result.queued++; }

void World::act(const core::TenantRefused& action) {
  jobs_[action.request - 1]->result.refused = action.text;
}

void World::act(const core::LeaseSet& action) {
  Job& job = *job_of(action.tenant);
  Lease& lease = job.leases[action.gpu_index];
  lease.epoch = protocol::lease_epoch(action.word);
  lease.open = (action.word & protocol::kLeaseOpen) != 0;
  lease.contended = (action.word & protocol::kLeaseContended) != 0;
  lease.window_ns = action.window_ns;
  lease.idle_grace_ns = action.idle_grace_ns;
  clock_.after(setup_.delay_ns, [&job, index = action.gpu_index] {
    for (std::size_t i = 0; i < job.processes.size(); ++i) job.processes[i]->lease_changed(index);
  });
  if (lease.open) return;
  // Who has not come back cannot say that it has drained: the daemon says it.
  for (const auto& process : job.processes)
    if (process->alive() && !process->registered())
      post(core::Drained{process->id(), action.gpu_index, lease.epoch});
}

void World::act(const core::UsageWanted& action) { wanted_.push_back(action); }

void World::act(const core::RunawaySeen& action) {
  Job& job = *job_of(action.tenant);
  if (action.step == core::RunawayStep::kSeen) job.result.runaways++;
  if (action.step == core::RunawayStep::kEnded)
    clock_.after(0, [this, &job] { job_kill(job, true); });
}

void World::act(const core::RankLost& action) {
  Job& job = *job_of(action.tenant);
  if (action.end) clock_.after(0, [this, &job] { job_kill(job, true); });
}

void World::act(const core::AlarmSet& action) {
  alarm_at_ = action.at;
  alarm_schedule();
}

void World::alarm_schedule() {
  const std::uint64_t mine = ++alarm_;
  if (alarm_at_ == kNoAlarm) return;
  clock_.at(alarm_at_ - offset_, [this, mine] {
    if (mine != alarm_) return;
    alarm_at_ = kNoAlarm;
    feed(core::Tick{});
  });
}

void World::job_start(Job& job) {
  if (job.result.ended_ns > 0 || job.forgotten) return;
  if (!up_) {  // its first call finds no broker, and tries again
    clock_.after(kStartNs, [this, &job] { job_start(job); });
    return;
  }
  const bool training = job.spec.behaviour == Behaviour::kTraining;
  const std::uint32_t count =
      training ? static_cast<std::uint32_t>(job.gpus.size()) : job.spec.processes;
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    const auto index = rank % static_cast<std::uint32_t>(job.gpus.size());
    job.processes.push_back(
        std::make_unique<Process>(*this, job, next_process_++, index, rank, random_.next()));
    Process& process = *job.processes.back();
    by_process_[process.id()] = {&job, &process};
    feed(core::ProcessJoined{job.tenant, process.id()});
  }
  for (std::size_t i = 0; i < job.processes.size(); ++i) job.processes[i]->start();
}

void World::job_kill(Job& job, bool all) {
  if (job.result.ended_ns > 0) return;
  if (job.tenant == 0) {
    job.result.ended_ns = clock_.now();
    feed(core::RequestGone{job.request});
    return;
  }
  if (job.processes.empty()) {  // between admission and the first CUDA call
    job.result.ended_ns = clock_.now();
    feed(core::FounderGone{job.tenant});
    return;
  }
  for (std::size_t i = job.processes.size(); i-- > (all ? 0 : job.processes.size() - 1);)
    if (job.processes[i]->alive()) process_exit(job, *job.processes[i], true);
}

void World::process_exit(Job& job, Process& process, bool lost) {
  devices_[job.gpus[process.index()]]->destroy(process.id());
  job.dead_busy_ns[process.index()] += process.metered_ns();
  std::vector<Bytes> held(job.gpus.size(), 0);
  held[process.index()] = process.held();
  process.stop();
  claims_feed(job);
  feed(core::ProcessGone{process.id(), lost, std::move(held)});
  if (process.rank() == 0) feed(core::FounderGone{job.tenant});
  const bool over = std::ranges::none_of(job.processes, [](const auto& p) { return p->alive(); });
  if (!over) return;
  job.result.ended_ns = clock_.now();
  if (job.spec.again) clock_.after(kStartNs, [this, spec = job.spec] { job_again(spec); });
}

void World::job_again(JobSpec spec) {
  spec.start_ns = clock_.now();
  jobs_.push_back(std::make_unique<Job>());
  Job& job = *jobs_.back();
  job.spec = std::move(spec);
  job.result.name = job.spec.name;
  job.request = jobs_.size();
  job_plan(job);
}

void World::used(Device::Context context, Nanos from, Nanos to) {
  auto [job, process] = by_process_.at(context);
  process->used(to - from);
  const std::uint32_t index = process->index();
  job->result.busy_ns[index] += to - from;
  result_.gpu_busy_ns[job->gpus[index]] += to - from;
  while (from < to) {
    const auto window = static_cast<std::size_t>(from / setup_.window_ns);
    const Nanos end = std::min(to, static_cast<Nanos>(window + 1) * setup_.window_ns);
    if (window < job->result.window_busy_ns[index].size())
      job->result.window_busy_ns[index][window] += end - from;
    from = end;
  }
}

void World::waits(std::uint32_t gpu, int more) {
  Waits& waits = waits_[gpu];
  const bool before = waits.processes > 0;
  waits.processes += more;
  const bool after = waits.processes > 0;
  if (before == after) return;
  devices_[gpu]->account();
  const Nanos busy = result_.gpu_busy_ns[gpu];
  if (before)
    result_.gpu_idle_wanted_ns[gpu] += clock_.now() - waits.since - (busy - waits.busy_then);
  waits.since = clock_.now();
  waits.busy_then = busy;
}

Result simulate(const Experiment& setup) {
  World world(setup);
  return world.run();
}

Nanos percentile(std::vector<Nanos> values, double part) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const auto rank = static_cast<std::size_t>(std::ceil(part * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

}  // namespace sluice::sim
