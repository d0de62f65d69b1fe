// The rows of kernels-bench: what each launches on inputs of its own, and what should come out.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/reference_optimizers.h"
#include "trainer/base/random.h"
#include "trainer/device/device.h"

namespace sluice::bench {

/// Arrays of one row of the table: drawn here, uploaded once, freed together.
class Inputs {
 public:
  Inputs(train::Stream& stream, std::uint64_t seed) : stream_(stream), random_(seed) {}

  CUdeviceptr floats(std::size_t count, double low = -1, double high = 1) {
    std::vector<float> values(count);
    for (float& value : values) {
      value = static_cast<float>(low + (high - low) * random_.uniform());
    }
    drawn_.emplace_back(values.begin(), values.end());
    return upload(values);
  }
  CUdeviceptr halves(kernels::HalfFormat format, std::size_t count) {
    std::vector<std::uint16_t> bits(count);
    kernels::reference::Values wide;
    for (std::uint16_t& one : bits) {
      one = kernels::reference::half_bits(format, static_cast<float>(2 * random_.uniform() - 1));
      wide.push_back(static_cast<double>(kernels::reference::half_value(format, one)));
    }
    drawn_.push_back(wide);
    return upload(bits);
  }
  CUdeviceptr tokens(std::size_t count, int below, std::vector<int>* values) {
    values->resize(count);
    for (int& one : *values)
      one = static_cast<int>(random_.below(static_cast<std::uint32_t>(below)));
    return upload(*values);
  }
  template <class T>
  CUdeviceptr upload(const std::vector<T>& values) {
    auto words =
        std::make_unique<train::DeviceArray<std::uint32_t>>((values.size() * sizeof(T) + 3) / 4);
    stream_.upload(words->at(), values.data(), values.size() * sizeof(T));
    stream_.synchronize();
    arrays_.push_back(std::move(words));
    return arrays_.back()->at();
  }
  CUdeviceptr empty(std::size_t count) { return upload(std::vector<float>(count, NAN)); }
  /// The values of the n-th array that was drawn.
  const kernels::reference::Values& drawn(std::size_t n) const { return drawn_[n]; }

 private:
  train::Stream& stream_;
  train::Random random_;
  std::vector<std::unique_ptr<train::DeviceArray<std::uint32_t>>> arrays_;
  std::vector<kernels::reference::Values> drawn_;
};

/// What a row of the table launches and should get.
struct Work {
  std::vector<kernels::Launch> before;  // once, not timed: what the row's own launches read
  std::vector<kernels::Launch> launches;
  CUdeviceptr result = 0;
  std::size_t results = 0;  // floats
  std::function<kernels::reference::Values()> expected;
  double flops = 0;
  double bytes = 0;  // read and written at least
};

struct Row {
  const char* name;
  /// `scale` times as much of whatever the kernel is given most of.
  std::function<Work(Inputs&, int scale)> work;
};

inline std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

/// Forward passes, optimizers and what else stands alone.
std::vector<Row> forward_rows();
/// The ways back through the layers.
std::vector<Row> backward_rows();

}  // namespace sluice::bench
