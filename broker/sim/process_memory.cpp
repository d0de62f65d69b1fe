// The memory half of a simulated process: what the program allocates, and the part of the shim that
// asks for room, stops at holds and moves what can be moved.
#include <algorithm>
#include <cassert>

#include "broker/sim/process.h"

namespace sluice::sim {
namespace {
constexpr std::int32_t kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
}

/// Allocates what the program has by now; false = it waits for that.
bool Process::memory_ready() {
  if (wanted_ > 0) return false;
  const JobSpec& spec = job_.spec;
  if (spec.memory_use == 0 || parts_ >= spec.memory_steps) return true;
  if (parts_ > 0 && (task_ || task_number_ < parts_)) return true;  // the next part has time
  allocate(spec.memory_use / spec.memory_steps);
  return wanted_ == 0;
}

void Process::allocate(Bytes bytes) {
  wanted_ = bytes;
  allocate_again();
}

/// Asks the driver; where that has no room, the broker.
void Process::allocate_again() {
  if (!alive_ || stopped_ || wanted_ == 0 || asked_) return;
  if (blocked()) {
    gate_wait();
    return;
  }
  const Bytes context = context_ == 0 ? world_.context_bytes(job_.gpus[index_]) : 0;
  if (memory().take(wanted_ + context)) {
    context_ += context;
    allocated_ += wanted_;
    on_gpu_ += wanted_ + context;
    wanted_ = 0;
    parts_++;
    pump();
    return;
  }
  if (!registered_ || !connected_) return;  // tried again when there is a broker
  asked_ = true;
  asked_room_ = job_.rooms[index_];
  job_.result.room_waits++;
  world_.post(core::MemoryWanted{id_, index_, job_.rooms[index_], wanted_ + context});
}

void Process::room_changed(std::uint32_t index) {
  if (!alive_ || stopped_ || !registered_ || index != index_ || !asked_) return;
  if (job_.rooms[index_] == asked_room_) return;  // no answer yet
  asked_ = false;
  const bool none = (job_.rooms[index_] & protocol::kRoomNone) != 0;
  const Bytes context = context_ == 0 ? world_.context_bytes(job_.gpus[index_]) : 0;
  const bool fits = memory().used + wanted_ + context <= memory().capacity;
  if (none && !blocked() && !fits)
    allocation_failed();
  else
    allocate_again();
}

/// The program takes the driver's error for what it is, and goes; the launcher of a training job
/// ends the other ranks, who would wait for it for ever.
void Process::allocation_failed() {
  job_.result.refused_allocations++;
  if (job_.spec.behaviour == Behaviour::kTraining)
    world_.job_kill(job_, true);
  else
    world_.process_exit(job_, *this);
}

void Process::hold_changed(std::uint32_t index) {
  if (!alive_ || !registered_ || stopped_) return;
  const std::uint32_t word = job_.holds[index];
  if (index == index_) {
    hold_look();
    return;
  }
  if ((word & protocol::kHoldSet) == 0) return;  // it has nothing there
  post(core::HoldAcked{id_, index, protocol::hold_epoch(word)});
  if ((word & (protocol::kHoldOut | protocol::kHoldIn)) != 0)
    post(core::MoveDone{id_, index, word, 0, 0, 0});
}

void Process::hold_look() {
  if (!alive_ || !registered_ || stopped_ || in_flight_ > 0 || copying_) return;
  const std::uint32_t word = hold();
  if ((word & protocol::kHoldSet) == 0) {
    if (blocked()) return;
    allocate_again();
    pump();
    return;
  }
  const std::uint32_t epoch = protocol::hold_epoch(word);
  if (acked_epoch_ != epoch) {
    acked_epoch_ = epoch;
    post(core::HoldAcked{id_, index_, epoch});
  }
  const bool ordered = (word & (protocol::kHoldOut | protocol::kHoldIn)) != 0;
  if (ordered && moved_word_ != word) order_begin(word);
}

void Process::order_begin(std::uint32_t word) {
  assert(in_flight_ == 0 && "nothing is moved under work");
  assert(!job_.frozen && "nobody in a checkpoint can move anything");
  moved_word_ = word;
  const bool out = (word & protocol::kHoldOut) != 0;
  const Bytes bytes = out ? movable() - swapped_ : swapped_;
  if (random_.chance(job_.spec.move_fails) || (!out && !memory().take(bytes))) {
    post(core::MoveDone{id_, index_, word, kOutOfMemory, 0, 0});
    return;
  }
  if (!out) on_gpu_ += bytes;
  copying_ = true;
  const Nanos began = world_.clock().now();
  world_.clock().at(world_.copy_done_at(job_.gpus[index_], out, bytes),
                    [this, word, bytes, began] { order_finish(word, bytes, began); });
}

void Process::order_finish(std::uint32_t word, Bytes bytes, Nanos began) {
  if (!alive_) return;
  if (!stopped_) {
    order_end(word, 0, bytes, world_.clock().now() - began);
    return;
  }
  constexpr Nanos kLookNs = 1'000'000;
  world_.clock().after(kLookNs, [this, word, bytes, began] { order_finish(word, bytes, began); });
}

void Process::order_end(std::uint32_t word, std::int32_t result, Bytes bytes, Nanos taken) {
  copying_ = false;
  if ((word & protocol::kHoldOut) != 0) {
    memory().give(bytes);
    on_gpu_ -= bytes;
    swapped_ += bytes;
    job_.result.moved_out_bytes += bytes;
  } else {
    swapped_ -= bytes;
    job_.result.moved_in_bytes += bytes;
  }
  post(core::MoveDone{id_, index_, word, result, bytes, taken});
  hold_look();
  pump();  // what it would do next waits for the end of the hold
}

void Process::freeze() {
  memory().give(on_gpu_);
  frozen_ = on_gpu_;
  on_gpu_ = 0;
}

bool Process::thaw(std::uint32_t gpu) {
  if (!world_.memory(gpu).take(frozen_)) return false;
  on_gpu_ = frozen_;
  frozen_ = 0;
  return true;
}

void Process::stop() {
  alive_ = false;
  waiting_set(false);
  world_.memory_leave(job_.gpus[index_], on_gpu_);
  on_gpu_ = 0;
}

}  // namespace sluice::sim
