// See products.h.
#include "trainer/model/products.h"

namespace sluice::train {

using kernels::GemmForm;

namespace {

std::size_t values_of(int rows, int columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

}  // namespace

Products::Products(Stream& stream, Precision precision, GemmEngine engine)
    : stream_(stream), precision_(precision) {
  if (precision != Precision::kFp32 && engine == GemmEngine::kCublaslt)
    library_.emplace(cublaslt_library(), stream);
}

kernels::HalfFormat Products::format() const {
  return precision_ == Precision::kBf16 ? kernels::HalfFormat::kBf16 : kernels::HalfFormat::kFp16;
}

template <class T>
CUdeviceptr Products::room_for(std::size_t count, std::unique_ptr<DeviceArray<T>>& room) {
  if (!room || room->size() < count) {
    stream_.synchronize();
    room.reset();
    room = std::make_unique<DeviceArray<T>>(count);
  }
  return room->at();
}

void Products::weights_cast(CUdeviceptr weights, std::size_t count) {
  if (precision_ == Precision::kFp32) return;
  weights_ = weights;
  weights_count_ = count;
  stream_.launch(kernels::cast_to_half(format(), static_cast<int>(count), weights,
                                       room_for(count, weights_halves_)));
}

CUdeviceptr Products::half_of(CUdeviceptr operand, std::size_t count,
                              std::unique_ptr<Halves>& room) {
  if (operand >= weights_ && operand < weights_ + weights_count_ * sizeof(float)) {
    return weights_halves_->at((operand - weights_) / sizeof(float));
  }
  const CUdeviceptr to = room_for(count, room);
  stream_.launch(kernels::cast_to_half(format(), static_cast<int>(count), operand, to));
  return to;
}

void Products::run(GemmForm form, const kernels::GemmShape& shape, CUdeviceptr a, CUdeviceptr b,
                   CUdeviceptr c) {
  const auto plan = kernels::gemm_plan(shape, stream_.device().multiprocessors());
  if (precision_ != Precision::kFp32) {
    a = half_of(a, values_of(shape.m, shape.k), left_);
    b = half_of(b, values_of(shape.k, shape.n), right_);
  }
  if (library_ && library_->product(form, format(), shape, a, b, c)) return;
  if (plan.parts == 1) return whole_or_parts(form, plan, shape, a, b, c);
  const std::size_t count = values_of(shape.m, shape.n);
  const CUdeviceptr partials = room_for(count * static_cast<std::size_t>(plan.parts), partials_);
  whole_or_parts(form, plan, shape, a, b, partials);
  stream_.launch(kernels::split_sum(static_cast<int>(count), plan.parts, partials, c));
}

void Products::whole_or_parts(GemmForm form, const kernels::GemmPlan& plan,
                              const kernels::GemmShape& shape, CUdeviceptr a, CUdeviceptr b,
                              CUdeviceptr c) {
  stream_.launch(precision_ == Precision::kFp32
                     ? kernels::gemm(form, plan, shape, a, b, c)
                     : kernels::gemm_half(form, format(), plan, shape, a, b, c));
}

void dense_forward(Products& products, const DenseShape& shape, Activation activation,
                   CUdeviceptr x, CUdeviceptr weights, CUdeviceptr bias, CUdeviceptr out) {
  products.run(GemmForm::kNn, {shape.rows, shape.out, shape.in}, x, weights, out);
  products.stream().launch(activation == Activation::kRelu
                               ? kernels::bias_relu_forward(shape.rows, shape.out, bias, out)
                               : kernels::bias_forward(shape.rows, shape.out, bias, out));
}

void dense_weights_backward(Products& products, const DenseShape& shape, CUdeviceptr x,
                            CUdeviceptr gradient, CUdeviceptr weights_gradient,
                            CUdeviceptr bias_gradient) {
  products.run(GemmForm::kTn, {shape.in, shape.out, shape.rows}, x, gradient, weights_gradient);
  products.stream().launch(kernels::column_sum(shape.rows, shape.out, gradient, bias_gradient));
}

void dense_input_backward(Products& products, const DenseShape& shape, CUdeviceptr weights,
                          CUdeviceptr gradient, CUdeviceptr input_gradient) {
  products.run(GemmForm::kNt, {shape.rows, shape.in, shape.out}, gradient, weights, input_gradient);
}

}  // namespace sluice::train
