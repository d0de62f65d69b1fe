// sluice-lab: runs the contrast between shared and exclusive on whatever is here, and reports it.
// `sluice lab` executes it.
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "config/reader/command_line_fault.h"
#include "trainer/lab/report.h"
#include "trainer/lab/runner.h"

namespace {

using namespace sluice::lab;
namespace fs = std::filesystem;

volatile bool stop_requested = false;
void stop_handler(int) { stop_requested = true; }

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

struct Options {
  int soft = 0;
  std::string out;
  std::string scenes;
  Settings settings;
};

std::string time_text(const char* pattern) {
  const time_t now = time(nullptr);
  tm local{};
  localtime_r(&now, &local);
  char text[64];
  strftime(text, sizeof text, pattern, &local);
  return text;
}

// One line that is rewritten in place on a terminal, and a plain line per scene elsewhere.
class ProgressLine {
 public:
  ProgressLine() : terminal_(isatty(STDERR_FILENO) == 1) {}
  void show(std::size_t scene, std::size_t count, const std::string& name, const std::string& what,
            double fraction) {
    if (!terminal_ && name == last_) return;
    last_ = name;
    if (!terminal_) {
      std::fprintf(stderr, "scene %zu/%zu %s\n", scene, count, name.c_str());
      return;
    }
    constexpr int kWidth = 30;
    const int filled = static_cast<int>(fraction * kWidth);
    std::string bar(static_cast<std::size_t>(filled), '#');
    bar.resize(kWidth, '.');
    std::fprintf(stderr, "\r\033[Kscene %zu/%zu %-16s [%s] %3.0f %%  %s", scene, count,
                 name.c_str(), bar.c_str(), fraction * 100, what.c_str());
  }
  ~ProgressLine() {
    if (terminal_) std::fprintf(stderr, "\r\033[K");
  }

 private:
  bool terminal_;
  std::string last_;
};

bool options_read(int argc, char** argv, Options* options, int* exit_code) {
  CLI::App app{
      "Runs the same training, inference and debug jobs exclusively, with no control, under "
      "Sluice's quotas, and segregated,\n"
      "and shows what each costs the others: a table, results.json and report.html with plots.\n"
      "About three minutes with the defaults. Uses the GPUs of this machine, or software GPUs "
      "where there are none.",
      "sluice lab"};
  Settings& s = options->settings;
  app.add_option("--soft", options->soft, "force that many software GPUs")
      ->check(CLI::Range(1, kSoftwareGpusMax));
  app.add_option("--seconds", s.seconds, "measured window of each scene")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
  app.add_option("--seed", s.seed, "seed of arrivals, planted failures and weights")
      ->capture_default_str();
  app.add_option("--out", options->out, "result directory (default: lab-results/<time>)");
  app.add_option(
      "--scenes", options->scenes,
      "only these, comma-separated: inference-alone, exclusive, uncontrolled, quota, segregated");
  app.add_option("--data", s.data, "training data: fashion-mnist, or synthetic")
      ->check(CLI::IsMember({"fashion-mnist", "synthetic"}))
      ->capture_default_str();
  app.add_option("--rate", s.request_rate_per_s, "requests per second of each inference service")
      ->check(CLI::PositiveNumber);
  app.add_option("--objective", s.objective_ms,
                 "a request is in time within this many milliseconds")
      ->check(CLI::PositiveNumber);
  app.add_option("--debug-rate", s.debug_rate_per_s, "debug jobs per second")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", s.batch, "training batch per rank")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--hidden", s.hidden, "hidden units of the trained network")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--config", s.config,
                 "a sluice.toml for the broker of the lab: try another policy")
      ->check(CLI::ExistingFile);
  app.footer(
      "sluice lab list | run | report | compare: experiments with predictions, intervals and "
      "verdicts\n"
      "exit codes: 0, 1 a scene failed or was stopped, 2 wrong usage");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {
      *exit_code = app.exit(e);
      return false;
    }
    std::fprintf(stderr, "sluice: %s; see sluice lab --help\n",
                 sluice::config::command_line_fault(app, e).c_str());
    *exit_code = 2;
    return false;
  }
  return true;
}

