// See launcher.h.
#include "trainer/train/launcher.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "trainer/job/gang.h"
#include "trainer/job/log.h"
#include "trainer/job/progress.h"
#include "trainer/job/report.h"
#include "trainer/job/statistics.h"
#include "trainer/job/stop.h"
#include "trainer/plan/choose.h"
#include "trainer/train/board.h"
#include "trainer/train/checkpoint_lock.h"
#include "trainer/train/crew.h"
#include "trainer/train/environment.h"
#include "trainer/train/feed.h"
#include "trainer/train/flops.h"
#include "trainer/train/gpus.h"
#include "trainer/train/meeting.h"
#include "trainer/train/nodes.h"
#include "trainer/train/pipeline_schedule.h"
#include "trainer/train/plan.h"
#include "trainer/train/reduction.h"
#include "trainer/train/status.h"
#include "trainer/train/timeline.h"

namespace sluice::train {
namespace {

constexpr Nanos kLookGap = 50 * kNanosPerMilli;   // between looks at the ranks
constexpr Nanos kEndGrace = 2 * kNanosPerSecond;  // for the other ranks, once one is lost
// For all of them after SIGTERM: a step and an evaluation must fit, also on a shared GPU.
constexpr Nanos kStopGrace = 20 * kNanosPerSecond;

class Launcher {
 public:
  Launcher(const TrainOptions& options, std::vector<std::string> arguments, int rank_count,
           const GpusSeen& gpus, const std::optional<ExternalStart>& external, Nodes* nodes,
           const std::optional<planner::Ranked>& chosen)
      : options_(options),
        chosen_(chosen),
        nodes_(nodes),
        own_(external ? OwnRanks{external->rank, 1}
             : nodes  ? OwnRanks{nodes->first_rank(), nodes->own_count()}
                      : OwnRanks{0, rank_count}),
        plan_(train_plan(options, rank_count, gpus.count)),
        shares_by_nccl_(gpus.nccl && !plan_.own_gpu_each()),
        log_(options.log, is_first() ? JobLog::Open::kFresh : JobLog::Open::kAppend),
        progress_(options.quiet || !is_first()),
        checkpoints_(checkpoints_open(options, plan_, is_first())),
        meeting_(external ? Meeting::shared(*external, options.timeout_s)
                 : nodes  ? Meeting::network(nodes->place())
                          : Meeting::own()),
        board_(meeting_->board()),
        crew_({options_, plan_, std::move(arguments), own_.begin, own_.count,
               checkpoints_.fd() >= 0 ? std::vector<int>{checkpoints_.fd()} : std::vector<int>{},
               *meeting_, log_, [this](const std::string& text) { progress_.say(text); }}) {}

  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  int run() {
    progress_.say(plan_text(plan_, options_));
    if (shares_by_nccl_) {
      progress_.say(
          "plan: ranks share a GPU and speak by NCCL, which takes each for a host of its own "
          "(NCCL_HOSTID), over sockets");
    }
    // Ranks that others start may have begun theirs.
    if (own_.count == plan_.rank_count && !options_.timeline.empty()) {
      timeline_prepare(options_.timeline, plan_.rank_count);
    }
    if (is_first()) {
      log_.write(JsonLine("start")
                     .add("job", "train")
                     .add("ranks", plan_.rank_count)
                     .add("batch", options_.rank_batch())
                     .add("parameters", static_cast<std::uint64_t>(plan_.shape.parameter_count()))
                     .add("seed", options_.seed));
      chosen_show();
    }
    crew_.start();
    while (crew_.look(now_ns() + kLookGap)) {
      if (stop_.asked()) stop_pass_on();
      if (nodes_) nodes_look();
      deadline_keep();
      state_show();
    }
    state_show();  // of a job that ended between two looks
    return finish();
  }

 private:
  struct OwnRanks {
    int begin;
    int count;
  };

  /// Speaks for the job: starts all ranks, or the first of them.
  bool is_first() const { return own_.begin == 0; }

  void nodes_look() {
    nodes_->exchange(board_);
    if (crew_.cause_said()) nodes_->report(crew_.cause());
    trouble_show();
  }

  /// Of other nodes; what has gone wrong here says more about itself.
  void trouble_show() {
    if (nodes_->trouble().empty() || crew_.cause_said() || std::exchange(trouble_said_, true))
      return;
    std::fprintf(stderr, "sluice: sluice-train: %s; ending the job\n", nodes_->trouble().c_str());
  }

