// A model of one process: the program (what it launches and when) and the shim inside it (gate,
// window, drain, idle, meter), which follows the same protocol as libsluice.so. Private to the
// simulator.
#pragma once

#include <deque>

#include "broker/sim/world.h"

namespace sluice::sim {

class Process {
 public:
  /// A process of `job` on its GPU number `index`, rank `rank` of the job's processes.
  Process(World& world, Job& job, core::ProcessId id, std::uint32_t index, std::uint32_t rank,
          std::uint64_t seed);

  void start();
  /// The lease word of a GPU of the tenant has changed; sleepers have woken.
  void lease_changed(std::uint32_t index);
  /// The broker is gone: the last lease stays as it is.
  void broker_lost();
  /// Registered with the next one: new pages.
  void broker_found();
  bool registered() const { return registered_; }
  /// Nothing of it happens any more.
  void stop() { alive_ = false; }

  bool alive() const { return alive_; }
  core::ProcessId id() const { return id_; }
  std::uint32_t index() const { return index_; }
  std::uint32_t rank() const { return rank_; }
  Nanos metered_ns() const { return metered_ns_; }
  void used(Nanos ns) { used_ns_ += ns; }

 private:
  void pump();
  bool task_next();
  bool window_allows() const;
  void launch();
  Kernel kernel_make(Nanos* length);
  void kernel_done(Nanos length);
  void task_done();
  void gate_wait();
  void drain_check();
  void idle_check();
  void arrival_next();
  void think();
  const Lease& lease() const { return registered_ ? job_.leases[index_] : last_; }
  void post(const core::Event& event);
  bool collective_due() const;

  World& world_;
  Job& job_;
  core::ProcessId id_;
  std::uint32_t index_;
  std::uint32_t rank_;
  Random random_;
  bool alive_ = true;

  // The program.
  std::deque<Nanos> backlog_;  // intended starts of tasks
  bool task_ = false;
  Nanos task_start_ = 0;
  std::uint64_t task_number_ = 0;
  std::uint64_t launched_ = 0;
  std::uint64_t finished_ = 0;
  std::uint64_t needed_ = 0;

  // The shim.
  bool registered_ = true;
  Lease last_;  // of the broker that is gone
  std::uint32_t in_flight_ = 0;
  Nanos in_flight_ns_ = 0;
  std::uint32_t wanted_epoch_ = 0;
  std::uint32_t drained_epoch_ = 1;
  std::uint32_t idle_epoch_ = 0;
  bool waiting_ = false;
  Nanos waiting_since_ = 0;
  std::uint64_t launches_ = 0;
  Nanos used_ns_ = 0;     // true device time
  Nanos metered_ns_ = 0;  // as far as fences have shown it
};

}  // namespace sluice::sim
