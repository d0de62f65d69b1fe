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
#include "trainer/train/plan.h"
#include "trainer/train/reduction.h"
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
        board_(place_.board_fd),
        line_(board_.line(place_.rank)),
        log_(options.log, JobLog::Open::kAppend),
        device_(plan_.gpu_of(place_.rank)),
        stream_(device_),
        feed_(options, place_.rank_count, board_),
        network_(plan_.shape.make(stream_, {.batch_max = options.batch,
                                            .accumulates = options.accumulate > 1,
                                            .precision = options.precision})),
        model_(*network_),
        rates_(rate_plan(options, plan_.rank_count, feed_.steps_per_epoch())),
        evaluation_(options, stream_, model_, feed_),
        extras_(kExtraCount),
        comm_(comm_make({place_.rank, place_.rank_count, place_.directory, options.algorithm,
                         options.link, options.timeout_s, options.throttle},
                        options.engine, plan_.own_gpu_each(), device_.is_software())),
        reduction_(reduction_make()),
        update_(update_make()) {
    if (options.precision == Precision::kFp16) {
      scaler_.emplace(stream_, options.loss_scale, plan_.shape.parameter_count());
    }
    if (place_.rank_count > 1)
      reducer_.emplace(*comm_, *reduction_, stream_, plan_.buckets, options.overlap);
    if (feed_.is_scattered())
      scatter_.emplace(*comm_, stream_, place_, options.rank_batch(), model_.sample());
    for (const Bucket& bucket : plan_.buckets) bus_bytes_ += reduction_->bus_bytes(bucket);
    bus_bytes_ += update_->bus_bytes();
    model_.on_gradient_ready([this](const ParameterRange& range) { gradients_final(range); });
    line_.state_bytes = update_->state_bytes();
  }

  void run() {
    feed_.start(options_.seconds > 0 ? UINT64_MAX : rates_.steps, model_.sample());
    model_.parameters_upload(plan_.shape.draw(options_.seed));
    comm_->broadcast(stream_, model_.parameters(), plan_.shape.parameter_count());
    comm_->barrier(stream_);
    line_.begin_ns = now_ns();
    const std::uint64_t step_max = rates_.steps;
    std::uint64_t step = 0;
    for (bool stop = false; !stop;) {
      stop = train_step(step++);
      stop = stop || (options_.seconds == 0 && step >= step_max);
      const bool due = options_.eval_every != 0 && step % options_.eval_every == 0;
      if (due || stop) evaluation_.run(*comm_, step, stop, line_, log_);
    }
    if (place_.rank == 0 && !options_.save.empty()) {
      weights_save(options_.save, plan_.shape, model_.parameters_download());
    }
    leave_together();
  }

 private:
  bool is_sharded() const {
    return options_.strategy == Strategy::kSharded && place_.rank_count > 1;
  }

  std::unique_ptr<BucketReduction> reduction_make() {
    if (is_sharded()) {
      return std::make_unique<ShardedReduction>(*comm_, place_.rank, place_.rank_count,
                                                model_.gradients(), plan_.shards);
    }
    std::size_t largest = 0;
    for (const Bucket& bucket : plan_.buckets) largest = std::max(largest, bucket.count);
    return compressed_reduction(options_.compression, *comm_, place_.rank_count, stream_,
                                model_.gradients(), model_.parameter_count(), largest);
  }

  std::unique_ptr<WeightUpdate> update_make() {
    if (!is_sharded()) {
      return plain_update(stream_, options_.optimizer, model_.gradients(), model_.parameters(),
                          model_.parameter_count());
    }
    return sharded_update(
        *comm_, stream_, options_.optimizer, model_.gradients(), model_.parameters(),
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

  std::uint64_t sent_bytes() const {
    const auto traffic = comm_->traffic();
    return traffic ? traffic->total().bytes : 0;
  }

  /// The wish to stop is the very last of what travels, and ready with the last range.
  void gradients_final(const ParameterRange& range) {
    if (range.end() == model_.parameter_count()) {
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
    if (step + 1 == options_.overflow_step && place_.rank == 0) scale *= kOverflowFactor;
    for (int begin = 0; begin == 0 || begin < all; begin += options_.batch) {
      const int count = std::min(options_.batch, all - begin);
      const auto from = static_cast<std::size_t>(begin);
      model_.batch_upload(static_cast<const std::uint32_t*>(batch.inputs) + from * sample.inputs,
                          batch.targets + from * sample.targets, count);
      if (count > 0) model_.forward(count);
      model_.backward(count, static_cast<int>(batch.global_count),
                      {.first = begin == 0, .last = begin + count == all}, scale);
    }
  }

  /// True when the ranks have agreed to stop after this step.
  bool train_step(std::uint64_t step) {
    const Nanos begin = now_ns();
    const LoadedBatch batch = batch_next(step);
    const std::uint64_t sent_before = sent_bytes();
    const int count = static_cast<int>(batch.count);
    compute_begin_.record(stream_);
    extras_[kExtraStop] = wants_stop() ? 1.0f : 0.0f;
    gradients_make(batch, step);
    compute_end_.record(stream_);
    ReductionTimes reduced = reducer_ ? reducer_->finish() : ReductionTimes();

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
    line_.sent_bytes += sent_bytes() - sent_before;
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
    line_.samples += static_cast<std::uint64_t>(count);
    line_.end_ns = end;
    line_.steps = step + 1;
  }

  StopSignal stop_;
  const TrainOptions& options_;
  const RankPlace& place_;
  TrainPlan plan_;
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
  std::unique_ptr<Communicator> comm_;
  const std::unique_ptr<BucketReduction> reduction_;
  const std::unique_ptr<WeightUpdate> update_;
  double bus_bytes_ = 0;  // of a step
  std::optional<GradientReducer> reducer_;
  std::optional<Scatter> scatter_;
};

}  // namespace

void rank_run(const TrainOptions& options) {
  // Gloo writes to connections whose peer may be gone; that must be an error of the write, not the
  // end of this process.
  signal(SIGPIPE, SIG_IGN);
  Rank(options).run();
}

}  // namespace sluice::train
