// See rank.h. A step: upload, forward, backward, reduce the buckets, update. All ranks leave the
// loop after the same step, because the wish to stop travels with the gradients.
#include "trainer/train/rank.h"

#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <optional>

#include "trainer/job/log.h"
#include "trainer/job/statistics.h"
#include "trainer/job/stop.h"
#include "trainer/model/weights.h"
#include "trainer/train/board.h"
#include "trainer/train/compression.h"
#include "trainer/train/evaluation.h"
#include "trainer/train/feed.h"
#include "trainer/train/grid_plan.h"
#include "trainer/train/pipeline.h"
#include "trainer/train/plan.h"
#include "trainer/train/reduction.h"
#include "trainer/train/replica.h"
#include "trainer/train/scatter.h"
#include "trainer/train/update.h"

namespace sluice::train {
namespace {

// Times any loss scale beyond fp16, and not beyond fp32: what a planted overflow multiplies with.
constexpr float kOverflowFactor = 0x1p60f;
constexpr std::size_t kRecentSteps = 64;  // over which the board's medians go

/// The last kRecentSteps values.
class Recent {
 public:
  void put(Nanos value) {
    if (values_.size() < kRecentSteps) {
      values_.push_back(value);
    } else {
      values_[next_] = value;
    }
    next_ = (next_ + 1) % kRecentSteps;
  }
  Nanos median() const { return percentile(values_, 50); }

 private:
  std::vector<Nanos> values_;
  std::size_t next_ = 0;
};

class Rank {
 public:
  explicit Rank(const TrainOptions& options)
      : options_(options),
        place_(options.place),
        plan_(train_plan(options, place_.rank_count, place_.gpu_count)),
        grid_(plan_.grid),
        part_(plan_.part.place()),
        board_(place_.board_fd),
        line_(board_.line(place_.rank)),
        log_(options.log, JobLog::Open::kAppend),
        device_(plan_.gpu_of(place_.rank)),
        stream_(device_),
        feed_(options, grid_.data_of(place_.rank), grid_.data, board_),
        network_(plan_.part.make(stream_, network_settings(options, part_),
                                 [this](CUdeviceptr data, std::size_t count) {
                                   groups_.tensor->all_reduce(stream_, data, count);
                                 })),
        model_(*network_),
        rates_(rate_plan(options, grid_.data, feed_.steps_per_epoch())),
        evaluation_(options, stream_, model_, feed_, evaluation_place()),
        extras_(kExtraCount),
        groups_(groups_make(grid_,
                            {place_.rank, place_.rank_count, place_.directory, options.algorithm,
                             options.link, options.timeout_s, options.throttle},
                            options.engine, plan_.own_gpu_each(), device_.is_software())),
        replica_(*groups_.replica, stream_),
        reduction_(reduction_make()),
        update_(update_make()) {
    if (options.precision == Precision::kFp16) {
      scaler_.emplace(stream_, options.loss_scale, model_.parameter_count(),
                      [this](bool found) { return replica_.any_of(found); });
    }
    if (grid_.data > 1)
      reducer_.emplace(*groups_.data, *reduction_, stream_, plan_.buckets, overlaps());
    if (grid_.pipeline > 1)
      pipeline_.emplace(*groups_.pipeline, stream_, model_, part_.stage, part_.stage_count);
    if (feed_.is_scattered())
      scatter_.emplace(*groups_.data, stream_, place_, options.rank_batch(), model_.sample());
    for (const Bucket& bucket : plan_.buckets) bus_bytes_ += reduction_->bus_bytes(bucket);
    bus_bytes_ += update_->bus_bytes();
    model_.on_gradient_ready([this](const ParameterRange& range) { gradients_final(range); });
    line_.state_bytes = update_->state_bytes();
  }

  void run() {
    feed_.start(options_.seconds > 0 ? UINT64_MAX : rates_.steps, model_.sample());
    model_.parameters_upload(plan_.part.cut(plan_.shape.draw(options_.seed)));
    groups_.data->broadcast(stream_, model_.parameters(), model_.parameter_count());
    groups_.barrier(stream_);
    line_.begin_ns = now_ns();
    const std::uint64_t step_max = rates_.steps;
    std::uint64_t step = 0;
    for (bool stop = false; !stop;) {
      stop = train_step(step++);
      stop = stop || (options_.seconds == 0 && step >= step_max);
      const bool due = options_.eval_every != 0 && step % options_.eval_every == 0;
      if (due || stop) evaluation_.run(*groups_.data, *groups_.replica, step, stop, line_, log_);
    }
    if (grid_.data_of(place_.rank) == 0 && !options_.save.empty()) {
      const auto weights = replica_.weights_gather(plan_.part, model_.parameters_download());
      if (place_.rank == 0) weights_save(options_.save, plan_.shape, weights);
    }
    leave_together();
  }

 private:
  bool is_sharded() const {
    return options_.strategy == Strategy::kSharded && place_.rank_count > 1;
  }

