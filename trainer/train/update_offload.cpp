// `--offload optimizer`: the state of the optimizer, and a copy of the weights, are in page-locked
// host memory; gradients come to the host in stretches, the host makes the update with the very
// operations of the kernels, and new weights go back (Ren et al., "ZeRO-Offload", 2021). While a
// stretch is being updated the next comes and the one before goes, on streams of their own.
#include <algorithm>
#include <cmath>

#include "kernels/optimizers.h"
#include "trainer/train/update.h"

namespace sluice::train {
namespace {

constexpr std::size_t kStretchFloats = 256 * 1024;

/// Of one stretch; what is not needed is null.
struct HostArrays {
  const float* gradient;
  float* first;
  float* second;
  float* weights;
};

// The order of operations, and which of them are fused by their source, is that of sgd_momentum,
// adamw and rmsprop on the device; only what compilers fuse by themselves can differ.

void sgd_on_host(std::size_t count, float rate, float momentum, const HostArrays& at) {
  for (std::size_t i = 0; i < count; ++i) {
    const float v = std::fma(momentum, at.first[i], at.gradient[i]);
    at.first[i] = v;
    at.weights[i] = std::fma(-rate, v, at.weights[i]);
  }
}

void adamw_on_host(std::size_t count, const kernels::AdamwSettings& s, int step,
                   const HostArrays& at) {
  const auto correction = [step](float decay) {
    return static_cast<float>(1.0 - std::pow(static_cast<double>(decay), step));
  };
  const float first_correction = correction(s.first), second_correction = correction(s.second);
  for (std::size_t i = 0; i < count; ++i) {
    const float g = at.gradient[i];
    const float mean = std::fma(s.first, at.first[i], (1.0f - s.first) * g);
    const float square = std::fma(s.second, at.second[i], (1.0f - s.second) * g * g);
    at.first[i] = mean;
    at.second[i] = square;
    const float move =
        mean / first_correction / (std::sqrt(square / second_correction) + s.epsilon);
    at.weights[i] -= s.rate * std::fma(s.decay, at.weights[i], move);
  }
}

void rmsprop_on_host(std::size_t count, const kernels::RmspropSettings& s, const HostArrays& at) {
  for (std::size_t i = 0; i < count; ++i) {
    const float g = at.gradient[i];
    const float square = std::fma(s.smoothing, at.first[i], (1.0f - s.smoothing) * g * g);
    const float v = std::fma(s.momentum, at.second[i], g / (std::sqrt(square) + s.epsilon));
    at.first[i] = square;
    at.second[i] = v;
    at.weights[i] = std::fma(-s.rate, v, at.weights[i]);
  }
}

class OffloadUpdate final : public WeightUpdate {
 public:
  OffloadUpdate(Stream& stream, const OptimizerSettings& settings, CUdeviceptr gradients,
                CUdeviceptr parameters, std::size_t parameter_count)
      : stream_(stream),
        settings_(settings),
        gradients_(gradients),
        parameters_(parameters),
        clip_(stream, settings.clip, parameter_count),
        out_(stream.device()),
        in_(stream.device()),
        arriving_(parameter_count),
        weights_(parameter_count),
        first_(parameter_count),
        second_(state_count(settings.method) > 1 ? parameter_count : 1),
        stretches_((parameter_count + kStretchFloats - 1) / kStretchFloats) {
    std::fill_n(first_.data(), first_.size(), 0.0f);
    std::fill_n(second_.data(), second_.size(), 0.0f);
  }

