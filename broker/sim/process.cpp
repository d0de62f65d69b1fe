// Program and shim of one simulated process. The program launches asynchronously as far as its own
// queue depth and the window allow and synchronises at the end of each task; the shim asks at a
// closed gate once per epoch, says Drained when nothing is in flight under a closed word, and
// GateIdle when a contended lease has been unused for the grace.
#include "broker/sim/process.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace sluice::sim {
namespace {
constexpr Nanos kStoppedLookNs =
    1'000'000;  // how soon one that was stopped takes up what it missed
}

Process::Process(World& world, Job& job, core::ProcessId id, std::uint32_t index,
                 std::uint32_t rank, std::uint64_t seed)
    : world_(world), job_(job), id_(id), index_(index), rank_(rank), random_(seed), host_(~seed) {}

void Process::start() {
  switch (job_.spec.behaviour) {
    case Behaviour::kRequests:
      arrival_next();
      break;
    case Behaviour::kBursts:
      think();
      break;
    case Behaviour::kLoop:
    case Behaviour::kTraining:
      backlog_.push_back(world_.clock().now());
      break;
  }
  lease_changed(index_);
  for (std::uint32_t index = 0; index < job_.holds.size(); ++index) hold_changed(index);
}

void Process::arrival_next() {
  const Nanos gap = static_cast<Nanos>(random_.exponential(1e9 / job_.spec.rate_hz));
  world_.clock().after(gap, [this] {
    if (!alive_) return;
    backlog_.push_back(world_.clock().now());
    arrival_next();
    pump();
  });
}

void Process::think() {
  const Nanos pause =
      static_cast<Nanos>(random_.exponential(static_cast<double>(job_.spec.think_ns)));
  world_.clock().after(pause, [this] {
    if (!alive_) return;
    backlog_.push_back(world_.clock().now());
    pump();
  });
}

void Process::broker_lost() {
  last_ = lease();
  last_hold_ = hold();
  asked_ = false;
  registered_ = false;
}

void Process::pause() { stopped_ = alive_; }

/// It sees what has come meanwhile.
void Process::go_on() {
  if (!stopped_) return;
  stopped_ = false;
  if (!alive_) return;
  if (task_ && finished_ == needed_) task_done();
  if (!alive_) return;
  for (std::uint32_t index = 0; registered_ && index < job_.leases.size(); ++index) {
    lease_changed(index);
    hold_changed(index);
  }
  room_changed(index_);
  allocate_again();
  pump();
}

void Process::broker_found() {
  if (!alive_ || registered_) return;
  if (stopped_) {
    world_.clock().after(kStoppedLookNs, [this] { broker_found(); });
    return;
  }
  registered_ = connected_ = true;
  wanted_epoch_ = drained_epoch_ = idle_epoch_ = 0;
  acked_epoch_ = moved_word_ = 0;
  if (swapped_ > 0) world_.claims_feed(job_);
  for (std::uint32_t index = 0; index < job_.leases.size(); ++index) {
    lease_changed(index);
    hold_changed(index);
  }
  allocate_again();
}

void Process::detach() {
  if (!alive_ || !registered_) return;
  connected_ = false;
  world_.feed(core::ProcessDetached{id_});
}

void Process::attach() {
  if (!alive_ || connected_) return;
  if (stopped_) {
    world_.clock().after(kStoppedLookNs, [this] { attach(); });
    return;
  }
  connected_ = true;
  if (!registered_) return;  // the broker has died as well
  wanted_epoch_ = idle_epoch_ = 0;
  asleep_ = false;
  hold_look();
  allocate_again();
  pump();
}

/// A message to the broker; nobody hears one that is sent without a registration.
void Process::post(const core::Event& event) {
  if (!registered_) return;
  const bool in_claims = std::holds_alternative<core::Drained>(event) ||
                         std::holds_alternative<core::HoldAcked>(event) ||
                         std::holds_alternative<core::MoveDone>(event);
  if (connected_)
    world_.post(event);
  else if (in_claims)
    world_.post_by_claims(event);
}

/// How late it looks at a word that has changed.
Nanos Process::look_delay() {
  if (job_.spec.busy_host) return host_.wake();
  return job_.spec.wake_ns_max > 0 ? random_.range(0, job_.spec.wake_ns_max) : 0;
}

