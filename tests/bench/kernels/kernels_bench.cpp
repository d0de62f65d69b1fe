// kernels-bench: every family of kernels on fresh random inputs, first checked against float64,
// then timed on the device's own clock (modelled on a software GPU, real on hardware). What shows
// no error ("-") is checked in tests/kernels alone.
#include <sys/random.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/layers.h"
#include "kernels/reference.h"
#include "kernels/reference_layers.h"
#include "kernels/reference_optimizers.h"
#include "trainer/base/random.h"
#include "trainer/device/device.h"
#include "trainer/job/command_line.h"

namespace sluice {
namespace {

namespace reference = kernels::reference;
using kernels::Launch;
using reference::Values;

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
    Values wide;
    for (std::uint16_t& one : bits) {
      one = reference::half_bits(format, static_cast<float>(2 * random_.uniform() - 1));
      wide.push_back(static_cast<double>(reference::half_value(format, one)));
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
  const Values& drawn(std::size_t n) const { return drawn_[n]; }

 private:
  train::Stream& stream_;
  train::Random random_;
  std::vector<std::unique_ptr<train::DeviceArray<std::uint32_t>>> arrays_;
  std::vector<Values> drawn_;
};

struct Work {
  std::vector<Launch> launches;
  CUdeviceptr result = 0;
  std::size_t results = 0;           // floats
  std::function<Values()> expected;  // nothing: it has no reference of its own
  double flops = 0;
  double bytes = 0;  // read and written at least
};

struct Row {
  const char* name;
  /// `scale` times as much of whatever the kernel is given most of.
  std::function<Work(Inputs&, int scale)> work;
};

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

Work gemm_work(Inputs& inputs, int scale, kernels::GemmRung rung) {
  const kernels::GemmShape shape{32 * scale, 48 * scale, 40 * scale};
  const CUdeviceptr a = inputs.floats(size_of(shape.m * shape.k));
  const CUdeviceptr b = inputs.floats(size_of(shape.k * shape.n));
  Work work;
  work.results = size_of(shape.m * shape.n);
  work.result = inputs.empty(work.results);
  work.launches = {kernels::gemm(kernels::GemmForm::kNn, kernels::gemm_whole(rung, shape), shape, a,
                                 b, work.result)};
  work.flops = 2.0 * shape.m * shape.n * shape.k;
  work.bytes = 4.0 * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n);
  work.expected = [&inputs, shape] {
    return reference::gemm(kernels::GemmForm::kNn, shape, inputs.drawn(0), inputs.drawn(1));
  };
  return work;
}

Work gemm_half_work(Inputs& inputs, int scale, kernels::HalfFormat format) {
  const kernels::GemmShape shape{32 * scale, 48 * scale, 40 * scale};
  const CUdeviceptr a = inputs.halves(format, size_of(shape.m * shape.k));
  const CUdeviceptr b = inputs.halves(format, size_of(shape.k * shape.n));
  Work work;
  work.results = size_of(shape.m * shape.n);
  work.result = inputs.empty(work.results);
  work.launches = {kernels::gemm_half(kernels::GemmForm::kNn, format,
                                      kernels::gemm_whole(kernels::GemmRung::kRegister, shape),
                                      shape, a, b, work.result)};
  work.flops = 2.0 * shape.m * shape.n * shape.k;
  work.bytes = 2.0 * (shape.m * shape.k + shape.k * shape.n) + 4.0 * shape.m * shape.n;
  work.expected = [&inputs, shape] {
    return reference::gemm(kernels::GemmForm::kNn, shape, inputs.drawn(0), inputs.drawn(1));
  };
  return work;
}

Work layer_norm_work(Inputs& inputs, int scale) {
  const int rows = 24 * scale, columns = 96;
  const std::size_t count = size_of(rows * columns);
  const CUdeviceptr x = inputs.floats(count);
  const CUdeviceptr gain = inputs.floats(size_of(columns), 0.5, 2);
  const CUdeviceptr bias = inputs.floats(size_of(columns));
  Work work;
  work.results = count;
  work.result = inputs.empty(count);
  work.launches = {kernels::layer_norm_forward(rows, columns, 1e-5f, x, gain, bias, work.result,
                                               inputs.empty(size_of(rows)),
                                               inputs.empty(size_of(rows)))};
  work.bytes = 8.0 * static_cast<double>(count);
  work.expected = [&inputs, rows, columns] {
    return reference::layer_norm(rows, columns, 1e-5, inputs.drawn(0), inputs.drawn(1),
                                 inputs.drawn(2));
  };
  return work;
}

Work softmax_work(Inputs& inputs, int scale) {
  const int rows = 24 * scale, columns = 96;
  Work work;
  work.results = size_of(rows * columns);
  const CUdeviceptr x = inputs.floats(work.results, -5, 5);
  work.result = inputs.empty(work.results);
  work.launches = {kernels::softmax_forward(rows, columns, x, work.result)};
  work.bytes = 8.0 * static_cast<double>(work.results);
  work.expected = [&inputs, rows, columns] {
    return reference::softmax(rows, columns, inputs.drawn(0));
  };
  return work;
}

Work gelu_work(Inputs& inputs, int scale) {
  Work work;
  work.results = size_of(2048 * scale);
  const CUdeviceptr x = inputs.floats(work.results, -5, 5);
  work.result = inputs.empty(work.results);
  work.launches = {kernels::gelu_forward(2048 * scale, x, work.result)};
  work.bytes = 8.0 * static_cast<double>(work.results);
  work.expected = [&inputs] { return reference::gelu(inputs.drawn(0)); };
  return work;
}

Work attention_work(Inputs& inputs, int scale, kernels::AttentionRung rung) {
  const kernels::AttentionShape shape{1, 2, 48 * scale, 32};
  const std::size_t rows = size_of(shape.heads * shape.length);
  const CUdeviceptr qkv = inputs.floats(rows * 3 * 32);
  Work work;
  work.results = rows * 32;
  work.result = inputs.empty(work.results);
  work.launches = {kernels::attention_forward(rung, shape, qkv, work.result, inputs.empty(rows))};
  // Scores and values, of the causal half.
  work.flops = 2.0 * 2.0 * shape.heads * shape.length * (shape.length + 1) / 2 * shape.size;
  work.bytes = 16.0 * static_cast<double>(work.results);
  work.expected = [&inputs, shape] { return reference::attention(shape, inputs.drawn(0)); };
  return work;
}

/// Forward and the three launches of the way back.
Work attention_backward_work(Inputs& inputs, int scale) {
  const kernels::AttentionShape shape{1, 2, 48 * scale, 32};
  const std::size_t rows = size_of(shape.heads * shape.length);
  const CUdeviceptr qkv = inputs.floats(rows * 3 * 32);
  const CUdeviceptr gradient = inputs.floats(rows * 32);
  const CUdeviceptr out = inputs.empty(rows * 32), sums = inputs.empty(rows);
  const CUdeviceptr products = inputs.empty(rows);
  Work work;
  work.results = rows * 3 * 32;
  work.result = inputs.empty(work.results);
  work.launches = {
      kernels::attention_forward(kernels::AttentionRung::kTiled, shape, qkv, out, sums),
      kernels::attention_products(shape, out, gradient, products),
      kernels::attention_backward_queries(shape, qkv, sums, products, gradient, work.result),
      kernels::attention_backward_keys(shape, qkv, sums, products, gradient, work.result)};
  // Two products forward; scores and slopes twice each, and three sums of gradients back.
  work.flops = 9.0 * 2.0 * shape.heads * shape.length * (shape.length + 1) / 2 * shape.size;
  work.bytes = 4.0 * 11 * static_cast<double>(rows) * 32;
  return work;
}

Work convolution_work(Inputs& inputs, int scale, bool by_patches) {
  const kernels::WindowShape shape{scale, 14, 14, 8, 3, 1, 1};
  const int filters = 16;
  const CUdeviceptr x = inputs.floats(size_of(shape.items * 14 * 14 * 8));
  const CUdeviceptr weights = inputs.floats(size_of(shape.patch() * filters));
  Work work;
  work.results = size_of(shape.patches() * filters);
  work.result = inputs.empty(work.results);
  const kernels::GemmShape product{shape.patches(), filters, shape.patch()};
  if (by_patches) {
    const CUdeviceptr patches = inputs.empty(size_of(shape.patches() * shape.patch()));
    work.launches = {kernels::patches_gather(shape, x, patches),
                     kernels::gemm(kernels::GemmForm::kNn,
                                   kernels::gemm_whole(kernels::GemmRung::kTiled, product), product,
                                   patches, weights, work.result)};
  } else {
    work.launches = {kernels::convolution_naive(shape, filters, x, weights, work.result)};
  }
  work.flops = 2.0 * product.m * product.n * product.k;
  work.bytes = 4.0 * (shape.items * 14 * 14 * 8 + product.m * product.n);
  work.expected = [&inputs, shape] {
    return reference::convolution(shape, 16, inputs.drawn(0), inputs.drawn(1));
  };
  return work;
}

Work embedding_work(Inputs& inputs, int scale) {
  const int rows = 24 * scale, columns = 96, length = 24;
  auto tokens = std::make_shared<std::vector<int>>();
  const CUdeviceptr ids = inputs.tokens(size_of(rows), 256, tokens.get());
  const CUdeviceptr table = inputs.floats(size_of(256 * columns));
  const CUdeviceptr positions = inputs.floats(size_of(length * columns));
  Work work;
  work.results = size_of(rows * columns);
  work.result = inputs.empty(work.results);
  work.launches = {
      kernels::embedding_forward(rows, columns, length, ids, table, positions, work.result)};
  work.bytes = 12.0 * static_cast<double>(work.results);
  work.expected = [&inputs, tokens, columns, length] {
    return reference::embedding(columns, length, *tokens, inputs.drawn(0), inputs.drawn(1));
  };
  return work;
}

Work adamw_work(Inputs& inputs, int scale) {
  const int count = 2048 * scale;
  const kernels::AdamwSettings settings{.rate = 0.01f, .decay = 0.1f};
  Work work;
  work.results = size_of(count);
  const CUdeviceptr gradient = inputs.floats(work.results), means = inputs.floats(work.results);
  const CUdeviceptr squares = inputs.floats(work.results, 0.1, 1);
  work.result = inputs.floats(work.results);
  work.launches = {kernels::adamw(count, settings, 3, gradient, means, squares, work.result)};
  work.bytes = 28.0 * count;  // four arrays read, three written
  work.expected = [&inputs, settings] {
    const reference::Adam before{inputs.drawn(1), inputs.drawn(2), inputs.drawn(3)};
    return reference::adamw(settings, 3, inputs.drawn(0), before).weights;
  };
  return work;
}

Work rmsprop_work(Inputs& inputs, int scale) {
  const int count = 2048 * scale;
  const kernels::RmspropSettings settings{.rate = 0.01f, .momentum = 0.9f};
  Work work;
  work.results = size_of(count);
  const CUdeviceptr gradient = inputs.floats(work.results);
  const CUdeviceptr squares = inputs.floats(work.results, 0.1, 1);
  const CUdeviceptr velocity = inputs.floats(work.results);
  work.result = inputs.floats(work.results);
  work.launches = {kernels::rmsprop(count, settings, gradient, squares, velocity, work.result)};
  work.bytes = 28.0 * count;
  work.expected = [&inputs, settings] {
    const reference::Rmsprop before{inputs.drawn(1), inputs.drawn(2), inputs.drawn(3)};
    return reference::rmsprop(settings, inputs.drawn(0), before).weights;
  };
  return work;
}

Work norm_work(Inputs& inputs, int scale) {
  const int count = 2048 * scale;
  const CUdeviceptr x = inputs.floats(size_of(count));
  const int parts = kernels::square_sum_parts(count);
  const CUdeviceptr partials = inputs.empty(size_of(parts));
  Work work;
  work.results = 1;
  work.result = inputs.empty(1);
  work.launches = {kernels::square_sum(count, x, partials),
                   kernels::norm_finish(parts, partials, work.result)};
  work.bytes = 4.0 * count;
  work.expected = [&inputs] { return Values{reference::norm(inputs.drawn(0))}; };
  return work;
}

Work topk_work(Inputs& inputs, int scale) {
  const int count = 2048 * scale, k = count / 100;
  const std::size_t blocks = size_of(kernels::topk_blocks(count));
  const CUdeviceptr x = inputs.floats(size_of(count));
  const CUdeviceptr search =
      inputs.upload(std::vector<std::uint32_t>{0, static_cast<std::uint32_t>(k)});
  const CUdeviceptr histogram = inputs.upload(std::vector<std::uint32_t>(256));
  const CUdeviceptr above = inputs.empty(blocks), equal = inputs.empty(blocks);
  Work work;
  work.results = size_of(k);
  work.result = inputs.empty(work.results);
  for (int shift = 24; shift >= 0; shift -= 8) {
    work.launches.push_back(kernels::topk_histogram(count, shift, search, x, histogram));
    work.launches.push_back(kernels::topk_pick(shift, search, histogram));
  }
  work.launches.push_back(kernels::topk_count(count, search, x, above, equal));
  work.launches.push_back(kernels::topk_offsets(count, above, equal));
  work.launches.push_back(
      kernels::topk_take(count, search, above, equal, x, inputs.empty(size_of(k)), work.result));
  work.bytes = 4.0 * 6 * count;
  work.expected = [&inputs, k] {
    const std::vector<float> narrow(inputs.drawn(0).begin(), inputs.drawn(0).end());
    Values taken;
    for (const int index : reference::topk(k, narrow))
      taken.push_back(inputs.drawn(0)[size_of(index)]);
    return taken;
  };
  return work;
}

/// In place: what it is timed on is orthonormal already.
Work gram_schmidt_work(Inputs& inputs, int scale) {
  constexpr int kColumns = 4;
  const int rows = 16 * scale;
  const CUdeviceptr x = inputs.floats(size_of(rows * kColumns));
  Work work;
  work.results = size_of(rows * kColumns);
  work.result = x;
  work.launches = {kernels::gram_schmidt(rows, kColumns, x)};
  work.bytes = 2 * 4.0 * rows * kColumns;
  work.expected = [&inputs, rows] {
    return reference::gram_schmidt(rows, kColumns, inputs.drawn(0));
  };
  return work;
}

Work cast_work(Inputs& inputs, int scale, kernels::HalfFormat format) {
  const int count = 2048 * scale;
  const CUdeviceptr x = inputs.floats(size_of(count));
  const CUdeviceptr half = inputs.empty(size_of(count / 2));
  Work work;
  work.results = size_of(count);
  work.result = inputs.empty(work.results);
  work.launches = {kernels::cast_to_half(format, count, x, half),
                   kernels::cast_from_half(format, count, half, work.result)};
  work.bytes = 12.0 * count;
  work.expected = [&inputs, format] {
    Values rounded;
    for (const double value : inputs.drawn(0)) {
      const std::uint16_t bits = reference::half_bits(format, static_cast<float>(value));
      rounded.push_back(static_cast<double>(reference::half_value(format, bits)));
    }
    return rounded;
  };
  return work;
}

const std::vector<Row>& rows() {
  using kernels::AttentionRung;
  using kernels::GemmRung;
  using kernels::HalfFormat;
  static const std::vector<Row> all = {
      {"gemm naive", [](Inputs& in, int n) { return gemm_work(in, n, GemmRung::kNaive); }},
      {"gemm tiled", [](Inputs& in, int n) { return gemm_work(in, n, GemmRung::kTiled); }},
      {"gemm register", [](Inputs& in, int n) { return gemm_work(in, n, GemmRung::kRegister); }},
      {"gemm fp16", [](Inputs& in, int n) { return gemm_half_work(in, n, HalfFormat::kFp16); }},
      {"gemm bf16", [](Inputs& in, int n) { return gemm_half_work(in, n, HalfFormat::kBf16); }},
      {"convolution naive", [](Inputs& in, int n) { return convolution_work(in, n, false); }},
      {"convolution patches", [](Inputs& in, int n) { return convolution_work(in, n, true); }},
      {"layer norm", layer_norm_work},
      {"softmax", softmax_work},
      {"gelu", gelu_work},
      {"attention naive",
       [](Inputs& in, int n) { return attention_work(in, n, AttentionRung::kNaive); }},
      {"attention tiled",
       [](Inputs& in, int n) { return attention_work(in, n, AttentionRung::kTiled); }},
      {"attention and back", attention_backward_work},
      {"embedding", embedding_work},
      {"adamw", adamw_work},
      {"rmsprop", rmsprop_work},
      {"gradient norm", norm_work},
      {"top 1 %", topk_work},
      {"gram-schmidt of 4", gram_schmidt_work},
      {"cast fp16 and back", [](Inputs& in, int n) { return cast_work(in, n, HalfFormat::kFp16); }},
      {"cast bf16 and back", [](Inputs& in, int n) { return cast_work(in, n, HalfFormat::kBf16); }},
  };
  return all;
}

/// The largest error in parts of the largest expected value.
double error_of(train::Stream& stream, const Work& work) {
  std::vector<float> got(work.results);
  stream.download(got.data(), work.result, got.size() * sizeof(float));
  stream.synchronize();
  const Values expected = work.expected();
  double error = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(got[i]) - expected[i]);
    error = difference <= error ? error : difference;  // keeps NaN
    size = std::max(size, std::fabs(expected[i]));
  }
  return error / size;
}

