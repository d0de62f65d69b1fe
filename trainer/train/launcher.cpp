// See launcher.h.
#include "trainer/train/launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "trainer/job/log.h"
#include "trainer/job/progress.h"
#include "trainer/job/report.h"
#include "trainer/job/statistics.h"
#include "trainer/job/stop.h"
#include "trainer/train/board.h"
#include "trainer/train/environment.h"
#include "trainer/train/feed.h"
#include "trainer/train/meeting.h"
#include "trainer/train/pipeline_schedule.h"
#include "trainer/train/plan.h"
#include "trainer/train/rank.h"
#include "trainer/train/reduction.h"

namespace sluice::train {
namespace {

constexpr Nanos kLookGap = 50 * kNanosPerMilli;   // between looks at the ranks
constexpr Nanos kEndGrace = 2 * kNanosPerSecond;  // for the other ranks, once one is lost
// For all of them after SIGTERM: a step and an evaluation must fit, also on a shared GPU.
constexpr Nanos kStopGrace = 20 * kNanosPerSecond;

/// Counts the GPUs in a child, because a process that has called cuInit cannot fork ranks that use
/// CUDA.
int gpus_count() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw errno_failure("making a pipe");
  const pid_t child = fork();
  if (child < 0) throw errno_failure("forking");
  if (child == 0) {
    std::string text;
    try {
      text = "=" + std::to_string(device_count());
    } catch (const Failure& failure) {
      text = failure.what();
    }
    const ssize_t written = write(ends[1], text.data(), text.size());
    _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  char buffer[1024];
  std::string text;
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (text.empty()) throw Failure("the CUDA driver ended the process that counted the GPUs");
  if (text[0] != '=') throw Failure(text);
  return std::atoi(text.c_str() + 1);
}

struct RankProcess {
  pid_t pid = -1;  // -1 = reaped
  int status = 0;

  bool running() const { return pid > 0; }
  bool failed() const { return !running() && (!WIFEXITED(status) || WEXITSTATUS(status) != 0); }
};

std::string ending_text(int status) {
  if (WIFSIGNALED(status)) {
    return text_format("was killed by signal %d (%s)", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  }
  return text_format("ended with status %d", WEXITSTATUS(status));
}

class Launcher {
 public:
  Launcher(const TrainOptions& options, int argc, char** argv, int rank_count, int gpu_count,
           const std::optional<ExternalStart>& external)
      : options_(options),
        arguments_(argv, argv + argc),
        only_rank_(external ? external->rank : -1),
        plan_(train_plan(options, rank_count, gpu_count)),
        log_(options.log, is_first() ? JobLog::Open::kFresh : JobLog::Open::kAppend),
        progress_(options.quiet || !is_first()),
        meeting_(external ? Meeting::shared(*external, options.timeout_s) : Meeting::own()),
        board_(meeting_->board()),
        ranks_(static_cast<std::size_t>(plan_.rank_count)) {}

  ~Launcher() { ranks_kill(SIGKILL); }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  int run() {
    progress_.say(plan_text(plan_, options_));
    if (is_first()) {
      log_.write(JsonLine("start")
                     .add("job", "train")
                     .add("ranks", plan_.rank_count)
                     .add("batch", options_.rank_batch())
                     .add("parameters", static_cast<std::uint64_t>(plan_.shape.parameter_count()))
                     .add("seed", options_.seed));
    }
    for (int rank = 0; rank < plan_.rank_count; ++rank) {
      if (only_rank_ < 0 || rank == only_rank_) rank_start(rank);
    }
    while (ranks_reap()) {
      if (stop_.sleep_until(now_ns() + kLookGap)) stop_pass_on();
      deadline_keep();
      state_show();
    }
    return finish();
  }

 private:
  /// Speaks for the job: starts all ranks, or the first of them.
  bool is_first() const { return only_rank_ <= 0; }

  // The path and not the link itself, so that the ranks carry the program's name in ps and in every
  // account.
  const std::string program_ = std::filesystem::read_symlink("/proc/self/exe").string();

  void rank_start(int rank) {
    RankPlace place{rank, plan_.rank_count, plan_.gpu_count, board_.fd(), meeting_->directory()};
    std::vector<std::string> words = arguments_;
    words.push_back("--as-rank");
    words.push_back(place_format(place));
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) throw errno_failure("forking a rank");
    if (child == 0) {
      // A launcher that dies takes its ranks with it, however it dies.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      fcntl(board_.fd(), F_SETFD, 0);
      execv(program_.c_str(), pointers.data());
      _exit(127);
    }
    ranks_[static_cast<std::size_t>(rank)].pid = child;
  }

  /// True while ranks run.
  bool ranks_reap() {
    bool running = false;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      RankProcess& one = ranks_[rank];
      if (one.running() && waitpid(one.pid, &one.status, WNOHANG) == one.pid) {
        const pid_t pid = std::exchange(one.pid, -1);
        if (one.failed()) rank_lost(rank, pid);
      }
      running = running || one.running();
    }
    return running;
  }

