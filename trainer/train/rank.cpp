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

#include "trainer/job/log.h"
#include "trainer/job/statistics.h"
#include "trainer/job/stop.h"
#include "trainer/model/weights.h"
#include "trainer/train/async.h"
#include "trainer/train/board.h"
#include "trainer/train/checkpoint.h"
#include "trainer/train/compression.h"
#include "trainer/train/evaluation.h"
#include "trainer/train/feed.h"
#include "trainer/train/flops.h"
#include "trainer/train/grid_plan.h"
#include "trainer/train/heartbeat.h"
#include "trainer/train/membership.h"
#include "trainer/train/pipeline.h"
#include "trainer/train/plan.h"
#include "trainer/train/powersgd.h"
#include "trainer/train/reduction.h"
#include "trainer/train/replica.h"
#include "trainer/train/scatter.h"
#include "trainer/train/split.h"
#include "trainer/train/state.h"
#include "trainer/train/timeline.h"
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

/// What a process keeps, whoever the other ranks are.
struct Worker {
  explicit Worker(const TrainOptions& options)
      : plan(train_plan(options, options.place.rank_count, options.place.gpu_count)),
        board(options.place.board_fd),
        line(board.line(options.place.slot)),
        heartbeat(board, options.place.slot),
        log(options.log, JobLog::Open::kAppend),
        checkpoints(options.faults.checkpoint, options.faults.checkpoint_keep),
        device(plan.gpu_of(options.place.slot)),
        hangs(options.place.slot == options.place.rank_count - 1 && !options.place.joins) {}

  StopSignal stop;
  const TrainPlan plan;  // that the job started with: placement stays
  BoardMap board;
  RankLine& line;
  Heartbeat heartbeat;
  JobLog log;
  CheckpointDirectory checkpoints;
  Device device;
  const bool hangs;  // where a hang is planted
  std::shared_ptr<Source> source;
  std::optional<TrainState> commit;  // what a loss goes back to
};

/// A rank in one epoch of membership; what others have of it is gone with it.
class Rank {
 public:
  /// `root`: the rank whose state all go on from.
  Rank(const TrainOptions& options, Worker& worker, int root)
      : options_(options),
        place_(options.place),
        worker_(worker),
        root_(root),
        plan_(train_plan(options, place_.rank_count, place_.gpu_count)),
        grid_(plan_.grid),
        part_(plan_.part.place()),
        board_(worker.board),
        line_(worker.line),
        log_(worker.log),
        device_(worker.device),
        stream_(device_),
        feed_(options, grid_.data_of(place_.rank), grid_.data, board_, &worker.source),
        network_(plan_.part.make(stream_, network_settings(options, part_),
                                 [this](CUdeviceptr data, std::size_t count) {
                                   groups_.tensor->all_reduce(stream_, data, count);
                                 })),
        model_(*network_),
        evaluation_(options, stream_, model_, feed_, evaluation_place()),
        extras_(kExtraCount),
        groups_(groups_make(grid_,
                            {place_.rank, place_.rank_count, place_.directory, options.algorithm,
                             options.link, options.timeout_s, options.throttle, cancellation()},
                            options.engine, worker.plan.own_gpu_each(), device_.is_software())),
        guard_(worker.heartbeat, *groups_.data),
        replica_(*groups_.replica, stream_),
        reduction_(reduction_make()),
        update_(update_make()) {
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
    if (!is_async()) {
      for (const Bucket& bucket : plan_.buckets) bus_bytes_ += reduction_->bus_bytes(bucket);
      bus_bytes_ += update_->bus_bytes();
    }
    model_.on_gradient_ready([this](const ParameterRange& range) { gradients_final(range); });
    if (update_) {
      line_.state_bytes = update_->state_bytes();
      line_.host_state_bytes = update_->host_state_bytes();
    }
  }

  void run() {
    state_begin();
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
    leave_together();
  }

 private:
  std::uint64_t train() {
    std::uint64_t step = state_.step;
    bool stop = is_over(step);
    if (stop && !is_async()) evaluate(step, true);  // it was over; say once more how good it is
    while (!stop) {
      stop = train_step(step++);
      stop = stop || is_over(step);
      state_keep(step, stop);
      const bool due = options_.eval_every != 0 && step % options_.eval_every == 0;
      if ((due || stop) && !is_async()) evaluate(step, stop);
    }
    return step;
  }

