// Samples by number, as a model takes them: what a rank trains and is tested on, whatever it is
// made from.
#pragma once

#include <cstdint>
#include <span>

namespace sluice::train {

class Source {
 public:
  virtual ~Source() = default;

  virtual std::uint32_t train_count() const = 0;
  virtual std::uint32_t test_count() const = 0;
  /// These samples, one after the other: the model's words of input (floats of images, int32
  /// tokens) and its targets. Only reads; any thread.
  virtual void train_put(std::span<const std::uint32_t> samples, void* inputs,
                         int* targets) const = 0;
  virtual void test_put(std::span<const std::uint32_t> samples, void* inputs,
                        int* targets) const = 0;
};

}  // namespace sluice::train