  /// A rank that only lost the others is an echo; the cause is waited for, and named first when
  /// both are there.
  void rank_lost(std::size_t rank, pid_t pid) {
    const RankProcess& one = ranks_[rank];
    const bool echo = WIFEXITED(one.status) && WEXITSTATUS(one.status) == kPeerLostExit;
    // Survivors notice by themselves within milliseconds; a signal would only make them finish
    // politely.
    if (!failed_) deadline_ns_ = now_ns() + kEndGrace;
    failed_ = true;
    if (killed_ || echo || cause_said_) return;
    cause_said_ = true;
    std::fprintf(stderr, "sluice: sluice-train: rank %zu of %zu (pid %d) %s; ending the job\n",
                 rank, ranks_.size(), pid, ending_text(one.status).c_str());
  }

  void stop_pass_on() {
    if (!stopping_) {
      stopping_ = true;
      deadline_ns_ = now_ns() + kStopGrace;
      ranks_kill(SIGTERM);
    }
    // The signal stays "asked"; without this the loop would not wait between looks.
    sleep_until(now_ns() + kLookGap);
  }

  void deadline_keep() {
    if (deadline_ns_ == 0 || killed_ || now_ns() < deadline_ns_) return;
    killed_ = true;
    if (!cause_said_) {
      std::fprintf(stderr,
                   "sluice: sluice-train: not all ranks ended within %.0f s of %s; killing them\n",
                   seconds_of(failed_ ? kEndGrace : kStopGrace),
                   failed_ ? "the first failure" : "being asked to");
    }
    ranks_kill(SIGKILL);
  }

  void ranks_kill(int signal) {
    for (const RankProcess& one : ranks_) {
      if (one.running()) kill(one.pid, signal);
    }
  }

  std::uint64_t samples() {
    std::uint64_t sum = 0;
    for (int rank = 0; rank < plan_.rank_count; ++rank) sum += board_.line(rank).samples;
    return sum;
  }

  double samples_per_s() {
    const RankLine& line = board_.line(0);
    const Nanos spent = line.end_ns - line.begin_ns;
    return spent > 0 ? static_cast<double>(samples()) / seconds_of(spent) : 0;
  }

  JobFigures figures() {
    std::vector<Nanos> medians;
    for (int rank = 0; rank < plan_.rank_count; ++rank) {
      medians.push_back(board_.line(rank).compute_median_ns);
    }
    const Nanos middle = percentile(medians, 50);
    const Nanos slowest = *std::max_element(medians.begin(), medians.end());
    JobFigures out;
    out.steps = board_.line(0).steps;
    out.samples = samples();
    out.exposed_communication_ns = board_.line(0).communication_ns;
    out.straggler_score =
        middle > 0 ? static_cast<double>(slowest) / static_cast<double>(middle) : 1.0;
    out.rank_count = plan_.rank_count;
    return out;
  }