void Process::lease_changed(std::uint32_t index) {
  const Nanos delay = look_delay();
  if (delay == 0)
    lease_seen(index);
  else
    world_.clock().after(delay, [this, index] { lease_seen(index); });
}

void Process::lease_seen(std::uint32_t index) {
  if (!alive_ || !registered_ || stopped_) return;
  if (index == index_) asleep_ = false;
  const Lease& changed = job_.leases[index];
  if (index != index_) {  // never used that GPU: its helper thread answers at once
    if (!changed.open) post(core::Drained{id_, index, changed.epoch});
    return;
  }
  if (changed.open && waiting_) {
    waiting_set(false);
    const Nanos waited = world_.clock().now() - waiting_since_;
    job_.result.longest_wait_ns = std::max(job_.result.longest_wait_ns, waited);
  }
  drain_check();
  pump();
}

bool Process::task_next() {
  if (backlog_.empty()) return false;
  task_start_ = backlog_.front();
  backlog_.pop_front();
  task_ = true;
  task_ready_ = world_.clock().now();
  launched_ = finished_ = 0;
  const JobSpec& spec = job_.spec;
  if (spec.behaviour == Behaviour::kLoop)
    needed_ = spec.tasks > 0 ? spec.tasks : std::numeric_limits<std::uint64_t>::max();
  else if (spec.eager)
    needed_ = spec.tasks * step_kernels();
  else
    needed_ = spec.kernels + (spec.behaviour == Behaviour::kTraining ? 1 : 0);
  return true;
}

Nanos Process::kernel_ns() const {
  const std::vector<Nanos>& by_gpu = job_.spec.rank_kernel_ns;
  return by_gpu.empty() ? job_.spec.kernel_ns : by_gpu[index_];
}

bool Process::window_allows() const {
  if (in_flight_ == 0) return true;
  const JobSpec& spec = job_.spec;
  if (in_flight_ >= spec.queue_depth * spec.launch_kernels) return false;
  const Nanos window = lease().window_ns;
  return window == 0 || in_flight_ns_ + kernel_ns() * spec.launch_kernels <= window;
}

void Process::pump() {
  if (stopped_) return;
  const bool on_host = looking_ || world_.clock().now() < host_until_;
  while (alive_ && !on_host && !asleep_ && memory_ready() && (task_ || task_next()) &&
         launched_ < needed_ && window_allows() && !collective_waits()) {
    if (!lease().open || blocked()) {
      gate_wait();
      break;
    }
    if (let_through()) {
      if (let_epoch_ == lease().epoch) break;
      let_epoch_ = lease().epoch;
    }
    launch();
  }
  idle_check();
}

/// Its gate is open and another one of the gang is closed: members that wait for each other are let
/// through, for one launch each.
bool Process::let_through() const {
  return registered_ && std::ranges::any_of(job_.leases, [](const Lease& l) { return !l.open; });
}

void Process::waiting_set(bool waiting) {
  if (waiting_ != waiting) world_.waits(job_.gpus[index_], waiting ? 1 : -1);
  waiting_ = waiting;
}

void Process::gate_wait() {
  if (!waiting_) waiting_since_ = world_.clock().now();
  waiting_set(true);
  if (lease().open) return;
  asleep_ = job_.spec.wake_ns_max > 0 || job_.spec.busy_host;
  if (wanted_epoch_ == lease().epoch) return;
  wanted_epoch_ = lease().epoch;
  post(core::GateWanted{id_, index_, wanted_epoch_});
}

bool Process::collective_due() const {
  return job_.spec.behaviour == Behaviour::kTraining && (launched_ + 1) % step_kernels() == 0;
}

/// The host has its part in the collective that is due: what was launched before has to end first.
bool Process::collective_waits() const {
  return job_.spec.collective_host_ns > 0 && collective_due() && in_flight_ > 0;
}

