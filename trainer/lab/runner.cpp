#include "trainer/lab/runner.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "broker/protocol/question.h"
#include "trainer/lab/usage.h"
#include "trainer/lab/utilization.h"

namespace sluice::lab {
namespace {

namespace fs = std::filesystem;

constexpr int kReadyTimeoutMs = 30'000;
constexpr int kEndGraceMs = 5'000;
// After the window the training still evaluates what it has learned, undisturbed by the others.
constexpr int kEvaluationTimeoutMs = 40'000;
constexpr double kTrainingMarginSeconds = 1.5;
constexpr std::size_t kDebugJobsAtOnceMax = 4;
constexpr std::int64_t kKillAfterMs = 1'500;
constexpr std::int64_t kLookEveryNs = 100'000'000;  // at the broker's account

struct DebugChild {
  Child child;
  std::size_t run = 0;  // index into JobResult::debug
  std::string log;
  std::optional<std::int64_t> kill_at_ns;
};

// One scene on its way. Members in the order in which they must be destroyed last: children before
// the segments.
class Scene {
 public:
  Scene(const Machine& machine, const Settings& settings, const ScenePlan& plan,
        std::string directory, const volatile bool& stop, const Progress& progress)
      : machine_(machine),
        settings_(settings),
        directory_(std::move(directory)),
        stop_(stop),
        progress_(progress),
        random_(settings.seed) {
    result_.plan = plan;
    for (const JobPlan& job : plan.jobs) {
      result_.jobs.emplace_back();
      result_.jobs.back().plan = job;
    }
    children_.resize(plan.jobs.size());
  }
  ~Scene() {
    debug_children_.clear();
    children_.clear();
    broker_end();
    std::error_code ignored;
    if (!segment_dir_.empty()) fs::remove_all(segment_dir_, ignored);
  }

  SceneResult run() {
    if (!prepare() || !broker_start() || !inference_start() || !training_start())
      return std::move(result_);
    window_run();
    finish();
    return std::move(result_);
  }

 private:
  bool fail(const std::string& problem) {
    if (result_.problem.empty()) result_.problem = stop_ ? "interrupted" : problem;
    return false;
  }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  bool prepare() {
    std::error_code error;
    fs::create_directories(directory_, error);
    if (error) return fail("cannot create " + directory_ + ": " + error.message());
    if (machine_.software) {
      const char* base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
      std::string pattern = std::string(base) + "/sluice-lab-XXXXXX";
      if (mkdtemp(pattern.data()) == nullptr)
        return fail("cannot make a directory for the software GPUs under " + std::string(base));
      segment_dir_ = pattern;
      // Touching the devices once makes their segments with this scene's settings.
      std::string raw;
      if (!accounts_now(machine_, segment_dir_, &raw))
        return fail("softgpu-ctl accounts failed; is lib/softgpu whole?");
    }
    return true;
  }

  Command command(std::vector<std::string> argv, const std::string& log) const {
    Command c;
    c.argv = std::move(argv);
    c.set = gpu_environment(machine_, segment_dir_);
    c.unset = {"SLUICE_TENANT", "SLUICE_TENANT_LIMITS", "SLUICE_SOCKET", "LD_PRELOAD"};
    c.output_path = path(log);
    return c;
  }

  bool broker_start() {
    if (result_.plan.control != Control::kSluice) return true;
    char pattern[] = "/tmp/sluice-lab-XXXXXX";
    if (mkdtemp(pattern) == nullptr)
      return fail("cannot make a directory for the broker's socket under /tmp");
    socket_dir_.assign(pattern);
    socket_ = socket_dir_ + "/sluiced.sock";
    std::string error;
    std::vector<std::string> argv = {machine_.paths.program("sluiced"), "--socket", socket_};
    if (!settings_.config.empty()) argv.insert(argv.end(), {"--config", settings_.config});
    broker_ = Child::start(command(std::move(argv), "sluiced.log"), &error);
    if (!broker_) return fail(error);
    const std::int64_t deadline = now_ns() + std::int64_t{kReadyTimeoutMs} * 1'000'000;
    while (now_ns() < deadline && !stop_ && !broker_->poll()) {
      long owner = 0;
      const int fd = protocol::broker_connect(socket_.c_str(), -1, &owner);
      if (fd >= 0) {
        close(fd);
        return true;
      }
      sleep_ms(20);
    }
    return fail("sluiced did not come up; see " + path("sluiced.log"));
  }

