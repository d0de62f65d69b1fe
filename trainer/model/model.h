// The models that there are, as one thing: what the plan, the files and the ranks need to know of a
// model before and after it is on a device.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "trainer/model/cnn.h"
#include "trainer/model/gpt.h"
#include "trainer/model/mlp.h"

namespace sluice::train {

class ModelShape {
 public:
  using Any = std::variant<MlpShape, CnnShape, GptShape>;

  ModelShape() = default;
  template <class Shape>
  ModelShape(const Shape& shape) : any_(shape) {}

  /// "784-128-10"
  std::string text() const;
  std::size_t parameter_count() const;
  std::vector<ParameterRange> ranges() const;
  SampleShape sample() const;
  /// Throws Failure where batches of so many samples are too large for the kernels, which count in
  /// 32 bits.
  void batch_check(int batch) const;
  /// New parameters; a function of shape and seed alone.
  std::vector<float> draw(std::uint64_t seed) const;
  std::unique_ptr<Network> make(Stream& stream, const NetworkSettings& settings) const;

  const Any& any() const { return any_; }
  template <class Shape>
  const Shape* get() const {
    return std::get_if<Shape>(&any_);
  }

 private:
  Any any_;
};

}  // namespace sluice::train
