// A decoder-only transformer that says for every token of a text which comes next (Radford et al.,
// GPT-2, 2019): token and position embeddings; layers of causal attention and a GELU perceptron
// four times as wide, each behind a layer norm and added to what went in; a last norm; logits by
// the token embedding again (tied). On a rank that has only a part of it (gpt_part.h), what goes
// from layer to layer comes from the stage before and goes to the stage after.
#pragma once

#include "kernels/layers.h"
#include "trainer/model/gpt_part.h"
#include "trainer/model/network.h"

namespace sluice::train {

/// data [count] becomes its sum over the tensor's ranks: an all-reduce on the network's stream.
using TensorSum = std::function<void(CUdeviceptr data, std::size_t count)>;

class Gpt : public Network {
 public:
  /// A part of a tensor needs `sum`.
  Gpt(Stream& stream, const GptPart& part, const NetworkSettings& settings, TensorSum sum = {});
  ~Gpt() override;

  Boundary boundary() override;

 private:
  struct Layer;      // what a layer keeps of its batch for the way back
  struct Slot;       // what a batch needs on its way: the layers, and what is around them
  struct Gradients;  // of what layers pass on; the same memory for all
  struct Norm {
    Norm(std::size_t rows, std::size_t width) : out(rows * width), means(rows), scales(rows) {}
    DeviceArray<float> out;
    DeviceArray<float> means;
    DeviceArray<float> scales;
  };

  void batch_look(const void* inputs, int batch) override;
  void forward_layers(int batch) override;
  void backward_layers(int batch) override;
  void layer_forward(int number, int batch, CUdeviceptr x);
  void logits_backward(int batch);
  void mlp_backward(int number, int batch);
  void attention_backward(int number, int batch, CUdeviceptr x);
  void embedding_backward(int batch);
  void norm_forward(const Norm& norm, int rows, std::size_t gain, CUdeviceptr x);
  void norm_backward(const Norm& norm, int rows, std::size_t gain, CUdeviceptr x, CUdeviceptr from,
                     CUdeviceptr to);
  /// A dense layer whose bias is the range after its weights.
  void dense_in(const DenseShape& shape, std::size_t weights, CUdeviceptr x, CUdeviceptr out);
  /// The same, where ranks of a tensor have rows of the weights: they add up their products first.
  void dense_sum_in(const DenseShape& shape, std::size_t weights, CUdeviceptr x, CUdeviceptr out);
  void dense_back(const DenseShape& shape, std::size_t weights, CUdeviceptr x, CUdeviceptr from,
                  CUdeviceptr to);
  /// data [count, width] over the tensor's ranks.
  void tensor_sum(CUdeviceptr data, int count);
  int rows(int batch) const { return batch * shape_.context; }
  kernels::AttentionShape attention(int batch) const {
    return {batch, part_.heads(), shape_.context, shape_.width / shape_.heads};
  }
  Slot& slot() const { return *slots_[slot_number()]; }
  const Layer& layer_of(int number) const;
  /// What goes into this part's layer `number`; after the last, what goes out of it.
  CUdeviceptr stream_into(int number) const;

  const GptPart part_;
  const GptShape& shape_;
  const TensorSum sum_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::unique_ptr<Gradients> gradients_of_;
  // Rows of the batch by token, for the gradient of the embedding (kernels/layers.h).
  std::vector<int> order_, starts_;
};

}  // namespace sluice::train