  void step(double rate) override {
    copies_add();
    clip_.run(gradients_);
    ++steps_;
    if (!has_weights_) stream_.download(weights_.data(), parameters_, weights_.size() * 4);
    has_weights_ = true;
    ready_.record(stream_);
    out_.wait(ready_);
    in_.wait(ready_);
    for (std::size_t i = 0; i < stretches_.size(); ++i) {
      stretches_[i].out_begin.record(out_);
      out_.download(&arriving_[begin_of(i)], gradients_ + begin_of(i) * sizeof(float),
                    count_of(i) * sizeof(float));
      stretches_[i].out_end.record(out_);
    }
    for (std::size_t i = 0; i < stretches_.size(); ++i) {
      stretches_[i].out_end.synchronize();
      stretch_update(static_cast<float>(rate), i);
      stretches_[i].in_begin.record(in_);
      in_.upload(parameters_ + begin_of(i) * sizeof(float), &weights_[begin_of(i)],
                 count_of(i) * sizeof(float));
      stretches_[i].in_end.record(in_);
    }
    stream_.wait(stretches_.back().in_end);
    counts_ = true;
  }

  std::size_t state_bytes() const override { return 0; }
  std::size_t host_state_bytes() const override {
    return state_count(settings_.method) * first_.size() * sizeof(float);
  }
  HostCopies host_copies() override {
    copies_add();
    return copies_;
  }

  OptimizerState state_take() override {
    copies_add();
    OptimizerState state{steps_, {}};
    for (std::size_t which = 0; which < state_count(settings_.method); ++which)
      state.arrays.emplace_back(array(which), array(which) + first_.size());
    return state;
  }
  void state_put(const OptimizerState& state) override {
    copies_add();
    steps_ = state.steps;
    has_weights_ = false;
    for (std::size_t which = 0; which < state_count(settings_.method); ++which)
      std::ranges::copy(state.arrays[which], array(which));
  }

 private:
  struct Stretch {
    Event out_begin, out_end, in_begin, in_end;
  };

  float* array(std::size_t which) { return which == 0 ? first_.data() : second_.data(); }
  static std::size_t begin_of(std::size_t stretch) { return stretch * kStretchFloats; }
  std::size_t count_of(std::size_t stretch) const {
    return std::min(kStretchFloats, weights_.size() - begin_of(stretch));
  }

  /// Waits until the last step's copies are done.
  void copies_add() {
    if (!counts_) return;
    counts_ = false;
    in_.synchronize();
    copies_.bytes += 2 * weights_.size() * sizeof(float);
    for (const Stretch& one : stretches_)
      copies_.device_ns += one.out_end.since(one.out_begin) + one.in_end.since(one.in_begin);
  }

  void stretch_update(float rate, std::size_t stretch) {
    const std::size_t begin = begin_of(stretch), count = count_of(stretch);
    const bool two = second_.size() == first_.size();
    const HostArrays at{&arriving_[begin], &first_[begin], two ? &second_[begin] : nullptr,
                        &weights_[begin]};
    const auto momentum = static_cast<float>(settings_.momentum);
    switch (settings_.method) {
      case Method::kSgd:
        return sgd_on_host(count, rate, momentum, at);
      case Method::kAdam:
      case Method::kAdamw:
        return adamw_on_host(
            count, {.rate = rate, .decay = static_cast<float>(settings_.weight_decay)}, steps_, at);
      case Method::kRmsprop:
        return rmsprop_on_host(count, {.rate = rate, .momentum = momentum}, at);
    }
  }

  Stream& stream_;
  const OptimizerSettings settings_;
  const CUdeviceptr gradients_, parameters_;
  GradientClip clip_;
  Stream out_, in_;
  PinnedArray<float> arriving_, weights_, first_, second_;  // gradients; the other three stay
  std::vector<Stretch> stretches_;
  Event ready_;
  int steps_ = 0;
  bool has_weights_ = false;  // those of the device are in weights_
  bool counts_ = false;       // the last step's copies are not in copies_ yet
  HostCopies copies_;
};

}  // namespace

std::unique_ptr<WeightUpdate> offload_update(Stream& stream, const OptimizerSettings& settings,
                                             CUdeviceptr gradients, CUdeviceptr parameters,
                                             std::size_t parameter_count) {
  return std::make_unique<OffloadUpdate>(stream, settings, gradients, parameters, parameter_count);
}

}  // namespace sluice::train
