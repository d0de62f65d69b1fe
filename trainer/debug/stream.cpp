// See stream.h. This process must not touch CUDA: it forks.
#include "trainer/debug/stream.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "trainer/base/failure.h"
#include "trainer/base/random.h"
#include "trainer/job/log.h"
#include "trainer/job/progress.h"
#include "trainer/job/statistics.h"
#include "trainer/job/stop.h"

namespace sluice::train {
namespace {

constexpr std::uint64_t kStreamPurpose = 0x73747265;
constexpr Nanos kStopLookGap = 50 * kNanosPerMilli;  // between looks whether we are asked to stop
constexpr std::size_t kSaidMax = 4096;               // bytes kept of what a job says
constexpr Nanos kNeverNs = std::numeric_limits<Nanos>::max();

/// One job as its watcher sees it.
struct WatchedJob {
  std::uint64_t seed = 0;
  DebugPlan plan;
  Nanos due_ns = 0;  // scheduled start
  pid_t pid = -1;    // while it runs
  int output = -1;
  std::string said;
  Nanos first_result_ns = 0;
  Nanos ended_ns = 0;
  Nanos kill_ns = kNeverNs;
  bool stuck = false;  // killed though it should have ended by itself
  int status = 0;      // as a shell says it: 128 + signal

  bool running() const { return pid > 0; }
  bool ended() const { return ended_ns > 0; }
  bool as_planned() const {
    if (stuck || !ended()) return false;
    switch (plan.outcome) {
      case DebugOutcome::kOk:
        return status == 0;
      case DebugOutcome::kFail:
        return status == 1;
      case DebugOutcome::kCrash:
        return status == 128 + SIGABRT;
      case DebugOutcome::kKill:
      case DebugOutcome::kLoop:
        return status == 128 + SIGKILL;
    }
    return false;
  }
};

class JobStream {
 public:
  explicit JobStream(const DebugOptions& options)
      : options_(options),
        log_(options.log, JobLog::Open::kFresh),
        progress_(options.quiet),
        begin_ns_(now_ns()) {
    Random random(options.seed, kStreamPurpose);
    double at_s = 0;
    for (int i = 0; i < options.jobs; ++i) {
      WatchedJob job;
      at_s += random.exponential(1.0 / options.rate_per_s);
      job.seed = random.next() >> 16;
      job.plan = options.plan(job.seed);
      job.due_ns = begin_ns_ + nanos_of_seconds(at_s);
      jobs_.push_back(std::move(job));
    }
  }
  ~JobStream() {
    for (WatchedJob& job : jobs_) {
      if (!job.running()) continue;
      kill(job.pid, SIGKILL);
      waitpid(job.pid, nullptr, 0);
      close(job.output);
    }
  }
  JobStream(const JobStream&) = delete;
  JobStream& operator=(const JobStream&) = delete;

  int run() {
    log_.write(JsonLine("start", begin_ns_)
                   .add("jobs", options_.jobs)
                   .add("rate", options_.rate_per_s)
                   .add("seed", options_.seed));
    while (started_ < jobs_.size() || running_count() > 0) {
      if (stop_.asked()) break;
      for (; started_ < jobs_.size() && now_ns() >= jobs_[started_].due_ns; ++started_) {
        job_start(jobs_[started_]);
      }
      overdue_kill();
      output_await();
      progress_.show(text_format("%zu of %zu jobs started, %zu running", started_, jobs_.size(),
                                 running_count()));
    }
    report();
    return 0;
  }

 private:
  std::size_t running_count() const {
    return static_cast<std::size_t>(std::count_if(
        jobs_.begin(), jobs_.end(), [](const WatchedJob& job) { return job.running(); }));
  }

  std::vector<std::string> command_of(const WatchedJob& job) const {
    const DebugMix& mix = options_.mix;
    return {program_,
            "--seed",
            std::to_string(job.seed),
            "--outcome",
            outcome_name(job.plan.outcome),
            "--life-median",
            text_format("%.17g", mix.life_median_s),
            "--life-sigma",
            text_format("%.17g", mix.life_sigma),
            "--busy",
            text_format("%.17g,%.17g", mix.busy_low, mix.busy_high),
            "--elements",
            std::to_string(options_.elements)};
  }

  void job_start(WatchedJob& job) {
    std::vector<std::string> words = command_of(job);
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw errno_failure("making a pipe");
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) throw errno_failure("forking a job");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody would end the loops
      if (getppid() != parent) _exit(1);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execv(program_.c_str(), pointers.data());
      _exit(127);
    }
    close(ends[1]);
    job.pid = child;
    job.output = ends[0];
    const bool loops = job.plan.outcome == DebugOutcome::kLoop;
    job.kill_ns = now_ns() + job.plan.life_ns + (loops ? 0 : nanos_of_seconds(options_.patience_s));
  }

