// See mlp.h.
#include "trainer/model/mlp.h"

#include <cassert>
#include <cmath>

#include "trainer/base/random.h"
#include "trainer/data/dataset.h"

namespace sluice::train {
namespace {

std::size_t area(int rows, int columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

}  // namespace

std::size_t MlpShape::weight_offset(int layer) const {
  std::size_t offset = 0;
  for (int l = 0; l < layer; ++l) offset += area(in(l) + 1, out(l));
  return offset;
}

std::size_t MlpShape::bias_offset(int layer) const {
  return weight_offset(layer) + area(in(layer), out(layer));
}

std::string MlpShape::text() const {
  std::string out;
  for (const int width : widths) out += (out.empty() ? "" : "-") + std::to_string(width);
  return out;
}

MlpShape mlp_shape(const std::vector<int>& hidden) {
  if (hidden.empty() || hidden.size() > kHiddenLayersMax) {
    throw Failure(
        text_format("%zu hidden layers; 1 to %zu are possible", hidden.size(), kHiddenLayersMax));
  }
  MlpShape shape;
  shape.widths.push_back(kImagePixels);
  for (const int width : hidden) {
    if (width < 1 || width > kHiddenMax) {
      throw Failure(
          text_format("a hidden layer of %d units; 1 to %d are possible", width, kHiddenMax));
    }
    shape.widths.push_back(width);
  }
  shape.widths.push_back(kClassCount);
  return shape;
}

std::vector<float> mlp_draw(const MlpShape& shape, std::uint64_t seed) {
  std::vector<float> values(shape.parameter_count());
  for (int layer = 0; layer < shape.layer_count(); ++layer) {
    Random random(seed, 0x77656967 + static_cast<std::uint64_t>(layer));
    const double deviation = std::sqrt(2.0 / shape.in(layer));
    for (std::size_t i = shape.weight_offset(layer); i < shape.bias_offset(layer); ++i) {
      values[i] = static_cast<float>(deviation * random.normal());
    }
  }
  return values;
}

Mlp::Mlp(Stream& stream, const MlpShape& shape, int batch_max, bool trains)
    : stream_(stream),
      shape_(shape),
      batch_max_(batch_max),
      parameters_(shape.parameter_count()),
      gradients_(trains ? shape.parameter_count() + kExtraCount : 1),
      inputs_(area(batch_max, shape.inputs())),
      labels_(static_cast<std::size_t>(batch_max)),
      losses_(static_cast<std::size_t>(batch_max)),
      correct_(1) {
  assert(batch_max > 0);
  for (int layer = 0; layer < shape.layer_count(); ++layer) {
    const std::size_t count = area(batch_max, shape.out(layer));
    outputs_.push_back(std::make_unique<DeviceArray<float>>(count));
    deltas_.push_back(std::make_unique<DeviceArray<float>>(trains ? count : 1));
  }
  stream_.zero(gradients_.at(), gradients_.size());
  stream_.zero(correct_.at(), 1);
}

void Mlp::parameters_upload(std::span<const float> values) {
  assert(values.size() == shape_.parameter_count());
  stream_.upload(parameters_.at(), values.data(), values.size_bytes());
  stream_.synchronize();
}

std::vector<float> Mlp::parameters_download() {
  std::vector<float> values(shape_.parameter_count());
  stream_.download(values.data(), parameters_.at(), parameters_.bytes());
  stream_.synchronize();
  return values;
}

void Mlp::batch_upload(const float* inputs, const int* labels, int batch) {
  assert(batch <= batch_max_);
  if (batch == 0) return;
  stream_.upload(inputs_.at(), inputs, area(batch, shape_.inputs()) * sizeof(float));
  stream_.upload(labels_.at(), labels, static_cast<std::size_t>(batch) * sizeof(int));
}

void Mlp::product(kernels::GemmForm form, const kernels::GemmShape& shape, CUdeviceptr a,
                  CUdeviceptr b, CUdeviceptr c) {
  const auto plan = kernels::gemm_plan(shape, stream_.device().multiprocessors());
  if (plan.parts == 1) {
    stream_.launch(kernels::gemm(form, plan, shape, a, b, c));
    return;
  }
  const std::size_t count = area(shape.m, shape.n);
  const CUdeviceptr partials = workspace(count * static_cast<std::size_t>(plan.parts));
  stream_.launch(kernels::gemm(form, plan, shape, a, b, partials));
  stream_.launch(kernels::split_sum(static_cast<int>(count), plan.parts, partials, c));
}

CUdeviceptr Mlp::workspace(std::size_t floats) {
  if (!workspace_ || workspace_->size() < floats) {
    stream_.synchronize();
    workspace_.reset();
    workspace_ = std::make_unique<DeviceArray<float>>(floats);
  }
  return workspace_->at();
}

void Mlp::forward(int batch) {
  assert(batch > 0 && batch <= batch_max_);
  for (int layer = 0; layer < shape_.layer_count(); ++layer) {
    const int out = shape_.out(layer);
    const CUdeviceptr result = outputs_[static_cast<std::size_t>(layer)]->at();
    const CUdeviceptr bias = parameters_.at(shape_.bias_offset(layer));
    product(kernels::GemmForm::kNn, {batch, out, shape_.in(layer)}, input_of(layer),
            parameters_.at(shape_.weight_offset(layer)), result);
    const bool last = layer + 1 == shape_.layer_count();
    stream_.launch(last ? kernels::bias_forward(batch, out, bias, result)
                        : kernels::bias_relu_forward(batch, out, bias, result));
  }
}

void Mlp::loss(int batch) {
  stream_.launch(kernels::softmax_cross_entropy(batch, shape_.classes(), 1.0f, logits(),
                                                labels_.at(), losses_.at(), 0));
}

void Mlp::backward(int batch, int global_count) {
  assert(batch <= batch_max_ && global_count >= batch && global_count > 0);
  if (batch == 0) {
    stream_.zero(gradients_.at(), gradients_.size());
    return;
  }
  stream_.launch(kernels::softmax_cross_entropy(batch, shape_.classes(),
                                                1.0f / static_cast<float>(global_count), logits(),
                                                labels_.at(), losses_.at(), deltas_.back()->at()));
  stream_.launch(kernels::column_sum(batch, 1, losses_.at(), extra(kExtraLoss)));
  for (int layer = shape_.layer_count() - 1; layer >= 0; --layer) {
    const int in = shape_.in(layer);
    const int out = shape_.out(layer);
    const CUdeviceptr delta = deltas_[static_cast<std::size_t>(layer)]->at();
    product(kernels::GemmForm::kTn, {in, out, batch}, input_of(layer), delta,
            gradients_.at(shape_.weight_offset(layer)));
    stream_.launch(
        kernels::column_sum(batch, out, delta, gradients_.at(shape_.bias_offset(layer))));
    if (layer == 0) break;  // nobody asks for the gradient of the images
    const CUdeviceptr below = deltas_[static_cast<std::size_t>(layer) - 1]->at();
    product(kernels::GemmForm::kNt, {batch, in, out}, delta,
            parameters_.at(shape_.weight_offset(layer)), below);
    stream_.launch(kernels::relu_backward(batch * in, input_of(layer), below));
  }
}

void Mlp::correct_add(int batch) {
  stream_.launch(
      kernels::correct_count(batch, shape_.classes(), logits(), labels_.at(), correct_.at()));
}

}  // namespace sluice::train