  // The command line of a job: as it is, or behind `sluice run` with its vGPU.
  Command job_command(const JobPlan& plan, std::vector<std::string> argv, const std::string& log,
                      const std::vector<int>& gpus) const {
    if (result_.plan.control == Control::kNone) {
      Command c = command(std::move(argv), log);
      std::string visible;
      for (const int gpu : gpus) visible += (visible.empty() ? "" : ",") + std::to_string(gpu);
      c.set["CUDA_VISIBLE_DEVICES"] = visible;
      return c;
    }
    std::vector<std::string> full = {machine_.paths.program("sluice"),
                                     "run",
                                     "--socket",
                                     socket_,
                                     "--name",
                                     plan.name,
                                     "--class",
                                     plan.tenant_class};
    if (plan.tenant_class != "exclusive") {
      full.insert(full.end(), {"--memory", std::to_string(settings_.memory_bytes) + "B"});
      // Debug jobs come and go, several at a time: none of them waits for a share.
      const char* share = plan.tenant_class == "debug" ? "--weight" : "--sm";
      if (plan.sm_percent) full.insert(full.end(), {share, std::to_string(*plan.sm_percent)});
    }
    full.insert(full.end(), {"--gpus", std::to_string(gpus.size())});
    for (const int gpu : gpus) full.insert(full.end(), {"--gpu", std::to_string(gpu)});
    full.push_back("--");
    full.insert(full.end(), argv.begin(), argv.end());
    return command(std::move(full), log);
  }

  bool job_start(std::size_t index, std::vector<std::string> argv) {
    const JobPlan& plan = result_.jobs[index].plan;
    std::string error;
    auto child =
        Child::start(job_command(plan, std::move(argv), plan.name + ".out", plan.gpus), &error);
    if (!child) return fail(error);
    result_.jobs[index].pids.push_back(child->pid());
    children_[index] = std::move(child);
    return true;
  }

  bool event_await(std::size_t index, const std::string& event) {
    const std::string log = path(result_.jobs[index].plan.name + ".jsonl");
    const std::int64_t deadline = now_ns() + std::int64_t{kReadyTimeoutMs} * 1'000'000;
    while (now_ns() < deadline && !stop_) {
      if (log_has_event(log, event)) return true;
      if (children_[index]->poll()) break;
      sleep_ms(20);
    }
    const std::string& name = result_.jobs[index].plan.name;
    return fail(name + " did not get as far as its '" + event + "' record; see " +
                path(name + ".out"));
  }

  bool inference_start() {
    progress_("starting", 0.0);
    std::uint64_t number = 0;  // the same job sends the same requests in every scene
    for (std::size_t i = 0; i < result_.jobs.size(); ++i) {
      const JobPlan& plan = result_.jobs[i].plan;
      if (plan.kind != JobKind::kInference) continue;
      const std::string log = path(plan.name + ".jsonl");
      if (!job_start(
              i, {machine_.paths.program("sluice-infer"), "--rate", std::to_string(plan.rate_per_s),
                  "--seconds", std::to_string(settings_.seconds + 120), "--seed",
                  std::to_string(settings_.seed * 1000 + number++), "--hidden",
                  std::to_string(settings_.inference_hidden), "--slo-ms",
                  std::to_string(settings_.objective_ms), "--log", log})) {
        return false;
      }
      if (!event_await(i, "ready")) return false;
    }
    return true;
  }

  bool training_start() {
    for (std::size_t i = 0; i < result_.jobs.size(); ++i) {
      const JobPlan& plan = result_.jobs[i].plan;
      if (plan.kind != JobKind::kTraining) continue;
      std::vector<std::string> argv = {
          machine_.paths.program("sluice-train"), "--nproc", std::to_string(plan.gpus.size()),
          // A thread more would compete with software GPUs for cores.
          "--prefetch", machine_.software ? "0" : "2", "--batch", std::to_string(plan.batch),
          "--hidden", std::to_string(settings_.hidden), "--seconds",
          std::to_string(settings_.seconds + kTrainingMarginSeconds), "--seed",
          std::to_string(settings_.seed), "--data", settings_.data, "--eval-samples", "2000",
          "--quiet", "--log", path(plan.name + ".jsonl")};
      if (!job_start(i, std::move(argv)) || !event_await(i, "step")) return false;
    }
    return true;
  }

