// The kernels of a calibration; see measure.h. A shape is launched a few times between two events,
// after once for nothing, which loads it. What is computed does not matter and is not looked at.
#include <algorithm>
#include <map>

#include "kernels/optimizers.h"
#include "trainer/base/random.h"
#include "trainer/plan/measure.h"
#include "trainer/plan/work.h"

namespace sluice::train::planner {
namespace {

constexpr std::size_t kFloats = 1 << 18;  // of each array, enough for every shape below
constexpr int kRounds = 5;
constexpr int kRoundsQuick = 3;
constexpr int kLaunchesHardware = 20;

class KernelBench {
 public:
  KernelBench(const Device& device, bool quick)
      : software_(device.is_software()),
        rounds_(quick ? kRoundsQuick : kRounds),
        launches_(software_ ? 1 : kLaunchesHardware),
        stream_(device),
        host_(kFloats) {
    rates_.multiprocessors = device.multiprocessors();
    Random random(1, 2);
    for (std::size_t i = 0; i < kFloats; ++i)
      host_[i] = static_cast<float>(2 * random.uniform() - 1);
    for (const CUdeviceptr to : {a(), b(), c(), d()})
      stream_.upload(to, host_.data(), kFloats * sizeof(float));
    stream_.zero(ints(), kFloats);
    stream_.synchronize();
  }

  KernelRates run() {
    launch_cost();
    elements();
    products();
    rows_and_columns();
    attention();
    images();
    tokens();
    norms();
    copies();
    for (auto& [kind, samples] : samples_) {
      Rate& rate = rates_.rates[kind];
      const double spread = rate.spread;
      rate = rate_fit(samples);
      rate.spread = spread;
    }
    return rates_;
  }

 private:
  CUdeviceptr a() const { return a_.at(); }
  CUdeviceptr b() const { return b_.at(); }
  CUdeviceptr c() const { return c_.at(); }
  CUdeviceptr d() const { return d_.at(); }
  CUdeviceptr ints() const { return ints_.at(); }

  /// Device time of one.
  template <class Do>
  double time_ns(WorkKind kind, Do once) {
    once();
    std::vector<double> times;
    for (int round = 0; round < rounds_; ++round) {
      begin_.record(stream_);
      for (int i = 0; i < launches_; ++i) once();
      end_.record(stream_);
      stream_.synchronize();
      times.push_back(static_cast<double>(end_.since(begin_)) / launches_);
    }
    std::sort(times.begin(), times.end());
    // On software GPUs whatever is above the least is this host's.
    const double usual = software_ ? times.front() : times[times.size() / 2];
    double& spread = rates_.rates[kind].spread;
    spread = std::max(spread, (times.back() - times.front()) / std::max(usual, 1.0));
    return usual;
  }

  void measure(const kernels::Launch& launch, const Work& work) {
    const double ns = time_ns(work.kind, [&] { stream_.launch(launch); });
    const double own = std::max(ns - rates_.launch_ns, 0.0);
    samples_[work.kind].push_back({work.amounts, own * rates_.width(work)});
  }

  /// What a launch takes before its first instruction: the intercept over full devices of blocks.
  void launch_cost() {
    std::vector<LinkSample> line;
    for (const int blocks : {1, 2, 4}) {
      const int count = blocks * rates_.multiprocessors * 256;
      const auto launch = kernels::array_add(count, a(), b());
      const Work work = elements_work(launch, count);
      line.push_back({work.amounts[0], time_ns(work.kind, [&] { stream_.launch(launch); })});
    }
    CollectiveRate fit;
    line_fit(line, fit);
    rates_.launch_ns = fit.alpha_ns;
    constexpr int kMany = 200;
    const Nanos begin = now_ns();
    for (int i = 0; i < kMany; ++i) stream_.launch(kernels::array_add(1, a(), b()));
    rates_.host_ns = static_cast<double>(now_ns() - begin) / kMany;
    stream_.synchronize();
  }

