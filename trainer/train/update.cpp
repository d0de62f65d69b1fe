// See update.h.
#include "trainer/train/update.h"

#include <cassert>

#include "kernels/optimizers.h"

namespace sluice::train {
namespace {

CUdeviceptr float_at(CUdeviceptr array, std::size_t index) { return array + index * sizeof(float); }

class PlainUpdate final : public WeightUpdate {
 public:
  PlainUpdate(Stream& stream, const OptimizerSettings& settings, CUdeviceptr gradients,
              CUdeviceptr parameters, std::size_t parameter_count)
      : stream_(stream),
        gradients_(gradients),
        parameters_(parameters),
        parameter_count_(parameter_count),
        method_(settings.method),
        optimizer_(stream, settings, parameter_count) {}
  void step(double rate) override { optimizer_.step(rate, gradients_, parameters_); }
  std::size_t state_bytes() const override { return optimizer_.state_bytes(); }

  OptimizerState state_take() override {
    return optimizer_take(stream_, optimizer_, method_, parameter_count_);
  }
  void state_put(const OptimizerState& state) override {
    optimizer_put(stream_, optimizer_, state);
  }

 private:
  Stream& stream_;
  const CUdeviceptr gradients_, parameters_;
  const std::size_t parameter_count_;
  const Method method_;
  Optimizer optimizer_;
};

class ShardedUpdate final : public WeightUpdate {
 public:
  ShardedUpdate(Communicator& comm, Stream& stream, const OptimizerSettings& settings,
                CUdeviceptr gradients, CUdeviceptr parameters, const ShardedUpdateOptions& o)
      : comm_(comm),
        stream_(stream),
        clip_(settings.clip),
        gradients_(gradients),
        parameters_(parameters),
        parameter_count_(o.parameter_count),
        state_count_(state_count(settings.method)),
        rank_count_(o.rank_count) {
    for (const Bucket& bucket : o.buckets) {
      if (o.plan.is_shared(bucket)) continue;
      buckets_.push_back(bucket);
      parts_.push_back(ShardPlan::part(bucket, o.rank, o.rank_count));
    }
    const Bucket rest{o.plan.shared_begin, o.parameter_count - o.plan.shared_begin};
    rest_ = rest.count > 0;
    if (rest_) parts_.push_back(rest);
    OptimizerSettings each = settings;
    each.clip = 0;  // the norm is that of all parts
    for (const Bucket& part : parts_)
      optimizers_.push_back(std::make_unique<Optimizer>(stream, each, part.count));
    if (clip_ > 0) partials_make();
  }

  void step(double rate) override {
    if (clip_ > 0) clip();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      optimizers_[i]->step(rate, float_at(gradients_, parts_[i].begin),
                           float_at(parameters_, parts_[i].begin));
    }
  }

  ReductionTimes gather() override {
    stream_.synchronize();
    const Nanos begin = now_ns();
    gather_begin_.record(stream_);
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      comm_.all_gather(stream_, float_at(parameters_, parts_[i].begin),
                       float_at(parameters_, buckets_[i].begin), parts_[i].count);
    }
    gather_end_.record(stream_);
    stream_.synchronize();
    ReductionTimes times;
    times.wall_ns = now_ns() - begin;
    times.collective_ns = times.exposed_ns = gather_ns();
    return times;
  }

  std::size_t state_bytes() const override {
    std::size_t sum = 0;
    for (const auto& one : optimizers_) sum += one->state_bytes();
    return sum;
  }

  double bus_bytes() const override {
    double sum = 0;
    for (const Bucket& bucket : buckets_)
      sum += static_cast<double>(bucket.count * sizeof(float)) * (rank_count_ - 1) / rank_count_;
    return sum;
  }

