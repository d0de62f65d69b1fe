// Writes a layer's items in the order in which trainer/model launches them; layers*.cpp only.
#pragma once

#include <algorithm>

#include "trainer/plan/layers.h"

namespace sluice::train::planner {

/// Which operands of a product are weights, whose 16 bits are made once per forward pass.
enum class Weights { kNone, kRight };

class LayerWriter {
 public:
  explicit LayerWriter(const ModelUse& use) : use_(use) {}

  /// From here on into this list.
  void into(std::vector<Item>& list) { list_ = &list; }

  void add(const Work& work) { list_->push_back({Item::Kind::kWork, work, 0, 0}); }
  void final(std::size_t range) { list_->push_back({Item::Kind::kFinal, {}, range, 0}); }
  void tensor_reduce(double floats) {
    if (use_.tensor > 1) list_->push_back({Item::Kind::kTensorReduce, {}, 0, floats});
  }

  /// As Products::run (trainer/model/products.h).
  void product(kernels::GemmForm form, const kernels::GemmShape& shape, Weights weights) {
    const auto plan = kernels::gemm_plan(shape, use_.multiprocessors);
    const double result = static_cast<double>(shape.m) * shape.n;
    if (use_.precision == Precision::kFp32) {
      add(product_work(kernels::gemm(form, plan, shape, 0, 0, 0), shape, plan));
    } else {
      const auto format = use_.precision == Precision::kBf16 ? kernels::HalfFormat::kBf16
                                                             : kernels::HalfFormat::kFp16;
      cast(format, static_cast<double>(shape.m) * shape.k, left_);
      if (weights == Weights::kNone) cast(format, static_cast<double>(shape.k) * shape.n, right_);
      add(product_work(kernels::gemm_half(form, format, plan, shape, 0, 0, 0), shape, plan));
    }
    if (plan.parts == 1) return;
    partials_ = std::max(partials_, result * plan.parts);
    add(parts_work(kernels::split_sum(static_cast<int>(result), plan.parts, 0, 0), result,
                   plan.parts));
  }
  void dense_forward(const DenseShape& shape, Activation activation) {
    product(kernels::GemmForm::kNn, {shape.rows, shape.out, shape.in}, Weights::kRight);
    elements(activation == Activation::kRelu
                 ? kernels::bias_relu_forward(shape.rows, shape.out, 0, 0)
                 : kernels::bias_forward(shape.rows, shape.out, 0, 0),
             static_cast<double>(shape.rows) * shape.out);
  }
  void dense_weights_backward(const DenseShape& shape) {
    product(kernels::GemmForm::kTn, {shape.in, shape.out, shape.rows}, Weights::kNone);
    add(columns_work(kernels::column_sum(shape.rows, shape.out, 0, 0), shape.rows, shape.out));
  }
  void dense_input_backward(const DenseShape& shape) {
    product(kernels::GemmForm::kNt, {shape.rows, shape.in, shape.out}, Weights::kRight);
  }
  void elements(const kernels::Launch& launch, double count) { add(elements_work(launch, count)); }
  /// Loss and its gradient, before the backward pass of the last layer.
  void loss(int rows, int classes) {
    add(rows_work(kernels::softmax_cross_entropy(rows, classes, 1, 0, 0, 0, 0), rows, classes));
    add(columns_work(kernels::column_sum(rows, 1, 0, 0), rows, 1));
  }
  void zero(double floats) { add(copy_work(kZero, floats * sizeof(float))); }

  /// Memory that products take beside their operands.
  double product_floats() const { return partials_ + (left_ + right_) / 2; }

 private:
  void cast(kernels::HalfFormat format, double count, double& room) {
    room = std::max(room, count);
    elements(kernels::cast_to_half(format, static_cast<int>(count), 0, 0), count);
  }

  const ModelUse& use_;
  std::vector<Item>* list_ = nullptr;
  double partials_ = 0, left_ = 0, right_ = 0;
};

ModelCost gpt_cost(const GptShape& shape, const ModelUse& use);

}  // namespace sluice::train::planner
