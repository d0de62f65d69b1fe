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
#include "trainer/model/scores.h"
#include "trainer/model/weights.h"
#include "trainer/train/board.h"
#include "trainer/train/feed.h"
#include "trainer/train/plan.h"

namespace sluice::train {
namespace {

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
        feed_(options, place_.rank_count),
        model_(stream_, plan_.shape, options.batch, true),
        optimizer_(stream_, options.optimizer, plan_.shape.parameter_count()),
        rates_(rate_plan(options, plan_.rank_count, feed_.steps_per_epoch())),
        eval_batch_(static_cast<std::size_t>(options.batch)),
        extras_(kExtraCount),
        losses_(static_cast<std::size_t>(options.batch)),
        comm_(comm_make({place_.rank, place_.rank_count, place_.directory, options.algorithm,
                         options.link, options.timeout_s},
                        options.engine, plan_.own_gpu_each(), device_.is_software())) {}

  void run() {
    feed_.start(options_.seconds > 0 ? UINT64_MAX : rates_.steps);
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
      if (due || stop) evaluate(step, stop);
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
    const LoadedBatch& batch = feed_.next();
    const int count = static_cast<int>(batch.count);
    compute_begin_.record(stream_);
    model_.batch_upload(batch.inputs, batch.labels, count);
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
                   .add("device_ns", device_ns)
                   .add("stall_ns", feed_.stall_ns()));
    compute_recent_.put(end - begin - communication_ns);
    device_recent_.put(device_ns);
    line_.communication_ns += communication_ns;
    line_.stall_ns += feed_.stall_ns();
    line_.compute_median_ns = compute_recent_.median();
    line_.device_median_ns = device_recent_.median();
    line_.loss = loss;
    line_.samples += static_cast<std::uint64_t>(count);
    line_.end_ns = end;
    line_.steps = step + 1;
  }

  /// Every rank takes its part of the first eval_samples test images; the counts are added up by an
  /// all-reduce (exact in fp32 below 2^24 samples). The last evaluation also gathers what the model
  /// says of every sample, for the scores that are no sums over samples.
  void evaluate(std::uint64_t step, bool is_last) {
    const std::uint64_t total = std::min<std::uint64_t>(options_.eval_samples, feed_.test().size());
    if (total == 0) return;
    const auto rank = static_cast<std::uint64_t>(place_.rank);
    const auto ranks = static_cast<std::uint64_t>(place_.rank_count);
    const std::uint64_t last = total * (rank + 1) / ranks;
    double loss_sum = 0;
    said_.assign(is_last ? total * kClassCount : 0, 0.0f);
    stream_.zero(model_.correct(), 1);
    std::vector<std::uint32_t> samples;
    for (std::uint64_t at = total * rank / ranks; at < last; at += samples.size()) {
      samples.clear();
      for (std::uint64_t i = at; i < last && samples.size() < eval_batch_.labels.size(); ++i) {
        samples.push_back(static_cast<std::uint32_t>(i));
      }
      loss_sum += batch_loss(samples);
      if (is_last) logits_keep(at, samples.size());
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
    if (is_last) logits_gather();
    if (place_.rank != 0) return;
    JsonLine line("eval");
    line.add("step", step)
        .add("accuracy", accuracy)
        .add("loss", all[0] / static_cast<double>(total))
        .add("samples", total);
    if (is_last) scores_add(line, total);
    log_.write(line);
  }

  /// Of the test samples from `first` on, which the model has just seen.
  void logits_keep(std::uint64_t first, std::size_t count) {
    stream_.download(&said_[first * kClassCount], model_.logits(),
                     count * kClassCount * sizeof(float));
    stream_.synchronize();
  }

  /// Every rank has zeros for the samples of the others, so the sum is what each has said.
  void logits_gather() {
    if (place_.rank_count == 1) return;
    const DeviceArray<float> all(said_.size());
    stream_.upload(all.at(), said_.data(), all.bytes());
    comm_->allreduce_sum(stream_, all.at(), all.size());
    stream_.download(said_.data(), all.at(), all.bytes());
    stream_.synchronize();
  }

  void scores_add(JsonLine& line, std::uint64_t total) {
    std::vector<std::uint8_t> labels;
    for (std::uint32_t row = 0; row < total; ++row) labels.push_back(feed_.test().label(row));
    const Scores scores = scores_of(softmax_of(said_, kClassCount), labels, kClassCount);
    line.add("recall", scores.recall).add("f1", scores.f1).add("roc_auc", scores.roc_auc);
    line_.recall = scores.recall;
    line_.f1 = scores.f1;
    line_.roc_auc = scores.roc_auc;
  }

  /// Sum of the losses of these test samples; their right answers are added on the device.
  double batch_loss(std::span<const std::uint32_t> samples) {
    const int count = static_cast<int>(samples.size());
    rows_put(feed_.test(), samples, eval_batch_.inputs.data(), eval_batch_.labels.data());
    model_.batch_upload(eval_batch_.inputs.data(), eval_batch_.labels.data(), count);
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
  Device device_;
  Stream stream_;
  Feed feed_;
  Mlp model_;
  Optimizer optimizer_;
  const RatePlan rates_;
  DeviceArray<float> eval_{2};
  PinnedBatch eval_batch_;
  std::vector<float> said_;  // logits of all test samples, in the last evaluation
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
