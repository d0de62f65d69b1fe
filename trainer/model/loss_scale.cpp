// See loss_scale.h.
#include "trainer/model/loss_scale.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "kernels/optimizers.h"

namespace sluice::train {

LossScale::LossScale(const LossScaleSettings& settings)
    : settings_(settings), value_(settings.initial) {
  assert(value_ >= kLossScaleMin && value_ <= kLossScaleMax);
}

void LossScale::step_note(bool overflow) {
  if (overflow) {
    if (value_ <= kLossScaleMin) {
      throw Failure(
          "gradients overflow fp16 even without a loss scale: training diverged; lower --lr, give "
          "--clip or --lr-warmup, or take --precision bf16");
    }
    value_ = std::max(kLossScaleMin, value_ / 2);
    good_ = 0;
    ++skipped_;
  } else if (++good_ == settings_.growth_steps) {
    value_ = std::min(kLossScaleMax, value_ * 2);
    good_ = 0;
  }
}

LossScaler::LossScaler(Stream& stream, const LossScaleSettings& settings, std::size_t count,
                       std::function<bool(bool)> agree)
    : stream_(stream),
      scale_(settings),
      count_(static_cast<int>(count)),
      agree_(std::move(agree)) {}

bool LossScaler::unscale(CUdeviceptr gradients) {
  int found = 0;
  stream_.zero(found_.at(), 1);
  stream_.launch(kernels::not_finite(count_, gradients, found_.at()));
  stream_.download(&found, found_.at(), sizeof found);
  stream_.synchronize();
  const float used = scale_.value();
  const bool overflow = agree_ ? agree_(found != 0) : found != 0;
  scale_.step_note(overflow);
  if (!overflow) stream_.launch(kernels::array_scale(count_, 1.0f / used, gradients));
  return !overflow;
}

}  // namespace sluice::train
