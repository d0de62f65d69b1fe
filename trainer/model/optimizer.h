// What turns gradients into new weights: SGD with momentum, Adam(W) or RMSProp over one flat array,
// with its state on the device, and clipping by the gradient's norm.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "trainer/device/device.h"

namespace sluice::train {

enum class Method : std::uint8_t { kSgd, kAdam, kAdamw, kRmsprop };

const char* method_name(Method method);
std::optional<Method> method_parse(const std::string& name);

struct OptimizerSettings {
  Method method = Method::kSgd;
  double momentum = 0.9;    // of SGD and RMSProp; Adam's beta 1 is 0.9
  double weight_decay = 0;  // AdamW's, decoupled
  double clip = 0;          // largest norm of a gradient; 0 = any
};

/// Floats of state per parameter: 1 for SGD, 2 for the others.
std::size_t state_count(Method method);

/// Makes gradients no longer than `limit`; 0 = as they are. The norm never leaves the device.
class GradientClip {
 public:
  GradientClip(Stream& stream, double limit, std::size_t count);
  /// gradients [count], in place; on the stream.
  void run(CUdeviceptr gradients);

 private:
  Stream& stream_;
  const double limit_;
  const int count_;
  DeviceArray<float> partials_;
  DeviceArray<float> norm_{1};
};

/// One thread; every method only enqueues on the stream.
class Optimizer {
 public:
  Optimizer(Stream& stream, const OptimizerSettings& settings, std::size_t parameter_count);

  /// Of its state on the device.
  std::size_t state_bytes() const { return first_->bytes() + (second_ ? second_->bytes() : 0); }
  /// The next step. `gradients` [parameter_count] are clipped in place.
  void step(double rate, CUdeviceptr gradients, CUdeviceptr parameters);

  /// Its state: state_count() arrays [parameter_count] on the device, and the steps so far.
  CUdeviceptr state(std::size_t which) const { return which == 0 ? first_->at() : second_->at(); }
  int steps() const { return steps_; }
  void steps_set(int steps) { steps_ = steps; }

 private:
  Stream& stream_;
  const OptimizerSettings settings_;
  const int count_;
  int steps_ = 0;
  std::unique_ptr<DeviceArray<float>> first_;
  std::unique_ptr<DeviceArray<float>> second_;  // none for SGD
  GradientClip clip_;
};

}  // namespace sluice::train