  bool has_failed() const { return crew_.failed() || (nodes_ && !nodes_->trouble().empty()); }

  /// True when the ranks of all nodes have ended well.
  bool nodes_finish() {
    const bool well = !has_failed() && !killed_;
    if (crew_.cause_said()) nodes_->report(crew_.cause());
    const bool all_well = nodes_->finish(board_, well, kEndGrace);
    trouble_show();
    if (well && !all_well && !trouble_said_)
      std::fprintf(stderr, "sluice: sluice-train: ranks of another node did not end well\n");
    return all_well;
  }

  /// The chosen plan beside its prediction, which the end line has again beside what was measured.
  void chosen_show() {
    if (!chosen_) return;
    const planner::Prediction& p = chosen_->prediction;
    progress_.say("plan: chosen " + chosen_->candidate.text() + "; predicted step " +
                  planner::prediction_text(p));
    log_.write(JsonLine("plan")
                   .add("chosen", chosen_->candidate.text())
                   .add("predicted_step_ns", p.step_ns())
                   .add("input_ns", p.input_ns)
                   .add("compute_ns", p.compute_ns)
                   .add("tensor_ns", p.tensor_ns)
                   .add("bubble_ns", p.bubble_ns)
                   .add("exposed_ns", p.exposed_ns)
                   .add("update_ns", p.update_ns)
                   .add("memory_bytes", p.memory_bytes));
  }

  /// In the device's time, as the prediction is: work and what of communication nothing hid.
  static double step_measured_ns(const RankLine& line) {
    return static_cast<double>(line.step_median_ns);
  }

  std::string prediction_text(const RankLine& line) const {
    if (!chosen_ || line.steps == 0) return "";
    const double predicted = chosen_->prediction.step_ns();
    const double measured = step_measured_ns(line);
    return text_format("; a step was predicted to take %.3f ms and took %.3f ms (%+.1f %%)",
                       predicted / 1e6, measured / 1e6, 100 * (measured / predicted - 1));
  }

  void stop_pass_on() {
    if (std::exchange(stopping_, true)) return;
    deadline_ns_ = now_ns() + kStopGrace;
    crew_.signal_all(SIGTERM);
  }

  void deadline_keep() {
    if (has_failed() && !std::exchange(ending_, true)) deadline_ns_ = now_ns() + kEndGrace;
    if (deadline_ns_ == 0 || killed_ || now_ns() < deadline_ns_) return;
    killed_ = true;
    if (!crew_.cause_said() && !trouble_said_) {
      std::fprintf(stderr,
                   "sluice: sluice-train: not all ranks ended within %.0f s of %s; killing them\n",
                   seconds_of(ending_ ? kEndGrace : kStopGrace),
                   ending_ ? "the first failure" : "being asked to");
    }
    crew_.give_up();
    crew_.signal_all(SIGKILL);
  }

  /// Of rank 0, which speaks for all.
  RankLine& speaker() { return board_.line(crew_.members().front()); }

  /// In the weights; an asynchronous job's workers know their own alone, and its server those
  /// before.
  std::uint64_t samples() {
    const std::uint64_t said = speaker().job_samples;
    return options_.strategy == Strategy::kAsync ? said + samples_taken() : said;
  }
  std::uint64_t samples_taken() {
    std::uint64_t sum = 0;
    for (int slot = 0; slot < plan_.rank_count; ++slot) sum += board_.line(slot).samples;
    return sum;
  }

  /// Of this run, what was done again included.
  double samples_per_s() {
    const RankLine& line = speaker();
    const Nanos spent = line.end_ns - line.begin_ns;
    return spent > 0 ? static_cast<double>(samples_taken()) / seconds_of(spent) : 0;
  }

  /// By rank: the median of what its last steps took outside of communication, over the median of
  /// all ranks'.
  std::vector<double> straggler_scores() {
    std::vector<Nanos> medians;
    for (const int slot : crew_.members()) medians.push_back(board_.line(slot).compute_median_ns);
    const Nanos middle = percentile(medians, 50);
    std::vector<double> scores;
    for (const Nanos one : medians)
      scores.push_back(middle > 0 ? static_cast<double>(one) / static_cast<double>(middle) : 1.0);
    return scores;
  }

  std::string straggler_text() {
    const std::vector<double> scores = straggler_scores();
    if (scores.size() == 1) return "";
    const auto slowest = std::max_element(scores.begin(), scores.end());
    return text_format("; straggler: rank %td, %.2f x the median of all ranks",
                       slowest - scores.begin(), *slowest);
  }

