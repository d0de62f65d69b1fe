// See network.h.
#include "trainer/model/network.h"

#include <cassert>

namespace sluice::train {
namespace {

/// An array of nothing is no array: one element stands for it.
std::size_t room(bool wanted, std::size_t count) { return wanted ? count : 1; }

/// Of all slots.
std::size_t samples_max(const NetworkSettings& settings) {
  return static_cast<std::size_t>(settings.slots) * static_cast<std::size_t>(settings.batch_max);
}

std::size_t rows(const SampleShape& sample, const NetworkSettings& settings) {
  return sample.targets * static_cast<std::size_t>(settings.batch_max);
}

}  // namespace

std::size_t RangeList::add(std::string name, std::size_t count, std::size_t columns) {
  assert(count > 0 && (columns == 0 || count % columns == 0));
  ranges_.push_back({std::move(name), ranges_.empty() ? 0 : ranges_.back().end(), count, columns});
  return ranges_.size() - 1;
}

Network::Network(Stream& stream, std::vector<ParameterRange> ranges, const SampleShape& sample,
                 const NetworkSettings& settings)
    : stream_(stream),
      ranges_(std::move(ranges)),
      sample_(sample),
      settings_(settings),
      products_(stream, settings.precision, settings.gemm),
      parameters_(parameter_count()),
      gradients_(room(settings.trains, parameter_count() + kExtraCount)),
      sums_(room(settings.accumulates, parameter_count() + kExtraCount)),
      inputs_(room(settings.takes_inputs, sample.inputs * samples_max(settings))),
      targets_(room(settings.gives_logits, rows(sample, settings))),
      logits_(room(settings.gives_logits,
                   rows(sample, settings) * static_cast<std::size_t>(sample.classes))),
      logits_gradient_(room(settings.gives_logits && settings.trains,
                            rows(sample, settings) * static_cast<std::size_t>(sample.classes))),
      losses_(room(settings.gives_logits, rows(sample, settings))) {
  assert(settings.batch_max > 0 && sample.classes > 0);
  assert(settings.slots == 1 || !settings.gives_logits);
  stream_.zero(gradients_.at(), gradients_.size());
  stream_.zero(correct_.at(), 1);
}

void Network::parameters_upload(std::span<const float> values) {
  assert(values.size() == parameter_count());
  stream_.upload(parameters_.at(), values.data(), values.size_bytes());
  stream_.synchronize();
}

std::vector<float> Network::parameters_download() {
  std::vector<float> values(parameter_count());
  stream_.download(values.data(), parameters_.at(), parameters_.bytes());
  stream_.synchronize();
  return values;
}

void Network::batch_upload(const void* inputs, const int* targets, int batch) {
  assert(batch <= settings_.batch_max);
  if (batch == 0) return;
  batch_look(inputs, batch);
  const auto samples = static_cast<std::size_t>(batch);
  if (settings_.takes_inputs)
    stream_.upload(this->inputs(), inputs, samples * sample_.inputs * sizeof(std::uint32_t));
  if (settings_.gives_logits)
    stream_.upload(targets_.at(), targets, samples * sample_.targets * sizeof(int));
}

void Network::batch_look(const void*, int) {}

void Network::forward(int batch) {
  assert(batch > 0 && batch <= settings_.batch_max);
  products_.weights_cast(parameters_.at(), parameter_count());
  forward_layers(batch);
}

void Network::loss(int batch) {
  stream_.launch(kernels::softmax_cross_entropy(target_count(batch), sample_.classes, 1.0f,
                                                logits(), targets_.at(), losses_.at(), 0));
}

void Network::backward(int batch, int global_count, GradientPart part, float scale) {
  assert(settings_.trains && batch <= settings_.batch_max);
  assert(global_count >= batch && global_count > 0);
  assert(settings_.accumulates || (part.first && part.last));
  part_ = part;
  if (batch == 0) {
    stream_.zero(gradients_.at(), gradients_.size());
  } else if (!settings_.gives_logits) {
    stream_.zero(extra(kExtraLoss), 1);
  } else {
    const float factor = scale / static_cast<float>(target_count(global_count));
    stream_.launch(kernels::softmax_cross_entropy(target_count(batch), sample_.classes, factor,
                                                  logits(), targets_.at(), losses_.at(),
                                                  logits_gradient_.at()));
    stream_.launch(kernels::column_sum(target_count(batch), 1, losses_.at(), extra(kExtraLoss)));
  }
  if (part.last && !part.first) {
    part_add(parameter_count() + kExtraLoss, 1, gradients_.at(), sums_.at());
  }
  if (batch == 0) {
    for (std::size_t range = ranges_.size(); range-- > 0;) gradient_final(range);
  } else {
    backward_layers(batch);
  }
  if (part.last) return;
  if (part.first) stream_.zero(sums_.at(), sums_.size());
  part_add(0, gradient_count(), sums_.at(), gradients_.at());
}

void Network::gradient_final(std::size_t which) {
  if (!part_.last) return;
  const ParameterRange& range = ranges_[which];
  if (!part_.first) part_add(range.begin, range.count, gradients_.at(), sums_.at());
  if (ready_) ready_(range);
}

void Network::part_add(std::size_t begin, std::size_t count, CUdeviceptr to, CUdeviceptr from) {
  const std::size_t offset = begin * sizeof(float);
  stream_.launch(kernels::array_add(static_cast<int>(count), from + offset, to + offset));
}

void Network::correct_add(int batch) {
  stream_.launch(kernels::correct_count(target_count(batch), sample_.classes, logits(),
                                        targets_.at(), correct_.at()));
}

}  // namespace sluice::train