  /// Ranks that have the same logits all know the loss; one says it.
  bool speaks() const { return part_.tensor == 0 && part_.is_last(); }

  /// NCCL's groups must not have collectives under way at once, in an order that is not everyone's.
  bool overlaps() const { return options_.overlap && (!grid_.is_split() || device_.is_software()); }

  EvaluationPlace evaluation_place() {
    return {grid_.data_of(place_.rank), grid_.data, part_.is_last(), speaks(), [this](int count) {
              if (!pipeline_) return model_.forward(count);
              pipeline_->forward(count, [&] { model_.forward(count); });
            }};
  }

  std::unique_ptr<BucketReduction> reduction_make() {
    if (is_sharded()) {
      return std::make_unique<ShardedReduction>(*groups_.data, place_.rank, place_.rank_count,
                                                model_.gradients(), plan_.shards);
    }
    std::size_t largest = 0;
    for (const Bucket& bucket : plan_.buckets) largest = std::max(largest, bucket.count);
    return compressed_reduction(options_.compression, *groups_.data, grid_.data, stream_,
                                model_.gradients(), model_.parameter_count(), largest);
  }

  std::unique_ptr<WeightUpdate> update_make() {
    if (grid_.is_split()) {
      return replica_update(*groups_.replica, stream_, options_.optimizer, model_.gradients(),
                            model_.parameters(), plan_.part);
    }
    if (!is_sharded()) {
      return plain_update(stream_, options_.optimizer, model_.gradients(), model_.parameters(),
                          model_.parameter_count());
    }
    return sharded_update(
        *groups_.data, stream_, options_.optimizer, model_.gradients(), model_.parameters(),
        {place_.rank, place_.rank_count, model_.parameter_count(), plan_.buckets, plan_.shards});
  }

  /// Waits on the board until every rank is done with the others. Not a barrier of the
  /// communicator: the first to pass that would close its connections while the others are still in
  /// it. If a rank is lost here, the launcher ends us.
  void leave_together() {
    line_.finished = true;
    for (int rank = 0; rank < place_.rank_count; ++rank) {
      while (!board_.line(rank).finished) sleep_until(now_ns() + kNanosPerMilli);
    }
  }

  bool wants_stop() {
    if (stop_.asked()) {
      line_.stopped = true;
      return true;
    }
    return options_.seconds > 0 && now_ns() - line_.begin_ns >= nanos_of_seconds(options_.seconds);
  }

  /// The wish to stop is the very last of what travels, and ready with the last range.
  void gradients_final(const ParameterRange& range) {
    if (range.end() == model_.parameter_count()) {
      if (!speaks()) stream_.zero(model_.extra(kExtraLoss), 1);
      stream_.upload(model_.extra(kExtraStop), &extras_[kExtraStop], sizeof(float));
    }
    if (reducer_) reducer_->ready(range.begin);
  }

  LoadedBatch batch_next(std::uint64_t step) {
    if (!scatter_) return feed_.next();
    return place_.rank == 0 ? scatter_->send(feed_.next())
                            : scatter_->receive(feed_.global_count(step));
  }
  Nanos stall_ns() const { return feed_.stall_ns() + (scatter_ ? scatter_->taken_ns() : 0); }

  /// By as many micro-batches as this rank's samples need; the last one lets the reduction go.
  void gradients_make(const LoadedBatch& batch, std::uint64_t step) {
    const SampleShape& sample = model_.sample();
    const int all = static_cast<int>(batch.count);
    float scale = scaler_ ? scaler_->value() : 1.0f;
    // Of all parts of the first copy: what overflows in the last stage alone need not in others.
    if (step + 1 == options_.overflow_step && grid_.data_of(place_.rank) == 0)
      scale *= kOverflowFactor;
    const int micros = std::max(1, (all + options_.batch - 1) / options_.batch);
    const auto count_of = [&](int micro) {
      return std::min(options_.batch, all - micro * options_.batch);
    };
    const auto forward = [&](int micro) {
      const auto from = static_cast<std::size_t>(micro * options_.batch);
      model_.batch_upload(static_cast<const std::uint32_t*>(batch.inputs) + from * sample.inputs,
                          batch.targets + from * sample.targets, count_of(micro));
      if (count_of(micro) > 0) model_.forward(count_of(micro));
    };
    const auto backward = [&](int micro) {
      model_.backward(count_of(micro), static_cast<int>(batch.global_count),
                      {.first = micro == 0, .last = micro == micros - 1}, scale);
    };
    if (pipeline_) pipeline_->step({all > 0 ? micros : 0, count_of, forward, backward});
    if (pipeline_ && all > 0) return;
    for (int micro = 0; micro < micros; ++micro) {
      forward(micro);
      backward(micro);
    }
  }

  /// Of a step through the pipeline: how long this stage computed, and how long all took.
  void pipeline_note(JsonLine& json) {
    const PipelineTimes times = pipeline_->times();
    const auto span = static_cast<Nanos>(replica_.max_of(static_cast<float>(times.end_ns)));
    json.add("busy_ns", times.busy_ns).add("pipeline_ns", span);
    line_.pipeline_busy_ns += times.busy_ns;
    line_.pipeline_span_ns += span;
  }

