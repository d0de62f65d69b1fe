// See rank.h. A step: upload, forward, backward, reduce the buckets, update. All ranks leave the
// loop after the same step, because the wish to stop travels with the gradients.
#include "trainer/train/rank.h"

#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>

#include "trainer/model/weights.h"
#include "trainer/train/evaluation.h"
#include "trainer/train/feed.h"
#include "trainer/train/flops.h"
#include "trainer/train/grid_plan.h"
#include "trainer/train/keeper.h"
#include "trainer/train/membership.h"
#include "trainer/train/passes.h"
#include "trainer/train/scatter.h"
#include "trainer/train/split.h"
#include "trainer/train/step_log.h"
#include "trainer/train/strategy.h"
#include "trainer/train/tensor_sums.h"

namespace sluice::train {
namespace {

// Times any loss scale beyond fp16, and not beyond fp32: what a planted overflow multiplies with.
constexpr float kOverflowFactor = 0x1p60f;

/// A rank in one epoch of membership; what others have of it is gone with it.
class Rank {
 public:
  /// `root`: the rank whose state all go on from.
  Rank(const TrainOptions& options, Worker& worker, int root)
      : options_(options),
        place_(options.place),
        worker_(worker),
        plan_(train_plan(options, place_.rank_count, place_.gpu_count)),
        grid_(plan_.grid),
        part_(plan_.part.place()),
        board_(worker.board),
        line_(worker.line),
        log_(worker.log),
        device_(worker.device),
        stream_(device_),
        feed_(options, grid_.data_of(place_.rank), grid_.data, board_, &worker.source),
        network_(plan_.part.make(
            stream_, strategy_settings(options, part_, device_),
            [this](CUdeviceptr data, std::size_t count) { tensor_sums_.sum(data, count); })),
        model_(*network_),
        evaluation_(options, stream_, model_, feed_, evaluation_place()),
        extras_(kExtraCount),
        groups_(groups_make(grid_,
                            {place_.rank, place_.rank_count, place_.directory, options.algorithm,
                             options.link, options.timeout_s, options.throttle, cancellation()},
                            options.engine, worker.plan.own_gpu_each(), device_.is_software())),
        tensor_sums_(*groups_.tensor, stream_, grid_.tensor, device_.is_software()),
        guard_(worker.heartbeat, *groups_.data),
        replica_(*groups_.replica, stream_),
        reduction_(strategy_reduction({options, plan_, groups_, stream_, model_})),
        update_(strategy_update({options, plan_, groups_, stream_, model_})) {
    if (options.precision == Precision::kFp16) {
      scaler_.emplace(stream_, options.loss_scale, model_.parameter_count(),
                      [this](bool found) { return replica_.any_of(found); });
    }
    if (is_async() && place_.rank > 0) async_worker_.emplace(*groups_.data, stream_, model_, line_);
    if (grid_.data > 1 && !is_async())
      reducer_.emplace(*groups_.data, *reduction_, stream_, plan_.buckets, overlaps());
    if (grid_.pipeline > 1)
      pipeline_.emplace(*groups_.pipeline, stream_, model_, part_.stage, part_.stage_count);
    if (feed_.is_scattered())
      scatter_.emplace(*groups_.data, stream_, place_, options.rank_batch(), model_.sample());
    double bus_bytes = 0;
    if (!is_async()) {
      for (const Bucket& bucket : plan_.buckets) bus_bytes += reduction_->bus_bytes(bucket);
      bus_bytes += update_->bus_bytes();
    }
    model_.on_gradient_ready([this](const ParameterRange& range) { gradients_final(range); });
    if (update_) {
      line_.state_bytes = update_->state_bytes();
      line_.host_state_bytes = update_->host_state_bytes();
    }
    keeper_.emplace(StateKeeper::Parts{options, worker, plan_, groups_, replica_, stream_, model_,
                                       update_.get(), *reduction_, scaler_ ? &*scaler_ : nullptr,
                                       feed_.train_count(), root});
    step_log_.emplace(StepLog::Parts{
        worker, place_.rank, bus_bytes, options.offload, grid_.tensor > 1, replica_, update_.get(),
        scaler_ ? &*scaler_ : nullptr, pipeline_ ? &*pipeline_ : nullptr,
        async_worker_ ? &*async_worker_ : nullptr});
  }