  void elements() {
    for (const int count : {1, 256, 5000, 40000}) {
      const auto one = [&](const kernels::Launch& launch) {
        measure(launch, elements_work(launch, count));
      };
      one(kernels::bias_forward(count, 1, a(), b()));
      one(kernels::bias_relu_forward(count, 1, a(), c()));
      one(kernels::relu_backward(count, d(), b()));
      one(kernels::gelu_forward(count, a(), b()));
      one(kernels::gelu_backward(count, a(), b()));
      one(kernels::array_add(count, a(), b()));
      one(kernels::array_scale(count, 0.5f, b()));
      one(kernels::sgd_momentum(count, 0.1f, 0.9f, a(), b(), c()));
      one(kernels::adamw(count, {.rate = 0.1f}, 1, a(), b(), squares_.at(), c()));
      one(kernels::rmsprop(count, {.rate = 0.1f}, a(), squares_.at(), b(), c()));
      one(kernels::norm_clip(count, 0.5f, norm_.at(), b()));
      one(kernels::not_finite(count, d(), found_.at()));
      for (const auto format : {kernels::HalfFormat::kFp16, kernels::HalfFormat::kBf16}) {
        one(kernels::cast_to_half(format, count, d(), halves_.at()));
        one(kernels::cast_from_half(format, count, halves_.at(), b()));
      }
    }
    for (const auto& [count, parts] : {std::pair{1, 2}, {1000, 2}, {1000, 8}, {8000, 4}}) {
      const auto launch = kernels::split_sum(count, parts, a(), b());
      measure(launch, parts_work(launch, count, parts));
    }
  }

  void product(kernels::GemmForm form, const kernels::GemmPlan& plan,
               const kernels::GemmShape& shape) {
    const auto launch = kernels::gemm(form, plan, shape, a(), d(), b());
    measure(launch, product_work(launch, shape, plan));
  }

  void products() {
    using kernels::GemmRung;
    for (const auto form :
         {kernels::GemmForm::kNn, kernels::GemmForm::kNt, kernels::GemmForm::kTn}) {
      for (const kernels::GemmShape& shape :
           {kernels::GemmShape{16, 16, 16}, {16, 16, 128}, {32, 10, 64}, {20, 64, 256}})
        product(form, kernels::gemm_whole(GemmRung::kTiled, shape), shape);
      for (const kernels::GemmShape& shape :
           {kernels::GemmShape{64, 64, 16}, {64, 64, 128}, {128, 64, 64}, {96, 40, 64}})
        product(form, kernels::gemm_whole(GemmRung::kRegister, shape), shape);
      product(form, {GemmRung::kRegister, 32, 8}, {64, 64, 256});
      product(form, {GemmRung::kTiled, 32, 8}, {32, 32, 256});
      for (const auto format : {kernels::HalfFormat::kFp16, kernels::HalfFormat::kBf16}) {
        for (const kernels::GemmShape& shape :
             {kernels::GemmShape{64, 64, 16}, {64, 64, 128}, {128, 64, 64}}) {
          const auto plan = kernels::gemm_whole(GemmRung::kRegister, shape);
          const auto launch =
              kernels::gemm_half(form, format, plan, shape, halves_.at(), halves_.at(), b());
          measure(launch, product_work(launch, shape, plan));
        }
      }
    }
  }

  void rows_and_columns() {
    for (const auto& [rows, columns] :
         {std::pair{16, 10}, {64, 10}, {64, 256}, {128, 64}, {256, 1}, {16, 512}}) {
      const auto by_rows = [&, r = rows, n = columns](const kernels::Launch& launch) {
        measure(launch, rows_work(launch, r, n));
      };
      const auto by_columns = [&, r = rows, n = columns](const kernels::Launch& launch) {
        measure(launch, columns_work(launch, r, n));
      };
      by_rows(kernels::softmax_cross_entropy(rows, columns, 1, a(), ints(), c(), b()));
      by_rows(kernels::layer_norm_forward(rows, columns, 1e-5f, a(), d(), d(), b(), c(),
                                          squares_.at()));
      by_rows(kernels::layer_norm_backward(rows, columns, a(), d(), d(), d(), c(), b()));
      by_columns(kernels::column_sum(rows, columns, a(), b()));
      by_columns(kernels::layer_norm_weights_backward(rows, columns, a(), d(), d(), d(), b(), c()));
    }
  }

  void attention() {
    for (const kernels::AttentionShape& shape : {kernels::AttentionShape{1, 1, 32, 16},
                                                 {1, 2, 32, 64},
                                                 {1, 1, 128, 16},
                                                 {1, 2, 96, 64},
                                                 {2, 2, 64, 32},
                                                 {1, 1, 256, 32}}) {
      const auto one = [&](const kernels::Launch& launch) {
        measure(launch, attention_work(launch, shape));
      };
      one(kernels::attention_forward(kernels::AttentionRung::kTiled, shape, a(), b(), c()));
      one(kernels::attention_backward_queries(shape, a(), d(), d(), d(), b()));
      one(kernels::attention_backward_keys(shape, a(), d(), d(), d(), b()));
      const auto products = kernels::attention_products(shape, a(), d(), b());
      measure(products, rows_work(products, shape.items * shape.heads * shape.length, shape.size));
    }
  }