  /// True when the ranks have agreed to stop after this step.
  bool train_step(std::uint64_t step) {
    const Nanos begin = now_ns();
    const LoadedBatch batch = batch_next(step);
    const std::uint64_t sent_before = groups_.sent_bytes();
    const int count = static_cast<int>(batch.count);
    compute_begin_.record(stream_);
    extras_[kExtraStop] = wants_stop() ? 1.0f : 0.0f;
    gradients_make(batch, step);
    compute_end_.record(stream_);
    ReductionTimes reduced = reducer_ ? reducer_->finish() : ReductionTimes();
    reduced += replica_.reduce(groups_.ends.get(), plan_.part, model_);

    update_begin_.record(stream_);
    const double rate = rate_at(rates_, step);
    const bool usable = !scaler_ || scaler_->unscale(model_.gradients());
    if (usable) update_->step(rate);
    update_end_.record(stream_);
    reduced += update_->gather();
    stream_.download(extras_.data(), model_.extra(0), kExtraCount * sizeof(float));
    stream_.synchronize();
    const double loss =
        extras_[kExtraLoss] / static_cast<double>(batch.global_count * model_.sample().targets);
    line_.sent_bytes += groups_.sent_bytes() - sent_before;
    step_note(step, begin, reduced, count, loss, rate);
    if (!std::isfinite(loss)) {
      throw Failure(text_format(
          "the loss is not finite after step %llu: training diverged; lower "
          "--lr (%g) or --momentum (%g), or give --lr-warmup or --clip",
          static_cast<unsigned long long>(step), options_.rate, options_.optimizer.momentum));
    }
    return extras_[kExtraStop] > 0;
  }

  void step_note(std::uint64_t step, Nanos begin, const ReductionTimes& reduced, int count,
                 double loss, double rate) {
    const Nanos end = now_ns();
    const Nanos device_ns = compute_end_.since(compute_begin_) + update_end_.since(update_begin_);
    JsonLine json("step", end);
    json.add("rank", place_.rank)
        .add("step", step)
        .add("duration_ns", end - begin)
        .add("loss", loss)
        .add("rate", rate)
        .add("communication_ns", reduced.wall_ns)
        .add("collective_ns", reduced.collective_ns)
        .add("exposed_ns", reduced.exposed_ns)
        .add("device_ns", device_ns)
        .add("stall_ns", stall_ns());
    if (pipeline_) pipeline_note(json);
    if (scaler_) json.add("loss_scale", scaler_->value()).add("skipped", scaler_->skipped());
    log_.write(json);
    if (scaler_) line_.skipped = scaler_->skipped();
    compute_recent_.put(end - begin - reduced.wall_ns);
    device_recent_.put(device_ns);
    line_.communication_ns += reduced.wall_ns;
    line_.collective_ns += reduced.collective_ns;
    line_.exposed_ns += reduced.exposed_ns;
    line_.bus_bytes = line_.bus_bytes + bus_bytes_;
    line_.stall_ns += stall_ns();
    line_.compute_median_ns = compute_recent_.median();
    line_.device_median_ns = device_recent_.median();
    line_.loss = loss;
    if (speaks()) line_.samples += static_cast<std::uint64_t>(count);
    line_.end_ns = end;
    line_.steps = step + 1;
  }

  StopSignal stop_;
  const TrainOptions& options_;
  const RankPlace& place_;
  TrainPlan plan_;
  const Grid& grid_;
  const PartPlace& part_;
  BoardMap board_;
  RankLine& line_;
  JobLog log_;
  Device device_;
  Stream stream_;
  Feed feed_;
  const std::unique_ptr<Network> network_;
  Network& model_;
  std::optional<LossScaler> scaler_;  // with fp16
  const RatePlan rates_;
  Evaluation evaluation_;
  PinnedArray<float> extras_;
  Event compute_begin_, compute_end_, update_begin_, update_end_;
  Recent compute_recent_, device_recent_;
  Groups groups_;
  Replica replica_;
  const std::unique_ptr<BucketReduction> reduction_;
  const std::unique_ptr<WeightUpdate> update_;
  double bus_bytes_ = 0;  // of a step
  std::optional<GradientReducer> reducer_;
  std::optional<Pipeline> pipeline_;
  std::optional<Scatter> scatter_;
};

}  // namespace

void rank_run(const TrainOptions& options) {
  // Gloo writes to connections whose peer may be gone; that must be an error of the write, not the
  // end of this process.
  signal(SIGPIPE, SIG_IGN);
  try {
    Rank(options).run();
  } catch (const DriverFailure& failure) {
    if (failure.code != CUDA_ERROR_OUT_OF_MEMORY) throw;
    throw Failure(memory_text(options));
  }
}

}  // namespace sluice::train