  void ranks_log() {
    const std::vector<double> scores = straggler_scores();
    for (std::size_t rank = 0; rank < scores.size(); ++rank) {
      const RankLine& line = board_.line(crew_.members()[rank]);
      log_.write(JsonLine("rank")
                     .add("rank", static_cast<int>(rank))
                     .add("compute_median_ns", line.compute_median_ns.load())
                     .add("samples", line.samples.load())
                     .add("straggler", scores[rank]));
    }
  }

  JobFigures figures() {
    JobFigures out;
    out.steps = speaker().steps;
    out.samples = samples();
    if (options_.model == Model::kGpt)
      out.tokens = out.samples * static_cast<std::uint64_t>(options_.gpt.context);
    out.exposed_communication_ns = speaker().communication_ns;
    const std::vector<double> scores = straggler_scores();
    out.straggler_score = *std::max_element(scores.begin(), scores.end());
    out.rank_count = static_cast<int>(crew_.members().size());
    return out;
  }

  TrainStatus status() {
    const RankLine& line = speaker();
    TrainStatus out;
    out.steps = line.steps;
    out.steps_before = out.steps - std::min(out.steps, line.own_steps.load());
    out.steps_planned = line.steps_planned;
    out.loss = line.loss;
    out.samples_per_s = samples_per_s();
    const SampleShape sample = plan_.shape.sample();
    if (options_.model == Model::kGpt) out.tokens_per_sample = static_cast<double>(sample.targets);
    double peak = 0;
    for (const int slot : crew_.members()) peak += board_.line(slot).peak_flops;
    if (peak > 0) out.mfu = out.samples_per_s * sample_flops(plan_.shape) / peak;
    const Nanos spent = line.end_ns - line.begin_ns;
    if (spent > 0) {
      out.exposed = static_cast<double>(line.communication_ns) / static_cast<double>(spent);
      out.stall = static_cast<double>(line.stall_ns) / static_cast<double>(spent);
    }
    out.has_ranks = crew_.members().size() > 1;
    out.spent_s = seconds_of(spent);
    out.seconds = options_.seconds;
    return out;
  }

  void state_show() {
    RankLine& line = speaker();
    if (crew_.have_met()) meeting_->remove();
    if (line.steps == 0) return;
    progress_.show(status_parts(status()));
    if (is_first()) reporter_.report(figures(), false);
  }

  std::string scores_text(const RankLine& line) const {
    const std::string accuracy = text_format(", accuracy %.2f %%", 100 * line.accuracy);
    if (options_.model == Model::kGpt) {
      return accuracy + text_format(", perplexity %.3f", std::exp(line.test_loss));
    }
    return accuracy + text_format(", mean over classes: recall %.2f %%, F1 %.2f %%, ROC AUC %.4f",
                                  100 * line.recall, 100 * line.f1, line.roc_auc.load());
  }

  static double busbw_mb_per_s(const RankLine& line) {
    // Waits for other stages are no collectives, and their messages are not in the bytes.
    const Nanos took = line.collective_ns - line.stage_wait_ns;
    return took > 0 ? line.bus_bytes * 1e3 / static_cast<double>(took) : 0;
  }

  /// What of it the passes themselves wait for, where layers or stages are split.
  static std::string passes_text(const RankLine& line, Nanos sum, const char* what) {
    return sum > 0 ? text_format(", %s %.3f ms", what, step_mean_ms(line, sum)) : "";
  }

  static std::string overlap_text(const RankLine& line) {
    if (line.collective_ns <= 0) return "";
    return text_format(
        "; a step's collectives take %.3f ms of device time, %.3f ms of it exposed (overlap %.1f "
        "%%), busbw %.0f MB/s%s%s",
        step_mean_ms(line, line.collective_ns), step_mean_ms(line, line.exposed_ns),
        100 * ReductionTimes::overlap_ratio(line.exposed_ns, line.collective_ns),
        busbw_mb_per_s(line), passes_text(line, line.tensor_ns, "sums within layers").c_str(),
        passes_text(line, line.stage_wait_ns, "waits for other stages").c_str());
  }

  std::string skipped_text(const RankLine& line) const {
    if (options_.precision != Precision::kFp16) return "";
    return text_format("; %llu steps skipped because gradients overflowed",
                       static_cast<unsigned long long>(line.skipped.load()));
  }

