// See rank.h. A step: upload, forward, backward, reduce the buckets, update. All ranks leave the
// loop after the same step, because the wish to stop travels with the gradients.
#include "trainer/train/rank.h"

#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <optional>

#include "trainer/data/dataset.h"
#include "trainer/data/sampler.h"
#include "trainer/job/log.h"
#include "trainer/job/statistics.h"
#include "trainer/job/stop.h"
#include "trainer/model/weights.h"
#include "trainer/train/board.h"
#include "trainer/train/plan.h"

namespace sluice::train {
namespace {

constexpr std::size_t kRecentSteps = 64;  // over which the board's medians go
constexpr std::uint32_t kSyntheticTrain = 4096;
constexpr std::uint32_t kSyntheticTest = 1024;

Dataset dataset_make(const TrainOptions& options) {
  if (options.data == "fashion-mnist")
    return fashion_read(options.data_directory, options.train_samples);
  const std::uint32_t count = options.train_samples ? options.train_samples : kSyntheticTrain;
  return synthetic_draw(options.seed, count, kSyntheticTest);
}

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
        data_(dataset_make(options)),
        sampler_({data_.train.size(), static_cast<std::uint32_t>(place_.rank),
                  static_cast<std::uint32_t>(place_.rank_count),
                  static_cast<std::uint32_t>(options.batch), options.seed}),
        device_(plan_.gpu_of(place_.rank)),
        stream_(device_),
        model_(stream_, plan_.shape, options.batch, true),
        optimizer_(stream_, options.optimizer, plan_.shape.parameter_count()),
        rates_(rate_plan(options, plan_.rank_count, sampler_.steps_per_epoch())),
        inputs_(static_cast<std::size_t>(options.batch) * kImagePixels),
        labels_(static_cast<std::size_t>(options.batch)),
        extras_(kExtraCount),
        losses_(static_cast<std::size_t>(options.batch)),
        comm_(comm_make({place_.rank, place_.rank_count, place_.directory, options.algorithm,
                         options.link, options.timeout_s},
                        options.engine, plan_.own_gpu_each(), device_.is_software())) {}

  void run() {
    model_.parameters_upload(mlp_draw(plan_.shape, options_.seed));
    comm_->broadcast(stream_, model_.parameters(), plan_.shape.parameter_count());
    comm_->barrier(stream_);
    line_.begin_ns = now_ns();
    const std::uint64_t step_max = rates_.steps;
    std::uint64_t step = 0;
    for (bool stop = false; !stop;) {
      stop = train_step(step++);
      stop = stop || (options_.seconds == 0 && step >= step_max);
      const bool due = options_.eval_every != 0 && step % options_.eval_every == 0;
      if (due || stop) evaluate(step);
    }
    if (place_.rank == 0 && !options_.save.empty()) {
      weights_save(options_.save, plan_.shape, model_.parameters_download());
    }
    leave_together();
  }

 private:
  /// Waits on the board until every rank is done with the others. Not a barrier of the
  /// communicator: the first to pass that would close its connections while the others are still in
  /// it. If a rank is lost here, the launcher ends us.
  void leave_together() {
    line_.finished = true;
    for (int rank = 0; rank < place_.rank_count; ++rank) {
      while (!board_.line(rank).finished) sleep_until(now_ns() + kNanosPerMilli);
    }
  }

  void samples_put(const ImageSet& set, std::span<const std::uint32_t> samples) {
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const std::span<const std::uint8_t> image = set.image(samples[i]);
      float* to = inputs_.data() + i * kImagePixels;
      for (std::size_t pixel = 0; pixel < kImagePixels; ++pixel)
        to[pixel] = pixel_value(image[pixel]);
      labels_[i] = set.labels[samples[i]];
    }
    model_.batch_upload(inputs_.data(), labels_.data(), static_cast<int>(samples.size()));
  }

  bool wants_stop() {
    if (stop_.asked()) {
      line_.stopped = true;
      return true;
    }
    return options_.seconds > 0 && now_ns() - line_.begin_ns >= nanos_of_seconds(options_.seconds);
  }

  /// True when the ranks have agreed to stop after this step.
  bool train_step(std::uint64_t step) {
    const Nanos begin = now_ns();
    const Sampler::Batch batch = sampler_.batch_of(step);
    const int count = static_cast<int>(batch.samples.size());
    compute_begin_.record(stream_);
    samples_put(data_.train, batch.samples);
    if (count > 0) model_.forward(count);
    model_.backward(count, static_cast<int>(batch.global_count));
    extras_[kExtraStop] = wants_stop() ? 1.0f : 0.0f;
    stream_.upload(model_.extra(kExtraStop), &extras_[kExtraStop], sizeof(float));
    compute_end_.record(stream_);
    stream_.synchronize();

    const Nanos communication_begin = now_ns();
    for (const Bucket& bucket : plan_.buckets) {
      comm_->allreduce_sum(stream_, model_.gradients() + bucket.begin * sizeof(float),
                           bucket.count);
    }
    stream_.synchronize();
    const Nanos communication_ns = now_ns() - communication_begin;

    update_begin_.record(stream_);
    const double rate = rate_at(rates_, step);
    optimizer_.step(rate, model_.gradients(), model_.parameters());
    update_end_.record(stream_);
    stream_.download(extras_.data(), model_.extra(0), kExtraCount * sizeof(float));
    stream_.synchronize();
    const double loss = extras_[kExtraLoss] / static_cast<double>(batch.global_count);
    step_note(step, begin, communication_ns, count, loss, rate);
    if (!std::isfinite(loss)) {
      throw Failure(text_format(
          "the loss is not finite after step %llu: training diverged; lower "
          "--lr (%g) or --momentum (%g), or give --lr-warmup or --clip",
          static_cast<unsigned long long>(step), options_.rate, options_.optimizer.momentum));
    }
    return extras_[kExtraStop] > 0;
  }

