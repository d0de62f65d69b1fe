// What every model is to the rest of the trainer: parameters and gradients as one flat array each,
// forward, loss and backward over batches, and a call whenever a stretch of the gradients is final,
// so that its reduction can begin while the rest is still being computed. What a model computes is
// its own business (mlp.h, cnn.h, gpt.h); what becomes of gradients is none of a model's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trainer/device/device.h"
#include "trainer/model/products.h"

namespace sluice::train {

/// A named stretch of the flat array of parameters, and of gradients: one tensor.
struct ParameterRange {
  std::string name;  // "layer 0 weights"
  std::size_t begin = 0;
  std::size_t count = 0;
  std::size_t columns = 0;  // of a matrix [count / columns, columns]; 0 = a vector

  std::size_t end() const { return begin + count; }
};

/// One sample as the device sees it.
struct SampleShape {
  std::size_t inputs = 0;   // 32-bit words: floats of an image, or int32 tokens of a text
  std::size_t targets = 1;  // int32 right answers: one label, or the next token at every time
  int classes = 0;          // targets are in [0, classes)
};

struct NetworkSettings {
  int batch_max = 1;         // samples of a forward pass
  bool trains = true;        // false: no room for gradients
  bool accumulates = false;  // backward passes may be added up (GradientPart)
  Precision precision = Precision::kFp32;
  GemmEngine gemm = GemmEngine::kOwn;  // of 16-bit products
  // Of a stage of a pipeline: whether the batch's inputs go into it, and whether the logits, and so
  // the loss, come out of it; and how many batches may be under way at once.
  bool takes_inputs = true;
  bool gives_logits = true;
  int slots = 1;
};

/// Which of a step's backward passes this is, where several add up to one (micro-batches).
struct GradientPart {
  bool first = true;
  bool last = true;
};

/// Floats that travel with the gradients through the all-reduce: the sum of losses, and the wish to
/// stop, which is not the network's.
inline constexpr std::size_t kExtraCount = 2;
inline constexpr std::size_t kExtraLoss = 0;
inline constexpr std::size_t kExtraStop = 1;

/// A model on one GPU. One thread; every method only enqueues on the stream, unless it says that it
/// waits.
class Network {
 public:
  virtual ~Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// Where a stage of a pipeline (or the whole, for which it means nothing) has what comes from the
  /// stage before and goes to the stage after, [batch, floats]: activations of the batch in the
  /// slot, and their gradients.
  struct Boundary {
    CUdeviceptr in, out;
    CUdeviceptr in_gradient, out_gradient;
    std::size_t floats;
  };
  virtual Boundary boundary() { return {}; }
  /// What follows is about the batch in this slot; the first one, until told otherwise. A stage
  /// that gives logits has one.
  void slot_use(std::size_t slot) { slot_ = slot; }

  /// Every parameter once, in the order of the forward pass, without gaps from 0 to
  /// parameter_count().
  const std::vector<ParameterRange>& ranges() const { return ranges_; }
  std::size_t parameter_count() const { return ranges_.back().end(); }
  const SampleShape& sample() const { return sample_; }
  int batch_max() const { return settings_.batch_max; }

  /// Both wait.
  void parameters_upload(std::span<const float> values);
  std::vector<float> parameters_download();

  /// inputs: [batch, sample().inputs] words; targets: [batch, sample().targets]. Host memory must
  /// stay until the stream has passed. The batch stays for forward() and what follows it.
  void batch_upload(const void* inputs, const int* targets, int batch);
  /// logits() of the batch, which is not empty; or boundary().out
  void forward(int batch);
  /// The losses of all targets (and nothing else) into losses(); after forward(). This and
  /// correct_add() only where logits come out.
  void loss(int batch);
  /// Gradients of scale x (sum of losses) / (targets of global_count samples) into gradients(), and
  /// the sum of losses, not scaled, into extra(kExtraLoss); after forward() of the same batch. A
  /// batch of 0 gives zeros, without a forward(). With parts: the sums over the parts so far are
  /// kept, and gradients() has them after the last. Where no logits come out: gradients from
  /// boundary().out_gradient, and a sum of losses of 0.
  void backward(int batch, int global_count, GradientPart part = {}, float scale = 1);
  /// *correct() += targets of the batch to which the largest logit belongs; after forward()
  void correct_add(int batch);