  std::uint64_t serve() {
    ServerOptions how{options_.worker_count(place_.rank_count),
                      options_.staleness,
                      rates_.steps,
                      rates_,
                      options_.timeout_s,
                      options_.rank_batch()};
    if (options_.seconds > 0) how.steps = UINT64_MAX;
    AsyncServer server(how, *groups_.data, stream_, model_, *update_, board_, log_,
                       [this] { return wants_stop(); });
    const Heartbeat::Waiting waiting(worker_.heartbeat);
    server.run();
    offload_note();
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

  CheckpointIdentity identity() const {
    return checkpoint_identity(options_, plan_.shape, place_.rank_count, feed_.train_count());
  }

  StateMover mover() {
    return StateMover({*groups_.data, stream_, model_, *update_, *reduction_,
                       scaler_ ? &*scaler_ : nullptr, place_.rank, place_.rank_count});
  }

  /// The state that all go on from: what root has in memory, or on the disk, or a new one.
  void state_begin() {
    if (place_.rank == root_ || grid_.is_split() || is_async()) {
      if (worker_.commit) {
        state_ = *worker_.commit;
      } else if (options_.faults.resume) {
        // The launcher has said what there is to say.
        auto found = worker_.checkpoints.newest(identity(), [](const std::string&) {});
        if (found) state_ = std::move(found->state);
      }
      if (state_.parameters.empty()) state_.parameters = plan_.shape.draw(options_.seed);
    }
    if (grid_.is_split() || is_async()) {
      model_.parameters_upload(plan_.part.cut(state_.parameters));
      groups_.data->broadcast(stream_, model_.parameters(), model_.parameter_count());
    } else {
      StateMover all = mover();
      all.share(state_, root_);
      all.put(state_);
    }
    if (options_.faults.is_elastic()) worker_.commit = state_;
    feed_.begin_at(state_.position);
    split_begin();
    rates_ = rate_plan(options_, grid_.data, feed_.steps_per_epoch());
    if (options_.epochs > 0) rates_.steps = state_.step + feed_.steps_until(options_.epochs);
    const std::uint64_t left = rates_.steps - std::min(rates_.steps, state_.step);
    if (!options_.is_server())
      feed_.start(options_.seconds > 0 ? UINT64_MAX : left, model_.sample());
    line_.steps = state_.step;
    samples_ = state_.samples;
    line_.job_samples = samples_;
    line_.trains_in = board_.members().epoch + 1;
  }

  /// Who takes how much of each global batch, from now on.
  void split_begin() {
    const FaultOptions& faults = options_.faults;
    if (faults.split.empty()) return;
    std::vector<int> weights = faults.split_weights;
    if (weights.empty()) {
      const float mine = pass_ms(stream_, model_, *feed_.source(), options_.batch);
      weights =
          split_of(times_gather(*groups_.data, stream_, mine, place_.rank, place_.rank_count));
    }
    feed_.weights_set(weights);
    std::string text;
    for (const int weight : weights) text += (text.empty() ? "" : ",") + std::to_string(weight);
    if (place_.rank == 0) log_.write(JsonLine("split").add("weights", text));
  }

  /// In memory, and on the disk, where it is time to.
  void state_keep(std::uint64_t step, bool is_last) {
    const FaultOptions& faults = options_.faults;
    const bool every = faults.checkpoint_every > 0 && step % faults.checkpoint_every == 0;
    const bool writes = !faults.checkpoint.empty() && (every || is_last);
    if (!writes && !faults.commit_due(step)) return;
    const Heartbeat::Waiting waiting(worker_.heartbeat);
    TrainState state = mover().take();
    state.step = step;
    state.position = feed_.position_after(step - state_.step);
    state.samples = samples_;
    worker_.heartbeat.broken_check();
    if (writes && place_.rank == 0) checkpoint_write(state, is_last);
    if (faults.is_elastic()) worker_.commit = std::move(state);
  }

  /// A disk that is full for a while is no reason to end the job, but for the last one.
  void checkpoint_write(const TrainState& state, bool is_last) {
    const Nanos begin = now_ns();
    try {
      worker_.checkpoints.write(state, identity());
    } catch (const Failure& failure) {
      if (is_last) throw;
      std::fprintf(stderr, "sluice: sluice-train: no checkpoint after step %llu: %s\n",
                   static_cast<unsigned long long>(state.step), failure.what());
      return;
    }
    log_.write(JsonLine("checkpoint").add("step", state.step).add("duration_ns", now_ns() - begin));
  }

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
    if (options_.compression.kind == Compression::kPowersgd) {
      return powersgd_reduction(options_.compression.rank, *groups_.data, grid_.data, stream_,
                                model_.gradients(), model_.ranges());
    }
    std::size_t largest = 0;
    for (const Bucket& bucket : plan_.buckets) largest = std::max(largest, bucket.count);
    return compressed_reduction(options_.compression, *groups_.data, grid_.data, stream_,
                                model_.gradients(), model_.parameter_count(), largest);
  }