Kernel Process::kernel_make(Nanos* length) {
  const JobSpec& spec = job_.spec;
  Kernel kernel;
  if (collective_due()) {
    auto& collective =
        job_.collectives[job_.spec.eager ? launched_ / step_kernels() : task_number_];
    if (collective == nullptr) {
      collective = std::make_shared<Collective>();
      collective->missing = static_cast<std::uint32_t>(job_.gpus.size());
      collective->length_ns = spec.communication_ns;
    }
    kernel.collective = collective;
    *length = spec.communication_ns;
    return kernel;
  }
  *length = kernel_ns();
  if (spec.kernel_jitter > 0) {
    const double factor = 1 + spec.kernel_jitter * (2 * random_.unit() - 1);
    *length = std::max<Nanos>(1, static_cast<Nanos>(static_cast<double>(*length) * factor));
  }
  kernel.left_ns = *length;
  if (spec.endless_at > 0 && world_.clock().now() >= spec.endless_at) kernel.left_ns = kEndless;
  return kernel;
}

void Process::launch() {
  assert(on_gpu_ == held() && "nothing runs whose memory is not there");
  if (launched_ == 0) job_.result.starts_ns.push_back(world_.clock().now() - task_ready_);
  launches_++;
  for (std::uint32_t i = 0; i < job_.spec.launch_kernels && launched_ < needed_; ++i) {
    Nanos length = 0;
    Kernel kernel = kernel_make(&length);
    kernel.done = [this, length] { kernel_done(length); };
    in_flight_++;
    in_flight_ns_ += length;
    launched_++;
    world_.device(job_.gpus[index_]).submit(id_, std::move(kernel));
  }
}

/// All that was launched has ended: the program looks at it before it launches more.
void Process::host_work() {
  if (in_flight_ > 0) return;
  const bool collective = collective_due() || (task_ && launched_ % step_kernels() == 0);
  const bool training = job_.spec.behaviour == Behaviour::kTraining;
  const Nanos work =
      job_.spec.host_ns + (training && collective ? job_.spec.collective_host_ns : 0);
  if (work == 0) return;
  host_until_ = world_.clock().now() + work;
  world_.clock().at(host_until_, [this] {
    if (alive_) pump();
  });
}

void Process::kernel_done(Nanos length) {
  if (!alive_) return;
  in_flight_--;
  in_flight_ns_ -= length;
  metered_ns_ = used_ns_;
  finished_++;
  job_.result.kernels++;
  if (stopped_) return;
  if (!job_.spec.busy_host || in_flight_ > 0) {
    kernels_seen();
    return;
  }
  looking_ = true;
  world_.clock().after(host_.wake(), [this] {
    looking_ = false;
    if (alive_ && !stopped_) kernels_seen();
  });
}

/// Program and shim see that kernels have ended.
void Process::kernels_seen() {
  host_work();
  if (task_ && finished_ == needed_) task_done();
  if (!alive_) return;
  drain_check();
  hold_look();
  pump();
}

void Process::task_done() {
  task_ = false;
  task_number_++;
  job_.result.tasks++;
  if (rank_ == 0 || job_.spec.behaviour != Behaviour::kTraining)
    job_.result.latency_ns.push_back(world_.clock().now() - task_start_);
  const bool last = job_.spec.behaviour == Behaviour::kLoop || job_.spec.eager ||
                    (job_.spec.tasks > 0 && task_number_ >= job_.spec.tasks);
  if (last) {
    world_.process_exit(job_, *this);
    return;
  }
  if (job_.spec.behaviour == Behaviour::kBursts) think();
  if (job_.spec.behaviour == Behaviour::kTraining) backlog_.push_back(world_.clock().now());
}

void Process::drain_check() {
  const Lease& mine = lease();
  if (stopped_ || mine.open || in_flight_ > 0 || drained_epoch_ == mine.epoch) return;
  drained_epoch_ = mine.epoch;
  post(core::Drained{id_, index_, mine.epoch});
}

void Process::idle_check() {
  const Lease& mine = lease();
  if (!alive_ || !mine.open || !mine.contended || in_flight_ > 0 || idle_epoch_ == mine.epoch)
    return;
  world_.clock().after(mine.idle_grace_ns, [this, launches = launches_, epoch = mine.epoch] {
    const Lease& then = lease();
    const bool unused = alive_ && !stopped_ && launches == launches_ && in_flight_ == 0;
    if (!unused || !then.open || then.epoch != epoch || idle_epoch_ == epoch) return;
    idle_epoch_ = epoch;
    post(core::GateIdle{id_, index_, epoch});
  });
}

}  // namespace sluice::sim