  void run() {
    state_begin();
    if (place_.rank == 0)
      executes_log(log_, options_, plan_, groups_.data->name(), reducer_ && overlaps());
    groups_.barrier(stream_);
    line_.steps_planned = options_.seconds > 0 ? 0 : rates_.steps;
    line_.peak_flops = peak_flops(device_, options_.precision);
    if (line_.begin_ns == 0) line_.begin_ns = now_ns();
    worker_.heartbeat.progress();
    line_.waits = false;
    const std::uint64_t steps = options_.is_server() ? serve() : train();
    if (is_async()) {
      // A worker has weights of some moment; the last are the server's.
      groups_.data->broadcast(stream_, model_.parameters(), model_.parameter_count());
      evaluate(steps, true);
    }
    if (grid_.data_of(place_.rank) == 0 && !options_.save.empty()) {
      const auto weights = replica_.weights_gather(plan_.part, model_.parameters_download());
      if (place_.rank == 0) weights_save(options_.save, plan_.shape, weights);
    }
    members_leave(board_, worker_.heartbeat, line_, place_.rank_count);
  }

 private:
  std::uint64_t train() {
    std::uint64_t step = keeper_->own_steps();
    bool stop = is_over(step);
    if (stop && !is_async()) evaluate(step, true);  // it was over; say once more how good it is
    while (!stop) {
      stop = train_step(step++);
      stop = stop || is_over(step);
      if (!is_async())
        keeper_->keep(step, feed_.position_after(step - keeper_->first().step), stop);
      const bool due = options_.eval_every != 0 && step % options_.eval_every == 0;
      if ((due || stop) && !is_async()) evaluate(step, stop);
    }
    return step;
  }

  std::uint64_t serve() {
    ServerOptions how{
        options_.worker_count(place_.rank_count),
        options_.staleness,
        rates_.steps,
        rates_,
        options_.timeout_s,
        options_.rank_batch(),
        keeper_->clocks(),
        [this](const StalenessBook& book) { keeper_->keep_served(book.clocks(), feed_, false); }};
    if (options_.seconds > 0) how.steps = UINT64_MAX;
    AsyncServer server(how, *groups_.data, stream_, model_, *update_, board_, log_,
                       [this] { return wants_stop(); });
    const Heartbeat::Waiting waiting(worker_.heartbeat);
    keeper_->keep_served(server.run(), feed_, true);
    step_log_->offload_note();
    return line_.steps;
  }

  bool is_async() const { return options_.strategy == Strategy::kAsync; }
  /// Only with --elastic is there somewhere to go to.
  std::function<bool()> cancellation() {
    if (!options_.faults.is_elastic()) return nullptr;
    return [&heartbeat = worker_.heartbeat] { return heartbeat.is_broken(); };
  }

  bool is_over(std::uint64_t step) const { return options_.seconds == 0 && step >= rates_.steps; }

  void evaluate(std::uint64_t step, bool is_last) {
    const Heartbeat::Waiting waiting(worker_.heartbeat);
    const Nanos begin = now_ns();
    evaluation_.run(*groups_.data, *groups_.replica, step, is_last, line_, log_);
    timeline_.evaluation(step, begin, now_ns());
  }

  void state_begin() {
    const TrainState& first = keeper_->begin();
    feed_.begin_at(first.position);
    split_begin();
    rates_ = rate_plan(options_, grid_.data, feed_.steps_per_epoch());
    if (options_.epochs > 0) rates_.steps = first.step + feed_.steps_until(options_.epochs);
    const std::uint64_t own = keeper_->own_steps();
    if (own > first.step) feed_.begin_at(feed_.position_after(own - first.step));
    const std::uint64_t left = rates_.steps - std::min(rates_.steps, own);
    if (!options_.is_server())
      feed_.start(options_.seconds > 0 ? UINT64_MAX : left, model_.sample());
    line_.steps = own;
    line_.job_samples = first.samples;
    line_.trains_in = board_.members().epoch + 1;
  }