// Figures that differ between a software GPU (tens of millions of warp instructions a second) and a
// real one.
void settings_fit(const Machine& machine, Settings& s) {
  if (s.request_rate_per_s == 0) s.request_rate_per_s = machine.software ? 25 : 200;
  if (s.objective_ms == 0) s.objective_ms = machine.software ? 40 : 20;
  s.memory_bytes = machine.software ? 256 * kMiB : 4096 * kMiB;
}

bool scene_chosen(const std::string& list, const std::string& name) {
  if (list.empty()) return true;
  std::stringstream names(list);
  for (std::string one; std::getline(names, one, ',');) {
    if (one == name) return true;
  }
  return false;
}

bool file_write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) std::fprintf(stderr, "sluice: cannot write %s\n", path.c_str());
  return static_cast<bool>(file);
}

bool scenes_check(const std::string& list, const std::vector<ScenePlan>& plans) {
  std::stringstream names(list);
  for (std::string one; std::getline(names, one, ',');) {
    bool known = false;
    std::string all;
    for (const ScenePlan& plan : plans) {
      known = known || plan.name == one;
      all += " " + plan.name;
    }
    if (!known) {
      std::fprintf(stderr,
                   "sluice: there is no scene '%s' on this machine's GPUs (some need two or more); "
                   "there are:%s\n",
                   one.c_str(), all.c_str());
      return false;
    }
  }
  return true;
}

int lab_run(Options& options) {
  LabRun run;
  std::vector<std::string> problems;
  run.started = time_text("%Y-%m-%dT%H:%M:%S%z");
  run.machine = machine_find(options.soft, &run.notes, &problems);
  for (const std::string& note : run.notes) std::fprintf(stderr, "sluice: %s\n", note.c_str());
  for (const std::string& problem : problems) std::fprintf(stderr, "sluice: %s\n", problem.c_str());
  if (!problems.empty()) return 1;
  settings_fit(run.machine, options.settings);
  run.settings = options.settings;

  std::string note;
  std::vector<ScenePlan> plans =
      scenes_plan(run.settings, static_cast<int>(run.machine.gpu_names.size()), &note);
  if (!scenes_check(options.scenes, plans)) return 2;
  if (options.scenes.empty() && !note.empty()) run.notes.push_back(note);
  std::erase_if(plans,
                [&](const ScenePlan& plan) { return !scene_chosen(options.scenes, plan.name); });
  const std::string out =
      fs::absolute(options.out.empty() ? "lab-results/" + time_text("%Y%m%d-%H%M%S") : options.out)
          .string();
  std::error_code error;
  fs::create_directories(out, error);
  if (error) {
    std::fprintf(stderr, "sluice: cannot create %s: %s; choose another place with --out\n",
                 out.c_str(), error.message().c_str());
    return 1;
  }
  {
    ProgressLine line;
    for (std::size_t i = 0; i < plans.size() && !stop_requested; ++i) {
      run.scenes.push_back(
          scene_run(run.machine, run.settings, plans[i], out + "/raw/" + plans[i].name,
                    stop_requested, [&](const std::string& what, double fraction) {
                      line.show(i + 1, plans.size(), plans[i].name, what, fraction);
                    }));
    }
  }
  const bool written = file_write(out + "/results.json", json_format(run)) &&
                       file_write(out + "/report.html", html_format(run));
  std::printf("\n%s\n%s/results.json\n%s/report.html\n", table_format(run).c_str(), out.c_str(),
              out.c_str());
  bool failed = !written || stop_requested;
  for (const SceneResult& scene : run.scenes) failed = failed || !scene.problem.empty();
  return failed ? 1 : 0;
}

/// Becomes sluice-experiments with these arguments. Returns if it cannot.
int experiments_execute(char** argv) {
  const std::string program =
      fs::read_symlink("/proc/self/exe").parent_path() / "sluice-experiments";
  argv[0] = const_cast<char*>("sluice lab");
  execv(program.c_str(), argv);
  std::fprintf(stderr, "sluice: cannot run %s: %s\n", program.c_str(), std::strerror(errno));
  return 1;
}

bool is_experiments_word(const std::string& word) {
  return word == "list" || word == "run" || word == "report" || word == "compare";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && is_experiments_word(argv[1])) return experiments_execute(argv);
  Options options;
  int exit_code = 0;
  if (!options_read(argc, argv, &options, &exit_code)) return exit_code;
  struct sigaction action {};
  action.sa_handler = stop_handler;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return lab_run(options);
}