  /// Who hangs is killed by whoever started it: a loop at the end of its life.
  void overdue_kill() {
    for (WatchedJob& job : jobs_) {
      if (!job.running() || now_ns() < job.kill_ns) continue;
      job.stuck = job.plan.outcome != DebugOutcome::kLoop;
      job.kill_ns = kNeverNs;
      kill(job.pid, SIGKILL);
    }
  }

  /// Waits for output, an end, the next start or the next kill, whichever comes first.
  void output_await() {
    std::vector<pollfd> polls;
    std::vector<WatchedJob*> watched;
    const Nanos now = now_ns();
    Nanos wake = now + kStopLookGap;
    if (started_ < jobs_.size()) wake = std::min(wake, jobs_[started_].due_ns);
    for (WatchedJob& job : jobs_) {
      if (!job.running()) continue;
      wake = std::min(wake, job.kill_ns);
      polls.push_back({job.output, POLLIN, 0});
      watched.push_back(&job);
    }
    const timespec timeout = timespec_of(std::max<Nanos>(0, wake - now));
    if (ppoll(polls.data(), polls.size(), &timeout, nullptr) <= 0) return;
    for (std::size_t i = 0; i < polls.size(); ++i) {
      if (polls[i].revents != 0) output_read(*watched[i]);
    }
  }

  void output_read(WatchedJob& job) {
    char buffer[1024];
    const ssize_t got = read(job.output, buffer, sizeof buffer);
    if (got > 0) {
      const std::size_t room = kSaidMax - std::min(kSaidMax, job.said.size());
      job.said.append(buffer, std::min(static_cast<std::size_t>(got), room));
      if (job.first_result_ns == 0 && job.said.find("first result: ") != std::string::npos) {
        job.first_result_ns = now_ns();
      }
      return;
    }
    close(job.output);
    int status = 0;
    waitpid(std::exchange(job.pid, -1), &status, 0);
    job.ended_ns = now_ns();
    job.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    job_tell(job);
  }

  void job_tell(const WatchedJob& job) {
    JsonLine line("job", job.ended_ns);
    line.add("id", static_cast<std::uint64_t>(&job - jobs_.data()))
        .add("seed", job.seed)
        .add("outcome", outcome_name(job.plan.outcome))
        .add("planned_life_ns", job.plan.life_ns)
        .add("due_ns", job.due_ns)
        .add("ended_ns", job.ended_ns)
        .add("exit_status", job.status)
        .add("as_planned", job.as_planned() ? 1 : 0);
    if (job.first_result_ns > 0) line.add("first_result_ns", job.first_result_ns);
    if (!job.as_planned()) line.add("said", job.said);
    log_.write(line);
  }

  void report() {
    std::array<int, kOutcomes> outcomes{};
    std::vector<Nanos> first, lives;
    std::size_t ended = 0, strange = 0;
    for (const WatchedJob& job : jobs_) {
      // From the scheduled start: a watcher that falls behind is charged to the job.
      if (job.first_result_ns > 0) first.push_back(job.first_result_ns - job.due_ns);
      if (!job.ended()) continue;
      ++ended;
      lives.push_back(job.ended_ns - job.due_ns);
      strange += job.as_planned() ? 0 : 1;
      ++outcomes[static_cast<std::size_t>(job.plan.outcome)];
    }
    const bool stopped = ended < jobs_.size();
    JsonLine line("end");
    line.add("jobs", static_cast<std::uint64_t>(ended));
    std::string mix;
    for (std::size_t i = 0; i < kOutcomes; ++i) {
      const char* name = outcome_name(static_cast<DebugOutcome>(i));
      line.add(name, outcomes[i]);
      mix += text_format("%s%d %s", mix.empty() ? "" : ", ", outcomes[i], name);
    }
    log_.write(line.add("not_as_planned", static_cast<std::uint64_t>(strange))
                   .add("with_result", static_cast<std::uint64_t>(first.size()))
                   .add("first_result_p50_ns", percentile(first, 50))
                   .add("first_result_p95_ns", percentile(first, 95))
                   .add("life_p50_ns", percentile(lives, 50))
                   .add("status", stopped ? "stopped" : "ok"));
    progress_.say(text_format(
        "%s: %zu jobs in %.1f s (planned: %s; %zu ended otherwise); time to first result p50 %.0f "
        "ms, p95 %.0f ms (%zu had one); life p50 %.2f s",
        stopped ? "stopped" : "done", ended, seconds_of(now_ns() - begin_ns_), mix.c_str(), strange,
        millis_of(percentile(first, 50)), millis_of(percentile(first, 95)), first.size(),
        seconds_of(percentile(lives, 50))));
  }

  StopSignal stop_;
  const DebugOptions& options_;
  JobLog log_;
  Progress progress_;
  // The path and not the link itself, so that jobs carry the program's name in ps.
  const std::string program_ = std::filesystem::read_symlink("/proc/self/exe").string();
  const Nanos begin_ns_;
  std::vector<WatchedJob> jobs_;
  std::size_t started_ = 0;
};

}  // namespace

int stream_run(const DebugOptions& options) { return JobStream(options).run(); }

}  // namespace sluice::train