  /// Who takes how much of each global batch, from now on.
  void split_begin() {
    const FaultOptions& faults = options_.faults;
    if (faults.split.empty()) return;
    std::vector<int> weights = faults.split_weights;
    if (weights.empty()) {
      // A planted sleep is the host's time, which the device's clock does not have.
      const bool slow = options_.slow.rank == place_.rank;
      const double planted_ms = slow ? static_cast<double>(options_.slow.us) / 1e3 /
                                           static_cast<double>(options_.slow.every)
                                     : 0;
      const float mine = pass_ms(stream_, model_, *feed_.source(), options_.batch) +
                         static_cast<float>(planted_ms);
      weights =
          split_of(times_gather(*groups_.data, stream_, mine, place_.rank, place_.rank_count));
    }
    feed_.weights_set(weights);
    std::string text;
    for (const int weight : weights) text += (text.empty() ? "" : ",") + std::to_string(weight);
    if (place_.rank == 0) log_.write(JsonLine("split").add("weights", text));
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

  bool wants_stop() {
    if (worker_.stop.asked()) {
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
    const Heartbeat::Waiting waiting(worker_.heartbeat);
    return place_.rank == 0 ? scatter_->send(feed_.next())
                            : scatter_->receive(feed_.global_count(step - keeper_->first().step));
  }
  Nanos stall_ns() const { return feed_.stall_ns() + (scatter_ ? scatter_->taken_ns() : 0); }

  float gradient_scale(std::uint64_t step) const {
    const float scale = scaler_ ? scaler_->value() : 1.0f;
    // Of all parts of the first copy: what overflows in the last stage alone need not in others.
    const bool planted = step + 1 == options_.overflow_step && grid_.data_of(place_.rank) == 0;
    return planted ? scale * kOverflowFactor : scale;
  }

  ReductionTimes gradients_reduce() {
    const Heartbeat::Waiting waiting(worker_.heartbeat);
    if (async_worker_) return async_worker_->exchange();
    ReductionTimes reduced = reducer_ ? reducer_->finish() : ReductionTimes();
    return reduced += replica_.reduce(groups_.ends.get(), plan_.part, model_);
  }
  /// What the passes of this step waited for other ranks; waits for the passes.
  ReductionTimes passes_waits() {
    ReductionTimes out = tensor_sums_.take();
    if (!pipeline_) return out;
    const PipelineTimes times = pipeline_->times();
    out.wall_ns += times.wall_ns;
    out.stage_wait_ns = times.wait_ns();
    out.collective_ns += out.stage_wait_ns;
    out.exposed_ns += out.stage_wait_ns;
    return out;
  }
  ReductionTimes weights_gather() {
    const Heartbeat::Waiting waiting(worker_.heartbeat);
    return update_->gather();
  }

  /// True when the ranks have agreed to stop after this step.
  bool train_step(std::uint64_t step) {
    timeline_.step_begin();
    const Nanos begin = now_ns();
    worker_.heartbeat.progress();
    while (worker_.hangs && step + 1 == options_.faults.hang_step) pause();
    const LoadedBatch batch = batch_next(step);
    if (options_.slow.rank == place_.rank && (step + 1) % options_.slow.every == 0)
      sleep_until(now_ns() + static_cast<Nanos>(options_.slow.us * 1000));
    const std::uint64_t sent_before = groups_.sent_bytes();
    tensor_sums_.take();  // an evaluation's are no step's
    compute_begin_.record(stream_);
    extras_[kExtraStop] = wants_stop() ? 1.0f : 0.0f;
    passes_run(
        {options_.batch, model_, pipeline_ ? &*pipeline_ : nullptr, worker_.heartbeat, timeline_},
        batch, gradient_scale(step));
    compute_end_.record(stream_);
    timeline_.gradients_wait();
    ReductionTimes reduced = gradients_reduce();
    timeline_.gradients_here();

    update_begin_.record(stream_);
    const double rate = rate_at(rates_, step);
    const bool usable = !scaler_ || scaler_->unscale(model_.gradients());
    if (usable && update_) update_->step(rate);
    update_end_.record(stream_);
    const ReductionTimes gathered = update_ ? weights_gather() : ReductionTimes();
    reduced += gathered;
    stream_.download(extras_.data(), model_.extra(0), kExtraCount * sizeof(float));
    stream_.synchronize();
    worker_.heartbeat.broken_check();  // what an aborted collective left is nobody's weights
    // An asynchronous worker knows its own samples' losses alone.
    const std::size_t samples = async_worker_ ? batch.count : batch.global_count;
    const double loss =
        samples > 0 ? extras_[kExtraLoss] / static_cast<double>(samples * model_.sample().targets)
                    : 0;
    line_.sent_bytes += groups_.sent_bytes() - sent_before;
    const ReductionTimes waits = passes_waits();
    reduced += waits;
    // The rank's own work: what it waited for others within its passes is exposed communication.
    const Nanos device_ns =
        compute_end_.since(compute_begin_) + update_end_.since(update_begin_) - waits.exposed_ns;
    const Nanos end =
        step_log_->note({step, begin, device_ns, stall_ns(), reduced, loss, rate,
                         speaks() ? static_cast<int>(batch.count) : 0, batch.global_count});
    timeline_.step_end({step, begin, end, stall_ns(), compute_begin_, compute_end_, update_begin_,
                        update_end_, reducer_ ? &*reducer_ : nullptr, place_.rank_count > 1,
                        gathered.collective_ns});
    if (!std::isfinite(loss)) {
      throw Failure(text_format(
          "the loss is not finite after step %llu: training diverged; lower "
          "--lr (%g) or --momentum (%g), or give --lr-warmup or --clip",
          static_cast<unsigned long long>(step), options_.rate, options_.optimizer.momentum));
    }
    return async_worker_ ? async_worker_->stops() : extras_[kExtraStop] > 0;
  }

  const TrainOptions& options_;
  const RankPlace& place_;
  Worker& worker_;
  TrainPlan plan_;
  const Grid& grid_;
  const PartPlace& part_;
  BoardMap& board_;
  RankLine& line_;
  JobLog& log_;
  Device& device_;
  Stream stream_;
  Feed feed_;
  const std::unique_ptr<Network> network_;
  Network& model_;
  std::optional<LossScaler> scaler_;  // with fp16
  RatePlan rates_;
  Evaluation evaluation_;
  PinnedArray<float> extras_;
  Event compute_begin_, compute_end_, update_begin_, update_end_;
  Groups groups_;
  TensorSums tensor_sums_;
  Heartbeat::Guard guard_;
  Replica replica_;
  const std::unique_ptr<BucketReduction> reduction_;
  const std::unique_ptr<WeightUpdate> update_;
  std::optional<GradientReducer> reducer_;
  std::optional<Pipeline> pipeline_;
  std::optional<AsyncWorker> async_worker_;  // of --strategy async
  std::optional<Scatter> scatter_;
  std::optional<StateKeeper> keeper_;
  std::optional<StepLog> step_log_;
  Timeline timeline_{options_, stream_, line_.own_steps};
};

}  // namespace

void rank_run(const TrainOptions& options) {
  // Gloo writes to connections whose peer may be gone; that must be an error of the write, not the
  // end of this process.
  signal(SIGPIPE, SIG_IGN);
  Worker worker(options);
  TrainOptions now = options;
  Member member;
  const auto next_epoch = [&] {
    const std::uint64_t steps = worker.commit ? worker.commit->step + 1 : 0;
    member = member_await(worker.board, worker.heartbeat, options.place.slot, member.epoch, steps);
    now.place.rank = member.rank;
    now.place.rank_count = member.rank_count;
    now.place.directory = member.directory;
  };
  if (options.place.joins) {
    member.epoch = worker.board.members().epoch;
    next_epoch();
  }
  for (;;) {
    try {
      return Rank(now, worker, member.root).run();
    } catch (const PeerFailure&) {
      if (!options.faults.is_elastic()) throw;
    } catch (const DriverFailure& failure) {
      if (failure.code != CUDA_ERROR_OUT_OF_MEMORY) throw;
      throw Failure(memory_text(now));
    }
    next_epoch();
  }
}

}  // namespace sluice::train