  void debug_launch(std::size_t index) {
    JobResult& job = result_.jobs[index];
    const std::size_t number = job.debug.size();
    // Most runs of a student work, some fail, some are killed when they hang.
    const double draw = std::uniform_real_distribution<double>(0, 1)(random_);
    const std::string planned = draw < 0.6 ? "ok" : draw < 0.8 ? "fail" : "killed";
    const int gpu = job.plan.gpus[number % job.plan.gpus.size()];
    const std::string name = "debug-" + std::to_string(number);
    const std::string log = path(name + ".jsonl");
    std::vector<std::string> argv = {machine_.paths.program("sluice-debug"),
                                     "--kernels",
                                     "40",
                                     "--elements",
                                     "400000",
                                     "--gap-ms",
                                     "15",
                                     "--outcome",
                                     planned == "killed" ? "loop" : planned,
                                     "--seed",
                                     std::to_string(settings_.seed * 1000 + number),
                                     "--log",
                                     log};
    std::string error;
    auto child = Child::start(job_command(job.plan, std::move(argv), name + ".out", {gpu}), &error);
    if (!child) {
      fail(error);
      return;
    }
    job.debug.push_back({child->started_ns(), std::nullopt, planned, std::nullopt});
    job.pids.push_back(child->pid());
    debug_children_.push_back({std::move(*child), number, log, std::nullopt});
  }

  // Looks after the debug jobs: kills those planned to be killed once they have run a while, reaps
  // the ended.
  void debug_tend(std::size_t index) {
    JobResult& job = result_.jobs[index];
    for (DebugChild& d : debug_children_) {
      DebugRun& run = job.debug[d.run];
      if (!run.first_result_ns) run.first_result_ns = debug_log_first_result(d.log);
      if (run.planned == "killed" && run.first_result_ns && !d.kill_at_ns)
        d.kill_at_ns = now_ns() + kKillAfterMs * 1'000'000;
      if (d.kill_at_ns && now_ns() >= *d.kill_at_ns) d.child.signal(SIGKILL);
      run.exit_status = d.child.poll();
    }
    std::erase_if(debug_children_, [](DebugChild& d) { return d.child.poll().has_value(); });
  }

  void window_run() {
    std::string raw;
    const auto before = accounts_now(machine_, segment_dir_, &raw);
    UsageMeter meter;
    broker_look(meter);
    std::unique_ptr<UtilizationSampler> sampler;
    if (!machine_.software) sampler = std::make_unique<UtilizationSampler>();
    write_text("accounts-begin.json", raw);
    Window& window = result_.window;
    window.begin_ns = now_ns();
    const std::int64_t end = window.begin_ns + static_cast<std::int64_t>(settings_.seconds * 1e9);
    const auto debug_job =
        std::find_if(result_.jobs.begin(), result_.jobs.end(),
                     [](const JobResult& j) { return j.plan.kind == JobKind::kDebug; });
    const bool has_debug = debug_job != result_.jobs.end();
    const std::size_t debug_index = static_cast<std::size_t>(debug_job - result_.jobs.begin());
    std::exponential_distribution<double> gap(has_debug ? debug_job->plan.rate_per_s : 1.0);
    std::int64_t next_debug = window.begin_ns + static_cast<std::int64_t>(gap(random_) * 1e9);
    std::int64_t next_look = window.begin_ns;
    while (now_ns() < end && !stop_ && result_.problem.empty()) {
      if (now_ns() >= next_look) {
        broker_look(meter);
        next_look += kLookEveryNs;
      }
      progress_("running", static_cast<double>(now_ns() - window.begin_ns) /
                               static_cast<double>(end - window.begin_ns));
      if (has_debug) debug_tend(debug_index);
      if (has_debug && now_ns() >= next_debug) {
        next_debug += static_cast<std::int64_t>(gap(random_) * 1e9);
        if (debug_children_.size() < kDebugJobsAtOnceMax) debug_launch(debug_index);
      }
      children_check();
      sleep_ms(10);
    }
    if (stop_) fail("interrupted");
    window.end_ns = now_ns();
    const auto after = accounts_now(machine_, segment_dir_, &raw);
    write_text("accounts-end.json", raw);
    if (before && after) device_use_take(accounts_difference(*before, *after));
    if (sampler) result_.gpus = sampler->stop();
    broker_look(meter);
    broker_use_take(meter);
    if (has_debug) debug_tend(debug_index);
    debug_children_.clear();
  }