  /// What only some jobs have.
  void extras_add(JsonLine& end, const RankLine& line) const {
    if (options_.strategy == Strategy::kAsync) {
      end.add("staleness_mean", line.age_mean.load())
          .add("staleness_max", line.age_max.load())
          .add("ahead_max", line.ahead_max.load());
    }
    if (options_.offload) {
      end.add("host_state_bytes", line.host_state_bytes.load())
          .add("offload_bytes", line.offload_bytes.load())
          .add("offload_ns", line.offload_ns.load());
    }
  }

  std::string extras_text(const RankLine& line) const {
    std::string text;
    if (options_.strategy == Strategy::kAsync) {
      text = text_format(
          "; gradients were %.2f updates old (mean; at most %llu), workers at most %llu steps "
          "ahead",
          line.age_mean.load(), static_cast<unsigned long long>(line.age_max.load()),
          static_cast<unsigned long long>(line.ahead_max.load()));
    }
    if (options_.offload && line.steps > 0) {
      text += text_format(
          "; optimizer's state on the host: %llu bytes, its copies %llu bytes and %.3f ms of "
          "device time a step",
          static_cast<unsigned long long>(line.host_state_bytes.load()),
          static_cast<unsigned long long>(line.offload_bytes / line.steps),
          step_mean_ms(line, line.offload_ns));
    }
    return text;
  }

  static double step_mean_ms(const RankLine& line, Nanos sum) {
    const std::uint64_t steps = line.own_steps;
    return steps > 0 ? millis_of(sum) / static_cast<double>(steps) : 0;
  }

  /// The share of the pipeline's time that a stage was idle, the mean over all ranks; 0 without
  /// one.
  double bubble() {
    double idle = 0;
    for (int rank = 0; rank < plan_.rank_count; ++rank) {
      const RankLine& line = board_.line(rank);
      if (line.pipeline_span_ns > 0)
        idle += 1 - static_cast<double>(line.pipeline_busy_ns) /
                        static_cast<double>(line.pipeline_span_ns);
    }
    return idle / plan_.rank_count;
  }

  std::string bubble_text() {
    if (plan_.grid.pipeline == 1) return "";
    return text_format("; stages idle %.1f %% of a step's passes (%.1f %% if all were alike)",
                       100 * bubble(),
                       100 * pipeline_bubble(plan_.grid.pipeline, options_.accumulate));
  }

  const char* status_text() {
    if (has_failed() || killed_ || !others_well_) return "failed";
    bool stopped = stopping_;
    for (const int slot : crew_.members()) stopped = stopped || board_.line(slot).stopped;
    return stopped ? "stopped" : "ok";
  }

  int finish() {
    if (nodes_) others_well_ = nodes_finish();
    RankLine& line = speaker();
    const std::string status = status_text();
    if (!is_first()) return status == "failed" ? 1 : 0;
    if (line.steps > 0) ranks_log();
    JsonLine end("end");
    if (chosen_ && line.steps > 0) {
      end.add("predicted_step_ns", chosen_->prediction.step_ns())
          .add("measured_step_ns", step_measured_ns(line));
    }
    end.add("steps", line.steps.load())
        .add("samples", samples())
        .add("collective_ns", line.collective_ns.load())
        .add("exposed_ns", line.exposed_ns.load())
        .add("tensor_ns", line.tensor_ns.load())
        .add("stage_wait_ns", line.stage_wait_ns.load())
        .add("overlap_ratio", ReductionTimes::overlap_ratio(line.exposed_ns, line.collective_ns))
        .add("busbw_mb_per_s", busbw_mb_per_s(line))
        .add("sent_bytes", line.sent_bytes.load())
        .add("state_bytes", line.state_bytes.load())
        .add("bubble", bubble());
    extras_add(end, line);
    log_.write(end.add("status", status));
    if (line.steps > 0) reporter_.report(figures(), true);
    if (!options_.timeline.empty()) timeline_merge(options_.timeline, plan_.rank_count);
    if (status == "failed") return 1;
    const double accuracy = line.accuracy;
    progress_.say(text_format(
        "%s: %llu steps, %llu samples in %.2f s (%.0f samples/s); loss %.4f%s; device time of a "
        "step %.2f ms (median), communication %.2f ms (mean), stalled for data %.2f ms (mean)%s",
        status == "ok" ? "done" : "stopped", static_cast<unsigned long long>(line.steps.load()),
        static_cast<unsigned long long>(samples()), seconds_of(line.end_ns - line.begin_ns),
        samples_per_s(), line.loss.load(), accuracy >= 0 ? scores_text(line).c_str() : "",
        millis_of(line.device_median_ns), step_mean_ms(line, line.communication_ns),
        step_mean_ms(line, line.stall_ns),
        (overlap_text(line) + bubble_text() + straggler_text() + skipped_text(line) +
         extras_text(line) + prediction_text(line))
            .c_str()));
    return 0;
  }