  void step_note(std::uint64_t step, Nanos begin, Nanos communication_ns, int count, double loss,
                 double rate) {
    const Nanos end = now_ns();
    const Nanos device_ns = compute_end_.since(compute_begin_) + update_end_.since(update_begin_);
    log_.write(JsonLine("step", end)
                   .add("rank", place_.rank)
                   .add("step", step)
                   .add("duration_ns", end - begin)
                   .add("loss", loss)
                   .add("rate", rate)
                   .add("communication_ns", communication_ns)
                   .add("device_ns", device_ns));
    compute_recent_.put(end - begin - communication_ns);
    device_recent_.put(device_ns);
    line_.communication_ns += communication_ns;
    line_.compute_median_ns = compute_recent_.median();
    line_.device_median_ns = device_recent_.median();
    line_.loss = loss;
    line_.samples += static_cast<std::uint64_t>(count);
    line_.end_ns = end;
    line_.steps = step + 1;
  }

  /// Every rank takes its part of the first eval_samples test images; the counts are added up by an
  /// all-reduce (exact in fp32 below 2^24 samples).
  void evaluate(std::uint64_t step) {
    const std::uint64_t total = std::min<std::uint64_t>(options_.eval_samples, data_.test.size());
    if (total == 0) return;
    const auto rank = static_cast<std::uint64_t>(place_.rank);
    const auto ranks = static_cast<std::uint64_t>(place_.rank_count);
    const std::uint64_t last = total * (rank + 1) / ranks;
    double loss_sum = 0;
    stream_.zero(model_.correct(), 1);
    std::vector<std::uint32_t> samples;
    for (std::uint64_t at = total * rank / ranks; at < last; at += samples.size()) {
      samples.clear();
      for (std::uint64_t i = at; i < last && samples.size() < inputs_.size() / kImagePixels; ++i) {
        samples.push_back(static_cast<std::uint32_t>(i));
      }
      loss_sum += batch_loss(samples);
    }
    int correct = 0;
    stream_.download(&correct, model_.correct(), sizeof correct);
    stream_.synchronize();
    const float mine[2] = {static_cast<float>(loss_sum), static_cast<float>(correct)};
    float all[2];
    stream_.upload(eval_.at(), mine, sizeof mine);
    comm_->allreduce_sum(stream_, eval_.at(), 2);
    stream_.download(all, eval_.at(), sizeof all);
    stream_.synchronize();
    const double accuracy = all[1] / static_cast<double>(total);
    line_.accuracy = accuracy;
    if (place_.rank != 0) return;
    log_.write(JsonLine("eval")
                   .add("step", step)
                   .add("accuracy", accuracy)
                   .add("loss", all[0] / static_cast<double>(total))
                   .add("samples", total));
  }

  /// Sum of the losses of these test samples; their right answers are added on the device.
  double batch_loss(std::span<const std::uint32_t> samples) {
    const int count = static_cast<int>(samples.size());
    samples_put(data_.test, samples);
    model_.forward(count);
    model_.loss(count);
    model_.correct_add(count);
    stream_.download(losses_.data(), model_.losses(), samples.size() * sizeof(float));
    stream_.synchronize();
    double sum = 0;
    for (std::size_t i = 0; i < samples.size(); ++i) sum += losses_[i];
    return sum;
  }

  StopSignal stop_;
  const TrainOptions& options_;
  const RankPlace& place_;
  TrainPlan plan_;
  BoardMap board_;
  RankLine& line_;
  JobLog log_;
  Dataset data_;
  Sampler sampler_;
  Device device_;
  Stream stream_;
  Mlp model_;
  Optimizer optimizer_;
  const RatePlan rates_;
  DeviceArray<float> eval_{2};
  PinnedArray<float> inputs_;
  PinnedArray<int> labels_;
  PinnedArray<float> extras_;
  PinnedArray<float> losses_;
  Event compute_begin_, compute_end_, update_begin_, update_end_;
  Recent compute_recent_, device_recent_;
  std::unique_ptr<Communicator> comm_;
};

}  // namespace

void rank_run(const TrainOptions& options) {
  // Gloo writes to connections whose peer may be gone; that must be an error of the write, not the
  // end of this process.
  signal(SIGPIPE, SIG_IGN);
  Rank(options).run();
}

}  // namespace sluice::train
