// A model of one process: the program (what it launches and when) and the shim inside it (gate,
// window, drain, idle, meter), which follows the same protocol as libsluice.so. Private to the
// simulator.
#pragma once

#include <deque>

#include "broker/protocol/pages.h"
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
  /// The hold word, or the room word, of a GPU of the tenant has changed.
  void hold_changed(std::uint32_t index);
  void room_changed(std::uint32_t index);
  /// The broker is gone: the last lease stays as it is.
  void pause();
  void go_on();
  void broker_lost();
  /// Registered with the next one: new pages.
  void broker_found();
  /// Its socket is gone; it lives, sees its pages, and registers again later.
  void detach();
  void attach();
  bool registered() const { return registered_; }
  /// Nothing of it happens any more.
  void stop();

  bool alive() const { return alive_; }
  core::ProcessId id() const { return id_; }
  std::uint32_t index() const { return index_; }
  std::uint32_t rank() const { return rank_; }
  Nanos metered_ns() const { return metered_ns_; }
  void used(Nanos ns) { used_ns_ += ns; }

  // Its account of memory.
  Bytes held() const { return context_ + allocated_; }
  Bytes movable() const { return job_.spec.swap ? allocated_ : 0; }
  Bytes swapped() const { return swapped_; }
  /// The driver's checkpoint takes everything off the GPU, and puts it back.
  void freeze();
  bool thaw(std::uint32_t gpu);

 private:
  void pump();
  bool task_next();
  Nanos kernel_ns() const;
  bool window_allows() const;
  void launch();
  Kernel kernel_make(Nanos* length);
  void kernel_done(Nanos length);
  void kernels_seen();
  void task_done();
  void host_work();
  void gate_wait();
  void waiting_set(bool waiting);
  bool let_through() const;
  void drain_check();
  void idle_check();
  void arrival_next();
  void think();
  // process_memory.cpp
  bool memory_ready();
  void allocate(Bytes bytes);
  void allocate_again();
  void allocation_failed();
  void hold_look();
  void order_begin(std::uint32_t word);
  void order_finish(std::uint32_t word, Bytes bytes, Nanos began);
  void order_end(std::uint32_t word, std::int32_t result, Bytes bytes, Nanos taken);
  std::uint32_t hold() const { return registered_ ? job_.holds[index_] : last_hold_; }
  bool blocked() const { return (hold() & protocol::kHoldSet) != 0 || swapped_ > 0; }
  DeviceMemory& memory() { return world_.memory(job_.gpus[index_]); }

  const Lease& lease() const { return registered_ ? job_.leases[index_] : last_; }
  void post(const core::Event& event);
  void lease_seen(std::uint32_t index);
  bool collective_due() const;
  bool collective_waits() const;
  Nanos look_delay();
  std::uint64_t step_kernels() const { return job_.spec.kernels + std::uint64_t{1}; }

  World& world_;
  Job& job_;
  core::ProcessId id_;
  std::uint32_t index_;
  std::uint32_t rank_;
  Random random_;
  Random host_;  // a stream of its own, so that arrivals stay what they are
  bool alive_ = true;
  bool stopped_ = false;  // SIGSTOP: the device goes on with what it has, nothing else does

  // The program.
  std::deque<Nanos> backlog_;  // intended starts of tasks
  bool task_ = false;
  Nanos task_start_ = 0;  // as intended
  Nanos task_ready_ = 0;  // when the tasks before it were done
  std::uint64_t task_number_ = 0;
  std::uint64_t launched_ = 0;
  std::uint64_t finished_ = 0;
  std::uint64_t needed_ = 0;
  Nanos host_until_ = 0;  // it computes on the host until then
  bool looking_ = false;  // all that was launched has ended, and it has not seen that yet

  // The shim.
  bool registered_ = true;
  bool connected_ = true;
  Lease last_;  // of the broker that is gone
  std::uint32_t in_flight_ = 0;
  Nanos in_flight_ns_ = 0;
  std::uint32_t wanted_epoch_ = 0;
  std::uint32_t drained_epoch_ = 1;
  std::uint32_t idle_epoch_ = 0;
  std::uint32_t let_epoch_ = 0;  // of the one launch that it was let through for
  bool waiting_ = false;
  bool asleep_ = false;  // has not looked since it began to wait
  Nanos waiting_since_ = 0;
  std::uint64_t launches_ = 0;
  Nanos used_ns_ = 0;     // true device time
  Nanos metered_ns_ = 0;  // as far as fences have shown it

  // Memory.
  Bytes context_ = 0;
  Bytes allocated_ = 0;
  Bytes swapped_ = 0;             // of allocated_, in the host
  Bytes on_gpu_ = 0;              // what it takes there, with what is being copied
  Bytes frozen_ = 0;              // in the driver's checkpoint
  Bytes wanted_ = 0;              // an allocation that waits
  bool asked_ = false;            // for room, and the answer is to come
  std::uint32_t asked_room_ = 0;  // the room word then
  std::uint32_t parts_ = 0;       // of its memory allocated so far
  bool copying_ = false;
  std::uint32_t acked_epoch_ = 0;
  std::uint32_t moved_word_ = 0;
  std::uint32_t last_hold_ = 0;  // of the broker that is gone
};

}  // namespace sluice::sim