  /// Through the array of gradients, which has room for all parts.
  OptimizerState state_take() override {
    OptimizerState state{optimizers_.front()->steps(), {}};
    for (std::size_t which = 0; which < state_count_; ++which) {
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        stream_.copy(float_at(gradients_, parts_[i].begin), optimizers_[i]->state(which),
                     parts_[i].count * sizeof(float));
      }
      for (std::size_t i = 0; i < buckets_.size(); ++i) {
        comm_.all_gather(stream_, float_at(gradients_, parts_[i].begin),
                         float_at(gradients_, buckets_[i].begin), parts_[i].count);
      }
      auto& array = state.arrays.emplace_back(parameter_count_);
      stream_.download(array.data(), gradients_, array.size() * sizeof(float));
      stream_.synchronize();
    }
    return state;
  }
  void state_put(const OptimizerState& state) override {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      optimizers_[i]->steps_set(state.steps);
      for (std::size_t which = 0; which < state_count_; ++which) {
        stream_.upload(optimizers_[i]->state(which), &state.arrays[which][parts_[i].begin],
                       parts_[i].count * sizeof(float));
      }
    }
    stream_.synchronize();
  }

 private:
  Nanos gather_ns() const {
    if (!stream_.device().is_software()) return gather_end_.since(gather_begin_);
    Nanos sum = 0;  // without this host's part
    for (const Bucket& bucket : buckets_)
      sum += comm_.link_ns(Operation::kAllGather, bucket.count * sizeof(float));
    return sum;
  }

  static std::size_t square_parts(const Bucket& part) {
    return static_cast<std::size_t>(kernels::square_sum_parts(static_cast<int>(part.count)));
  }

  /// Of every rank's own parts, in the order of ranks, then of what all have.
  void partials_make() {
    for (std::size_t i = 0; i < buckets_.size(); ++i) own_ += square_parts(parts_[i]);
    const std::size_t all = own_ * static_cast<std::size_t>(rank_count_);
    partials_mine_ = std::make_unique<DeviceArray<float>>(std::max<std::size_t>(own_, 1));
    partials_ =
        std::make_unique<DeviceArray<float>>(all + (rest_ ? square_parts(parts_.back()) : 0) + 1);
    stream_.zero(partials_->at(), partials_->size());
  }

  /// The gradient's norm is over all ranks' parts, and the same bits everywhere.
  void clip() {
    std::size_t at = 0;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      stream_.launch(kernels::square_sum(static_cast<int>(parts_[i].count),
                                         float_at(gradients_, parts_[i].begin),
                                         partials_mine_->at(at)));
      at += square_parts(parts_[i]);
    }
    comm_.all_gather(stream_, partials_mine_->at(), partials_->at(), own_);
    if (rest_) {
      const Bucket& rest = parts_.back();
      stream_.launch(
          kernels::square_sum(static_cast<int>(rest.count), float_at(gradients_, rest.begin),
                              partials_->at(own_ * static_cast<std::size_t>(rank_count_))));
    }
    stream_.launch(
        kernels::norm_finish(static_cast<int>(partials_->size()), partials_->at(), norm_.at()));
    for (const Bucket& part : parts_) {
      stream_.launch(kernels::norm_clip(static_cast<int>(part.count), static_cast<float>(clip_),
                                        norm_.at(), float_at(gradients_, part.begin)));
    }
  }

  Communicator& comm_;
  Stream& stream_;
  const double clip_;
  const CUdeviceptr gradients_, parameters_;
  const std::size_t parameter_count_, state_count_;
  const int rank_count_;
  std::vector<Bucket> buckets_;  // that have parts
  std::vector<Bucket> parts_;    // this rank's of those, then what all ranks have
  bool rest_ = false;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;  // of parts_
  std::size_t own_ = 0;                                 // partial sums of this rank's parts
  std::unique_ptr<DeviceArray<float>> partials_mine_, partials_;
  DeviceArray<float> norm_{1};
  Event gather_begin_, gather_end_;
};

}  // namespace

OptimizerState optimizer_take(Stream& stream, const Optimizer& optimizer, Method method,
                              std::size_t count) {
  OptimizerState state{optimizer.steps(), {}};
  for (std::size_t which = 0; which < state_count(method); ++which) {
    auto& array = state.arrays.emplace_back(count);
    stream.download(array.data(), optimizer.state(which), array.size() * sizeof(float));
  }
  stream.synchronize();
  return state;
}

void optimizer_put(Stream& stream, Optimizer& optimizer, const OptimizerState& state) {
  optimizer.steps_set(state.steps);
  for (std::size_t which = 0; which < state.arrays.size(); ++which) {
    stream.upload(optimizer.state(which), state.arrays[which].data(),
                  state.arrays[which].size() * sizeof(float));
  }
  stream.synchronize();
}

ShardedReduction::ShardedReduction(Communicator& comm, int rank, int rank_count,
                                   CUdeviceptr gradients, const ShardPlan& plan)
    : comm_(comm),
      rank_(rank),
      rank_count_(rank_count),
      gradients_(gradients),
      plan_(plan),
      whole_(comm, rank_count, gradients) {}

void ShardedReduction::reduce(Stream& stream, const Bucket& bucket) {
  if (plan_.is_shared(bucket)) return whole_.reduce(stream, bucket);
  const Bucket part = ShardPlan::part(bucket, rank_, rank_count_);
  assert(part.count * static_cast<std::size_t>(rank_count_) == bucket.count);
  comm_.reduce_scatter(stream, float_at(gradients_, bucket.begin), float_at(gradients_, part.begin),
                       part.count);
}

Nanos ShardedReduction::link_ns(const Bucket& bucket) const {
  if (plan_.is_shared(bucket)) return whole_.link_ns(bucket);
  return comm_.link_ns(Operation::kReduceScatter, bucket.count * sizeof(float));
}

double ShardedReduction::bus_bytes(const Bucket& bucket) const {
  return whole_.bus_bytes(bucket) / (plan_.is_shared(bucket) ? 1 : 2);
}

std::unique_ptr<WeightUpdate> plain_update(Stream& stream, const OptimizerSettings& settings,
                                           CUdeviceptr gradients, CUdeviceptr parameters,
                                           std::size_t parameter_count) {
  return std::make_unique<PlainUpdate>(stream, settings, gradients, parameters, parameter_count);
}

std::unique_ptr<WeightUpdate> sharded_update(Communicator& comm, Stream& stream,
                                             const OptimizerSettings& settings,
                                             CUdeviceptr gradients, CUdeviceptr parameters,
                                             const ShardedUpdateOptions& options) {
  return std::make_unique<ShardedUpdate>(comm, stream, settings, gradients, parameters, options);
}

}  // namespace sluice::train