  void children_check() {
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (!children_[i] || !children_[i]->poll()) continue;
      const JobResult& job = result_.jobs[i];
      // A training that reaches its own end early would leave the window half empty.
      fail(job.plan.name + " ended with status " + std::to_string(*children_[i]->poll()) +
           " before the window did; see " + path(job.plan.name + ".out"));
    }
  }

  void device_use_take(const std::vector<DeviceAccount>& devices) {
    for (const DeviceAccount& d : devices) result_.gpus.push_back({d.busy_s, d.lag_s, d.elapsed_s});
    for (JobResult& job : result_.jobs) {
      job.gpu_seconds.assign(devices.size(), 0.0);
      for (std::size_t g = 0; g < devices.size(); ++g) {
        for (const auto& [pid, use] : devices[g].processes) {
          const bool own = std::find(job.pids.begin(), job.pids.end(), pid) != job.pids.end();
          // The ranks are children of the launcher; there is one training in a scene, so its name
          // tells.
          const bool rank =
              job.plan.kind == JobKind::kTraining && use.name.rfind("sluice-train", 0) == 0;
          if (own || rank) *job.gpu_seconds[g] += use.busy_s;
        }
      }
    }
  }

  // Asks the broker for its account, and keeps what it said.
  void broker_look(UsageMeter& meter) {
    const std::optional<Usage> now = usage_read(socket_);
    if (now) std::ofstream(path("broker.jsonl"), std::ios::app) << usage_format(*now) << '\n';
    meter.look(now);
  }

  // What the broker granted, everywhere; what was used, where no device account says it (real
  // GPUs). An exclusive lease is not metered, but then the GPU is nobody else's.
  void broker_use_take(const UsageMeter& meter) {
    if (meter.empty()) return;
    for (JobResult& job : result_.jobs) {
      if (!machine_.software) job.gpu_seconds.clear();
      for (std::size_t g = 0; g < meter.gpu_count(); ++g) {
        const TenantUse use = meter.use(job.plan.name, g);
        job.leases.push_back(use);
        if (machine_.software) continue;
        if (job.plan.tenant_class == "exclusive") {
          job.gpu_seconds.push_back(g < result_.gpus.size() ? std::optional(result_.gpus[g].busy_s)
                                                            : std::nullopt);
        } else {
          job.gpu_seconds.push_back(use.busy_s);
        }
      }
    }
  }

  void finish() {
    progress_("evaluating", 1.0);
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (!children_[i] || result_.jobs[i].plan.kind == JobKind::kTraining) continue;
      result_.jobs[i].had_to_be_killed = !children_[i]->end(kEndGraceMs);
      result_.jobs[i].exit_status = children_[i]->poll();
    }
    for (std::size_t i = 0; i < children_.size(); ++i) {
      JobResult& job = result_.jobs[i];
      if (job.plan.kind == JobKind::kTraining && children_[i]) {
        if (!stop_) children_[i]->wait(kEvaluationTimeoutMs);
        job.had_to_be_killed = !children_[i]->end(kEndGraceMs);
        job.exit_status = children_[i]->poll();
        if (job.exit_status != 0)
          fail("training ended with status " + std::to_string(job.exit_status.value_or(-1)) +
               "; see " + path(job.plan.name + ".out"));
      }
      const std::string log = path(job.plan.name + ".jsonl");
      if (job.plan.kind == JobKind::kTraining) job.training = training_log_read(log);
      if (job.plan.kind == JobKind::kInference) job.inference = inference_log_read(log);
    }
    broker_end();
  }

  void broker_end() {
    if (broker_) broker_->end(kEndGraceMs);
    std::error_code ignored;
    if (!socket_dir_.empty()) fs::remove_all(socket_dir_, ignored);
  }

  void write_text(const std::string& name, const std::string& text) const {
    if (!text.empty()) std::ofstream(path(name)) << text;
  }

  const Machine& machine_;
  const Settings& settings_;
  std::string directory_;
  const volatile bool& stop_;
  const Progress& progress_;
  std::mt19937_64 random_;
  std::string segment_dir_, socket_dir_, socket_;
  SceneResult result_;
  std::optional<Child> broker_;
  std::vector<std::optional<Child>> children_;  // by job; debug jobs have their own list
  std::vector<DebugChild> debug_children_;
};

}  // namespace

SceneResult scene_run(const Machine& machine, const Settings& settings, const ScenePlan& plan,
                      const std::string& directory, const volatile bool& stop,
                      const Progress& progress) {
  return Scene(machine, settings, plan, directory, stop, progress).run();
}

}  // namespace sluice::lab
