// Matrix products of one model on its stream, and the dense layer made of them.
#pragma once

#include <memory>

#include "trainer/device/cublaslt.h"
#include "trainer/model/precision.h"

namespace sluice::train {

/// Operands and results are fp32 for the caller. With 16 bits the operands are cast on the way in:
/// weights once per forward pass (weights_cast), everything else whenever it is used.
class Products {
 public:
  /// `engine` is for 16 bits; what it has no algorithm for is computed by the kernels here.
  Products(Stream& stream, Precision precision, GemmEngine engine = GemmEngine::kOwn);

  /// From now on operands in [weights, weights + count) are taken as they are now, until this is
  /// called again. Nothing for fp32.
  void weights_cast(CUdeviceptr weights, std::size_t count);
  /// c[m, n] = op(a) op(b); see kernels/kernels.h. Waits when it must make more room for casts or
  /// partial products, which the largest shapes in use do once.
  void run(kernels::GemmForm form, const kernels::GemmShape& shape, CUdeviceptr a, CUdeviceptr b,
           CUdeviceptr c);
  Stream& stream() { return stream_; }
  /// Null where all products are by the kernels here.
  const CublasLt* library() const { return library_ ? &*library_ : nullptr; }

 private:
  using Halves = DeviceArray<std::uint16_t>;

  void whole_or_parts(kernels::GemmForm form, const kernels::GemmPlan& plan,
                      const kernels::GemmShape& shape, CUdeviceptr a, CUdeviceptr b, CUdeviceptr c);
  kernels::HalfFormat format() const;
  /// The operand in 16 bits; in `room` unless it is a weight.
  CUdeviceptr half_of(CUdeviceptr operand, std::size_t count, std::unique_ptr<Halves>& room);
  template <class T>
  CUdeviceptr room_for(std::size_t count, std::unique_ptr<DeviceArray<T>>& room);

  Stream& stream_;
  const Precision precision_;
  std::optional<CublasLt> library_;
  std::unique_ptr<DeviceArray<float>> partials_;
  std::unique_ptr<Halves> left_, right_, weights_halves_;
  CUdeviceptr weights_ = 0;
  std::size_t weights_count_ = 0;
};

/// x[rows, in] W[in, out] + b[out]
struct DenseShape {
  int rows;
  int in;
  int out;
};
enum class Activation : std::uint8_t { kNone, kRelu };

void dense_forward(Products& products, const DenseShape& shape, Activation activation,
                   CUdeviceptr x, CUdeviceptr weights, CUdeviceptr bias, CUdeviceptr out);
/// Gradients of weights and bias from that of the layer before its activation.
void dense_weights_backward(Products& products, const DenseShape& shape, CUdeviceptr x,
                            CUdeviceptr gradient, CUdeviceptr weights_gradient,
                            CUdeviceptr bias_gradient);
/// Gradient of x.
void dense_input_backward(Products& products, const DenseShape& shape, CUdeviceptr weights,
                          CUdeviceptr gradient, CUdeviceptr input_gradient);

}  // namespace sluice::train