  void images() {
    for (const kernels::WindowShape& window : {kernels::WindowShape{2, 28, 28, 1, 3, 1, 1},
                                               {2, 14, 14, 8, 3, 1, 1},
                                               {4, 7, 7, 16, 3, 1, 1}}) {
      const int values = window.items * window.height * window.width * window.channels;
      const int pooled = window.items * (window.height / 2) * (window.width / 2) * window.channels;
      const auto one = [&](const kernels::Launch& launch, double count) {
        measure(launch, elements_work(launch, count));
      };
      one(kernels::patches_gather(window, a(), b()),
          static_cast<double>(window.patches()) * window.patch());
      one(kernels::patches_scatter(window, a(), b()), values);
      one(kernels::max_pool_forward(window.items, window.height, window.width, window.channels, 2,
                                    a(), b(), places_.at()),
          pooled);
      one(kernels::max_pool_backward(pooled, places_.at(), a(), b()), pooled);
    }
  }

  void tokens() {
    for (const auto& [batch, length, width] : {std::tuple{1, 32, 32}, {8, 32, 32}, {4, 64, 64}}) {
      const int rows = batch * length;
      const auto embed = kernels::embedding_forward(rows, width, length, ints(), a(), d(), b());
      measure(embed, elements_work(embed, static_cast<double>(rows) * width));
      const auto positions = kernels::position_backward(batch, length, width, a(), b());
      measure(positions, parts_work(positions, static_cast<double>(length) * width, batch));
    }
    for (const auto& [distinct, width, rows] :
         {std::tuple{8, 32, 64}, {8, 128, 64}, {32, 64, 256}, {16, 64, 1024}, {16, 256, 128}}) {
      std::vector<int> order, of_row, starts;
      for (int row = 0; row < rows; ++row) {
        order.push_back(row);
        of_row.push_back(row * distinct / rows);
        if (row == 0 || of_row.back() != of_row[static_cast<std::size_t>(row) - 1])
          starts.push_back(row);
      }
      starts.push_back(rows);
      upload(starts_, starts);
      upload(order_, order);
      upload(tokens_, of_row);
      const auto launch = kernels::embedding_backward(distinct, width, starts_.at(), order_.at(),
                                                      tokens_.at(), a(), b());
      measure(launch, tokens_work(launch, distinct, rows, width));
    }
  }

  void upload(const DeviceArray<int>& to, const std::vector<int>& values) {
    stream_.upload(to.at(), values.data(), values.size() * sizeof(int));
    stream_.synchronize();
  }

  void norms() {
    for (const int count : {1000, 10000, 100000}) {
      const auto launch = kernels::square_sum(count, a(), b());
      measure(launch, squares_work(launch, count));
    }
    for (const int parts : {1, 64, 256}) {
      const auto launch = kernels::norm_finish(parts, squares_.at(), norm_.at());
      measure(launch, rows_work(launch, 1, parts));
    }
    stream_.zero(found_.at(), 1);
  }

  void copies() {
    for (const std::size_t floats : {std::size_t{1}, std::size_t{1} << 12, kFloats}) {
      const double bytes = static_cast<double>(floats * sizeof(float));
      const auto note = [&](WorkKind kind, double ns) {
        samples_[kind].push_back({copy_work(kind, bytes).amounts, ns});
      };
      note(kUpload,
           time_ns(kUpload, [&] { stream_.upload(c(), host_.data(), floats * sizeof(float)); }));
      note(kZero, time_ns(kZero, [&] { stream_.zero(c(), floats); }));
    }
  }

  const bool software_;
  const int rounds_, launches_;
  Stream stream_;
  PinnedArray<float> host_;
  // Operands, results, and what must stay as it is drawn.
  DeviceArray<float> a_{kFloats}, b_{kFloats}, c_{kFloats}, d_{kFloats}, squares_{kFloats};
  DeviceArray<std::uint16_t> halves_{kFloats};
  DeviceArray<int> ints_{kFloats}, places_{kFloats}, starts_{2048}, order_{2048}, tokens_{2048};
  DeviceArray<float> norm_{1};
  DeviceArray<int> found_{1};
  Event begin_, end_;
  KernelRates rates_;
  std::map<WorkKind, std::vector<RateSample>> samples_;
};

}  // namespace

KernelRates kernels_measure(const Device& device, bool quick) {
  return KernelBench(device, quick).run();
}

}  // namespace sluice::train::planner
