// Loss scaling for fp16: gradients are computed of the loss times a scale, so that small ones do
// not vanish in a format that ends at 6e-8, and divided by it before the update. Where one
// overflows the step is left out and the scale halved; after many good steps it is doubled
// (Micikevicius et al., Mixed Precision Training, 2018; limits and intervals as in PyTorch's
// GradScaler).
#pragma once

#include <cstdint>
#include <functional>

#include "trainer/device/device.h"

namespace sluice::train {

struct LossScaleSettings {
  double initial = 65536;
  std::uint64_t growth_steps = 2000;  // good steps before it is doubled
};
inline constexpr double kLossScaleMin = 1;
inline constexpr double kLossScaleMax = 0x1p32;

/// What the rule goes on from.
struct LossScaleState {
  double value = 0;
  std::uint64_t good = 0;
  std::uint64_t skipped = 0;
};

/// The rule alone.
class LossScale {
 public:
  explicit LossScale(const LossScaleSettings& settings);

  float value() const { return static_cast<float>(value_); }
  /// A step is over. Throws Failure on an overflow where the scale can get no smaller: then the
  /// gradients themselves are too large.
  void step_note(bool overflow);
  std::uint64_t skipped() const { return skipped_; }
  LossScaleState state() const { return {value_, good_, skipped_}; }
  void state_set(const LossScaleState& state) {
    value_ = state.value;
    good_ = state.good;
    skipped_ = state.skipped;
  }

 private:
  const LossScaleSettings settings_;
  double value_;
  std::uint64_t good_ = 0;
  std::uint64_t skipped_ = 0;
};

/// The rule applied to gradients on the device. Every rank looks at the same reduced gradients, so
/// all decide alike.
class LossScaler {
 public:
  /// `agree`: whether any of the ranks that have one copy of the model says true.
  LossScaler(Stream& stream, const LossScaleSettings& settings, std::size_t count,
             std::function<bool(bool)> agree = {});

  /// What backward() is to multiply with.
  float value() const { return scale_.value(); }
  std::uint64_t skipped() const { return scale_.skipped(); }
  LossScaleState state() const { return scale_.state(); }
  void state_set(const LossScaleState& state) { scale_.state_set(state); }
  /// Waits. True: gradients [count] are those of the loss itself; false: one was not finite, and
  /// the step is to be left out.
  bool unscale(CUdeviceptr gradients);

 private:
  Stream& stream_;
  LossScale scale_;
  const int count_;
  const std::function<bool(bool)> agree_;
  DeviceArray<int> found_{1};
};

}  // namespace sluice::train