  StopSignal stop_;
  const TrainOptions& options_;
  const std::optional<planner::Ranked> chosen_;  // with --plan auto
  Nodes* const nodes_;                           // of a job on several machines; else null
  const OwnRanks own_;                           // the others are started by somebody else
  TrainPlan plan_;
  const bool shares_by_nccl_;
  JobLog log_;
  Progress progress_;
  JobReporter reporter_;
  const CheckpointLock checkpoints_;
  const std::unique_ptr<Meeting> meeting_;
  BoardMap& board_;
  Crew crew_;
  bool ending_ = false;  // because of a failure
  bool trouble_said_ = false;
  bool others_well_ = true;
  bool stopping_ = false;
  bool killed_ = false;
  Nanos deadline_ns_ = 0;
};

/// With --plan auto: the plan, in `options` too.
std::optional<planner::Ranked> plan_choose(TrainOptions& options, int rank_count,
                                           const std::optional<ExternalStart>& external) {
  if (!options.plan_auto) return std::nullopt;
  if (external && options.calibration.empty()) {
    throw Failure("--plan auto under " + external->by +
                  " needs --calibration FILE, so that all ranks choose by the same figures; "
                  "sluice-train calibrate writes one");
  }
  Progress progress(options.quiet);
  const auto say = [&](const std::string& what) { progress.say("plan: measuring " + what); };
  return planner::plan_take(planner::plan_search(options, rank_count, say), options);
}

}  // namespace

int gpus_count() { return gpus_look(Engine::kGloo).count; }

int launcher_run(const TrainOptions& options, int argc, char** argv) {
  std::optional<ExternalStart> external;
  if (!options.start_self && !options.nodes.are_many()) external = external_start(getenv);
  if (external && options.rank_count != 0 && options.rank_count != external->rank_count) {
    throw Failure(
        text_format("--nproc %d, but %s starts %d ranks; leave --nproc out, or give "
                    "--start self to start ranks from here",
                    options.rank_count, external->by.c_str(), external->rank_count));
  }
  if (external && options.faults.is_elastic()) {
    throw Failure("--elastic is for ranks that sluice-train starts itself, and " + external->by +
                  " starts these; give --start self");
  }
  std::optional<Gang> gang;
  if (options.faults.exclusive) {
    if (external) {
      throw Failure("--exclusive is for ranks that sluice-train starts itself, and " +
                    external->by +
                    " starts these; start that one by sluice run --class exclusive instead");
    }
    StopSignal stop;
    gang.emplace(options.rank_count, stop, [](const std::string& text) {
      std::fprintf(stderr, "sluice: sluice-train: %s\n", text.c_str());
    });
  }
  const GpusSeen gpus = gpus_look(options.engine);
  const int own_count = options.rank_count ? options.rank_count : gpus.count;
  const int rank_count = external ? external->rank_count : own_count * options.nodes.count;
  if (rank_count > kRanksMax)
    throw Failure(text_format("%d ranks, and %d are the most", rank_count, kRanksMax));
  feed_verify(options, rank_count);
  TrainOptions planned = options;
  std::vector<std::string> arguments(argv, argv + argc);
  const auto chosen = plan_choose(planned, rank_count, external);
  if (chosen) arguments.insert(arguments.end(), {"--as-planned", planner::planned_format(planned)});
  if (!options.nodes.are_many()) {
    return Launcher(planned, std::move(arguments), rank_count, gpus, external, nullptr, chosen)
        .run();
  }
  Nodes nodes(planned, own_count, gpus);
  if (!options.quiet) {
    std::printf("node %d of %d: ranks %d to %d, rendezvous at %s\n", options.nodes.node,
                options.nodes.count, nodes.first_rank(), nodes.first_rank() + own_count - 1,
                options.nodes.rendezvous.c_str());
  }
  try {
    return Launcher(planned, std::move(arguments), rank_count, gpus, external, &nodes, chosen)
        .run();
  } catch (const std::exception& failure) {
    nodes.report(failure.what());
    throw;
  }
}

}  // namespace sluice::train