int run(std::uint64_t seed, int scale, int rounds) {
  constexpr double kErrorMax = 1e-5;
  const train::Device device(0);
  train::Stream stream(device);
  std::printf("%s, %s time; seed %llu, scale %d, median of %d\n\n", device.name().c_str(),
              device.is_software() ? "modelled" : "device", static_cast<unsigned long long>(seed),
              scale, rounds);
  std::printf("%-20s %10s %12s %10s %10s\n", "kernels", "error", "us", "GFLOP/s", "GB/s");
  bool right = true;
  for (const Row& row : rows()) {
    std::string error = "-";
    {
      Inputs inputs(stream, seed);
      const Work work = row.work(inputs, 1);
      for (const Launch& launch : work.launches) stream.launch(launch);
      if (work.expected) {
        const double worst = error_of(stream, work);
        error = train::text_format("%.1e", worst);
        if (!(worst <= kErrorMax)) {
          right = false;
          error += " !";
        }
      }
    }
    Inputs inputs(stream, seed + 1);
    const Work work = row.work(inputs, scale);
    std::vector<double> times;
    for (int round = 0; round <= rounds; ++round) {  // the first is not counted
      train::Event begin, end;
      begin.record(stream);
      for (const Launch& launch : work.launches) stream.launch(launch);
      end.record(stream);
      stream.synchronize();
      if (round > 0) times.push_back(static_cast<double>(end.since(begin)));
    }
    std::sort(times.begin(), times.end());
    const double ns = times[times.size() / 2];
    const std::string rate = work.flops > 0 ? train::text_format("%.1f", work.flops / ns) : "-";
    std::printf("%-20s %10s %12.1f %10s %10.2f\n", row.name, error.c_str(), ns / 1e3, rate.c_str(),
                work.bytes / ns);
  }
  if (!right)
    std::fprintf(stderr, "sluice: kernels marked ! are wrong by more than %g\n", kErrorMax);
  return right ? 0 : 1;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  return sluice::train::program_main("kernels-bench", [&] {
    std::uint64_t seed = 0;
    int scale = 4, rounds = 5, exit_code = 0;
    sluice::train::CommandLine line(
        "kernels-bench", "Checks every family of kernels on fresh random inputs, then times it.");
    line.number("--seed", seed, "of the inputs; 0 draws one, which is printed");
    line.number("--scale", scale, "times the smallest size, for the timing", 1, 64);
    line.number("--rounds", rounds, "timed runs of each", 1, 1000);
    if (!line.parse(argc, argv, &exit_code)) return exit_code;
    if (seed == 0 && getrandom(&seed, sizeof seed, 0) != sizeof seed) seed = 1;
    return sluice::run(seed, scale, rounds);
  });
}
