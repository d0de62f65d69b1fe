// See optimizer.h.
#include "trainer/model/optimizer.h"

#include "kernels/optimizers.h"

namespace sluice::train {
namespace {

constexpr std::array<const char*, 4> kMethodNames = {"sgd", "adam", "adamw", "rmsprop"};

}  // namespace

const char* method_name(Method method) { return kMethodNames[static_cast<std::size_t>(method)]; }

std::optional<Method> method_parse(const std::string& name) {
  for (std::size_t i = 0; i < kMethodNames.size(); ++i) {
    if (name == kMethodNames[i]) return static_cast<Method>(i);
  }
  return std::nullopt;
}

std::size_t state_count(Method method) { return method == Method::kSgd ? 1 : 2; }

GradientClip::GradientClip(Stream& stream, double limit, std::size_t count)
    : stream_(stream),
      limit_(limit),
      count_(static_cast<int>(count)),
      partials_(static_cast<std::size_t>(kernels::square_sum_parts(count_))) {}

void GradientClip::run(CUdeviceptr gradients) {
  if (limit_ <= 0) return;
  stream_.launch(kernels::square_sum(count_, gradients, partials_.at()));
  stream_.launch(
      kernels::norm_finish(static_cast<int>(partials_.size()), partials_.at(), norm_.at()));
  stream_.launch(kernels::norm_clip(count_, static_cast<float>(limit_), norm_.at(), gradients));
}

Optimizer::Optimizer(Stream& stream, const OptimizerSettings& settings, std::size_t parameter_count)
    : stream_(stream),
      settings_(settings),
      count_(static_cast<int>(parameter_count)),
      clip_(stream, settings.clip, parameter_count) {
  const auto state = [&] {
    auto array = std::make_unique<DeviceArray<float>>(parameter_count);
    stream_.zero(array->at(), array->size());
    return array;
  };
  first_ = state();
  if (state_count(settings.method) > 1) second_ = state();
}

void Optimizer::step(double rate, CUdeviceptr gradients, CUdeviceptr parameters) {
  ++steps_;
  clip_.run(gradients);
  const auto narrow_rate = static_cast<float>(rate);
  const auto momentum = static_cast<float>(settings_.momentum);
  switch (settings_.method) {
    case Method::kSgd:
      stream_.launch(kernels::sgd_momentum(count_, narrow_rate, momentum, gradients, first_->at(),
                                           parameters));
      break;
    case Method::kAdam:
    case Method::kAdamw: {
      const auto decay = static_cast<float>(settings_.weight_decay);
      stream_.launch(kernels::adamw(count_, {.rate = narrow_rate, .decay = decay}, steps_,
                                    gradients, first_->at(), second_->at(), parameters));
      break;
    }
    case Method::kRmsprop:
      stream_.launch(kernels::rmsprop(count_, {.rate = narrow_rate, .momentum = momentum},
                                      gradients, first_->at(), second_->at(), parameters));
      break;
  }
}

}  // namespace sluice::train