  /// `call` is called from backward(), in a step's last part only, for every range once, the last
  /// range first: what is on the stream then makes gradients()[range.begin, parameter_count())
  /// final, extra(kExtraLoss) too. So an event recorded in `call` is the moment from which that
  /// stretch may be reduced. Called for an empty batch as well.
  void on_gradient_ready(std::function<void(const ParameterRange& range)> call) {
    ready_ = std::move(call);
  }

  CUdeviceptr parameters() const { return parameters_.at(); }
  /// Flat, as the parameters; then kExtraCount more floats.
  CUdeviceptr gradients() const { return gradients_.at(); }
  std::size_t gradient_count() const { return parameter_count() + kExtraCount; }
  CUdeviceptr extra(std::size_t which) const { return gradients_.at(parameter_count() + which); }
  /// [batch x sample().targets, sample().classes]
  CUdeviceptr logits() const { return logits_.at(); }
  /// [batch x sample().targets]
  CUdeviceptr losses() const { return losses_.at(); }
  /// What computes its products; see products.h.
  const CublasLt* library() const { return products_.library(); }
  /// One int32.
  CUdeviceptr correct() const { return correct_.at(); }

 protected:
  /// `ranges` as ranges() has them.
  Network(Stream& stream, std::vector<ParameterRange> ranges, const SampleShape& sample,
          const NetworkSettings& settings);

  /// Looks at a batch that is about to be uploaded, where it is still on the host.
  virtual void batch_look(const void* inputs, int batch);
  /// logits() from inputs().
  virtual void forward_layers(int batch) = 0;
  /// From logits_gradient() to the gradients of all parameters, written, not added to; calls
  /// gradient_final() for every range, the last first.
  virtual void backward_layers(int batch) = 0;
  /// All of range `which` of gradients() is on the stream.
  void gradient_final(std::size_t which);

  CUdeviceptr parameter(std::size_t range) const { return parameters_.at(ranges_[range].begin); }
  CUdeviceptr gradient(std::size_t range) const { return gradients_.at(ranges_[range].begin); }
  CUdeviceptr inputs() const {
    return inputs_.at(slot_ * sample_.inputs * static_cast<std::size_t>(settings_.batch_max));
  }
  std::size_t slot_number() const { return slot_; }
  CUdeviceptr targets() const { return targets_.at(); }
  CUdeviceptr logits_gradient() const { return logits_gradient_.at(); }
  Stream& stream() { return stream_; }
  Products& products() { return products_; }
  bool trains() const { return settings_.trains; }
  int target_count(int batch) const { return batch * static_cast<int>(sample_.targets); }

 private:
  void part_add(std::size_t begin, std::size_t count, CUdeviceptr to, CUdeviceptr from);

  Stream& stream_;
  const std::vector<ParameterRange> ranges_;
  const SampleShape sample_;
  const NetworkSettings settings_;
  Products products_;
  GradientPart part_;
  std::size_t slot_ = 0;
  std::function<void(const ParameterRange&)> ready_;
  DeviceArray<float> parameters_;
  DeviceArray<float> gradients_;
  DeviceArray<float> sums_;  // over the parts before this one
  DeviceArray<std::uint32_t> inputs_;
  DeviceArray<int> targets_;
  DeviceArray<float> logits_;
  DeviceArray<float> logits_gradient_;
  DeviceArray<float> losses_;
  DeviceArray<int> correct_{1};
};

/// For shapes of models: their ranges in the making.
class RangeList {
 public:
  /// Appends a range and returns its number.
  std::size_t add(std::string name, std::size_t count, std::size_t columns = 0);
  const std::vector<ParameterRange>& ranges() const { return ranges_; }

 private:
  std::vector<ParameterRange> ranges_;
};

}  // namespace sluice::train