  /// None for a worker of --strategy async.
  std::unique_ptr<WeightUpdate> update_make() {
    if (grid_.is_split()) {
      return replica_update(*groups_.replica, stream_, options_.optimizer, model_.gradients(),
                            model_.parameters(), plan_.part);
    }
    if (is_async() && !options_.is_server()) return nullptr;
    if (!is_sharded()) {
      const auto make = options_.offload ? offload_update : plain_update;
      return make(stream_, options_.optimizer, model_.gradients(), model_.parameters(),
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
    const Heartbeat::Waiting waiting(worker_.heartbeat);
    line_.finished = true;
    const BoardMembers& members = board_.members();
    for (int rank = 0; rank < place_.rank_count; ++rank) {
      const int slot = members.epoch == 0 ? rank : members.slots[rank];
      while (!board_.line(slot).finished && !worker_.heartbeat.is_broken())
        sleep_until(now_ns() + kNanosPerMilli);
    }
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
                            : scatter_->receive(feed_.global_count(step - state_.step));
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
      timeline_.backward_begin();
      model_.backward(count_of(micro), static_cast<int>(batch.global_count),
                      {.first = micro == 0, .last = micro == micros - 1}, scale);
    };
    if (pipeline_) pipeline_->step({all > 0 ? micros : 0, count_of, forward, backward});
    if (pipeline_ && all > 0) return;
    for (int micro = 0; micro < micros; ++micro) {
      forward(micro);
      backward(micro);
      worker_.heartbeat.progress();
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

  ReductionTimes gradients_reduce() {
    const Heartbeat::Waiting waiting(worker_.heartbeat);
    if (async_worker_) return async_worker_->exchange();
    ReductionTimes reduced = reducer_ ? reducer_->finish() : ReductionTimes();
    return reduced += replica_.reduce(groups_.ends.get(), plan_.part, model_);
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
    const int count = static_cast<int>(batch.count);
    compute_begin_.record(stream_);
    extras_[kExtraStop] = wants_stop() ? 1.0f : 0.0f;
    gradients_make(batch, step);
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
    samples_ += batch.global_count;
    const Nanos end = step_note(step, begin, reduced, count, loss, rate);
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

  /// What the optimizer's copies took since this was asked last.
  Nanos offload_note() {
    if (!update_) return 0;
    const HostCopies copies = update_->host_copies();
    const Nanos since = copies.device_ns - line_.offload_ns;
    line_.offload_bytes = copies.bytes;
    line_.offload_ns = copies.device_ns;
    return since;
  }

  /// Returns the step's end.
  Nanos step_note(std::uint64_t step, Nanos begin, const ReductionTimes& reduced, int count,
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
    if (options_.offload) json.add("offload_ns", offload_note());
    if (async_worker_) json.add("age", async_worker_->age()).add("ahead", async_worker_->ahead());
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
    line_.job_samples = samples_;
    line_.own_steps = line_.own_steps + 1;
    line_.steps = step + 1;
    return end;
  }

  const TrainOptions& options_;
  const RankPlace& place_;
  Worker& worker_;
  const int root_;
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
  TrainState state_;                  // what it began with
  std::uint64_t samples_ = 0;         // all ranks', in all steps of the job
  RatePlan rates_;
  Evaluation evaluation_;
  PinnedArray<float> extras_;
  Event compute_begin_, compute_end_, update_begin_, update_end_;
  Recent compute_recent_, device_recent_;
  Groups groups_;
  Heartbeat::Guard guard_;
  Replica replica_;
  const std::unique_ptr<BucketReduction> reduction_;
  const std::unique_ptr<WeightUpdate> update_;
  double bus_bytes_ = 0;  // of a step
  std::optional<GradientReducer> reducer_;
  std::optional<Pipeline> pipeline_;
  std::optional<AsyncWorker> async_worker_;  // of --strategy async
  std::optional<Scatter> scatter_;
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