  void state_show() {
    RankLine& line = board_.line(0);
    if (line.steps == 0) return;
    meeting_->remove();
    progress_.show(text_format("step %llu, loss %.4f, %.0f samples/s",
                               static_cast<unsigned long long>(line.steps.load()), line.loss.load(),
                               samples_per_s()));
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
    return line.collective_ns > 0 ? line.bus_bytes * 1e3 / static_cast<double>(line.collective_ns)
                                  : 0;
  }

  static std::string overlap_text(const RankLine& line) {
    if (line.collective_ns <= 0) return "";
    return text_format(
        "; a step's collectives take %.3f ms of device time, %.3f ms of it exposed (overlap %.1f "
        "%%), busbw %.0f MB/s",
        step_mean_ms(line, line.collective_ns), step_mean_ms(line, line.exposed_ns),
        100 * ReductionTimes::overlap_ratio(line.exposed_ns, line.collective_ns),
        busbw_mb_per_s(line));
  }

  std::string skipped_text(const RankLine& line) const {
    if (options_.precision != Precision::kFp16) return "";
    return text_format("; %llu steps skipped because gradients overflowed",
                       static_cast<unsigned long long>(line.skipped.load()));
  }

  static double step_mean_ms(const RankLine& line, Nanos sum) {
    const std::uint64_t steps = line.steps;
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
    if (failed_ || killed_) return "failed";
    bool stopped = stopping_;
    for (int rank = 0; rank < plan_.rank_count; ++rank) {
      stopped = stopped || board_.line(rank).stopped;
    }
    return stopped ? "stopped" : "ok";
  }

  int finish() {
    RankLine& line = board_.line(0);
    const std::string status = status_text();
    if (!is_first()) return status == "failed" ? 1 : 0;
    log_.write(JsonLine("end")
                   .add("steps", line.steps.load())
                   .add("samples", samples())
                   .add("collective_ns", line.collective_ns.load())
                   .add("exposed_ns", line.exposed_ns.load())
                   .add("overlap_ratio",
                        ReductionTimes::overlap_ratio(line.exposed_ns, line.collective_ns))
                   .add("busbw_mb_per_s", busbw_mb_per_s(line))
                   .add("sent_bytes", line.sent_bytes.load())
                   .add("state_bytes", line.state_bytes.load())
                   .add("bubble", bubble())
                   .add("status", status));
    if (line.steps > 0) reporter_.report(figures(), true);
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
        (overlap_text(line) + bubble_text() + skipped_text(line)).c_str()));
    return 0;
  }

  StopSignal stop_;
  const TrainOptions& options_;
  std::vector<std::string> arguments_;
  const int only_rank_;  // the others are started by somebody else; -1 = all by this launcher
  TrainPlan plan_;
  JobLog log_;
  Progress progress_;
  JobReporter reporter_;
  const std::unique_ptr<Meeting> meeting_;
  BoardMap& board_;
  std::vector<RankProcess> ranks_;
  bool failed_ = false;
  bool cause_said_ = false;
  bool stopping_ = false;
  bool killed_ = false;
  Nanos deadline_ns_ = 0;
};

}  // namespace

int launcher_run(const TrainOptions& options, int argc, char** argv) {
  std::optional<ExternalStart> external;
  if (!options.start_self) external = external_start(getenv);
  if (external && options.rank_count != 0 && options.rank_count != external->rank_count) {
    throw Failure(
        text_format("--nproc %d, but %s starts %d ranks; leave --nproc out, or give "
                    "--start self to start ranks from here",
                    options.rank_count, external->by.c_str(), external->rank_count));
  }
  const int gpu_count = gpus_count();
  const int rank_count = external             ? external->rank_count
                         : options.rank_count ? options.rank_count
                                              : gpu_count;
  feed_verify(options, rank_count);
  return Launcher(options, argc, argv, rank_count, gpu_count, external).run();
}

}  // namespace sluice::train
