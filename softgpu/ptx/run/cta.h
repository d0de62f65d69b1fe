// A CTA's memory and its warps, ready to run one block after another of the same launch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "softgpu/ptx/exec/control.h"
#include "softgpu/ptx/exec/warp.h"

namespace softgpu::ptx {

/// Memory that is kept from one launch to the next on the same thread.
class Arena {
 public:
  /// At least `bytes`, aligned to a cache line; contents undefined. The previous block is gone.
  u8* reserve(std::size_t bytes);
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

 private:
  u8* start_ = nullptr;
  std::size_t bytes_ = 0;
};

class CtaRunner {
 public:
  /// Lays out register files, shared and local memory for blocks of this launch.
  void prepare(const Program& program, const Launch& launch, Host& host);
  /// Sets the warps to the start of block number `block`.
  void start(std::uint64_t block, std::uint64_t grid_workspace);
  /// One turn of at most about `longest` instructions for every warp that can run, in the order of
  /// their numbers. after_turn(instructions) is told what ran and may end the step early by
  /// returning false. False when no warp could run.
  template <class AfterTurn>
  bool step(std::uint64_t longest, AfterTurn after_turn);
  bool finished() const { return cta_.live == 0; }
  Cta& cta() { return cta_; }
  /// The warp that ran last: where a fault came from.
  Warp* current() { return current_; }

 private:
  void prepare_warp(Warp& warp, u8* rf, const u8* image);

  Cta cta_;
  Warp* current_ = nullptr;
  Arena memory_;
  std::vector<u8> image_;
};

template <class AfterTurn>
bool CtaRunner::step(std::uint64_t longest, AfterTurn after_turn) {
  bool ran = false;
  for (Warp& warp : cta_.warps) {
    if (!warp_ready(warp)) continue;
    ran = true;
    current_ = &warp;
    const u64 before = warp.count;
    warp.counted = before;
    // Counted first: a barrier that this turn completes begins the count anew.
    const u32 turn = warp.turn;
    if (turn < kTurnsGrown) ++warp.turn;
    const u64 length = std::min(longest, kFirstTurn << turn);
    warp.count_limit = before + length;
    if (turn < kTurnsInStep) {
      warp_run_in_step(warp, turn != 0);
    } else {
      warp_run(warp);
    }
    if (length == longest && warp.count >= warp.count_limit) warp_rotate(warp);
    if (!after_turn(warp.count - before)) return true;
  }
  return ran;
}

}  // namespace softgpu::ptx
