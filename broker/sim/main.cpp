// sluice-sim: runs one named scenario of the simulator, or jobs of a file, and prints what came of
// it.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/sim/jobs.h"
#include "broker/sim/packing.h"
#include "broker/sim/report.h"
#include "broker/sim/scenarios.h"
#include "broker/sim/shares.h"

namespace {

constexpr int kUsageExit = 2;

void usage_print() {
  std::printf(
      "usage: sluice-sim [--scenario NAME | --jobs FILE] [--seed N] [--seconds S]\n"
      "                  [--quantum MS] [--policy NAME] [--sm-mode MODE] [--json]\n"
      "       sluice-sim --shares [--seed N] [--policy NAME] [--sm-mode MODE]\n"
      "       sluice-sim --pods FILE [--gpus N] [--runs N] [--seed N]\n"
      "\n"
      "Runs the broker's core over a model of GPUs and programs in virtual time. The same seed\n"
      "gives the same run.\n"
      "\n"
      "  --scenario NAME  what to run (default shares-50-50); see below\n"
      "  --jobs FILE      jobs of your own, as JSON: {\"jobs\": [{\"name\": \"serve\",\n"
      "                   \"class\": \"inference\", \"percent\": 40, \"program\": \"requests\",\n"
      "                   \"kernel_us\": 1000, \"kernels\": 10, \"gap_us\": 30000}, {\"percent\": "
      "30,\n"
      "                   \"program\": \"loop\", \"kernel_us\": 5000}]}. Other programs: bursts\n"
      "                   (kernels, pause_us), graphs (kernels), sync, and training (gpus, "
      "kernels,\n"
      "                   collective_us, host_us), a gang. Other keys of a job: \"weight\": true,\n"
      "                   \"gpu\": INDEX, \"jitter_percent\"; beside \"jobs\": \"gpus\", "
      "\"window_ms\",\n"
      "                   \"busy_host\": true\n"
      "  --seed N         seed of everything random (default 1)\n"
      "  --seconds S      length of virtual time instead of the scenario's own\n"
      "  --json           JSON instead of a table\n"
      "  --shares         instead of a scenario: the table of shares, for every split and kind of\n"
      "                   program\n"
      "  --quantum MS     instead of the scenario's own\n"
      "  --policy NAME    fair, round-robin or fifo instead of the scenario's own\n"
      "  --sm-mode MODE   of all jobs, instead of their own: best-effort, equal or fixed\n"
      "  --pods FILE      instead of a scenario: how full each rule of placement gets a machine "
      "with\n"
      "                   requests drawn from FILE, a table with the columns num_gpu and "
      "gpu_milli\n"
      "                   (1000 = a whole GPU), as in Alibaba's cluster-trace-gpu-v2023\n"
      "  --gpus N         GPUs of that machine (1 to 64, default 8)\n"
      "  --runs N         with so many seeds (1 to 100000, default 200)\n"
      "\nscenarios:\n");
  for (const auto& scenario : sluice::sim::scenarios())
    std::printf("  %-19s %s\n", scenario.name, scenario.what);
}

constexpr const char* kScenarioUsual = "shares-50-50";

struct Options {
  std::string scenario;
  std::uint64_t seed = 1;
  std::uint64_t seconds = 0;
  std::uint64_t quantum_ms = 0;
  bool json = false;
  bool help = false;
  bool shares = false;
  std::string pods;
  std::string jobs;
  std::uint64_t gpus = 8;
  std::uint64_t runs = 200;
  std::optional<sluice::core::Order> order;
  std::optional<sluice::core::SmMode> mode;
};

int fail(const std::string& text) {
  std::fprintf(stderr, "sluice-sim: %s\n", text.c_str());
  return kUsageExit;
}

bool number_parse(std::string_view text, std::uint64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc{} && end == text.data() + text.size();
}

std::optional<sluice::core::SmMode> mode_named(std::string_view name) {
  using sluice::core::SmMode;
  if (name == "best-effort") return SmMode::kBestEffort;
  if (name == "equal") return SmMode::kEqual;
  if (name == "fixed") return SmMode::kFixed;
  return std::nullopt;
}

/// The first word given that the table of shares takes no notice of; empty = there is none.
const char* shares_leaves_out(const Options& options) {
  return options.seconds > 0      ? "--seconds"
         : options.quantum_ms > 0 ? "--quantum"
         : options.json           ? "--json"
                                  : "";
}

std::uint64_t* number_named(Options& options, std::string_view word) {
  if (word == "--seed") return &options.seed;
  if (word == "--gpus") return &options.gpus;
  if (word == "--quantum") return &options.quantum_ms;
  return word == "--runs" ? &options.runs : &options.seconds;
}

int packing_print(const Options& options) {
  constexpr std::uint64_t kGpusMax = 64;
  constexpr std::uint64_t kRunsMax = 100'000;
  if (options.gpus < 1 || options.gpus > kGpusMax) return fail("--gpus takes 1 to 64");
  if (options.runs < 1 || options.runs > kRunsMax) return fail("--runs takes 1 to 100000");
  std::ifstream file(options.pods);
  if (!file) return fail("cannot read " + options.pods);
  std::string error;
  const auto pods = sluice::sim::pods_read(file, &error);
  if (!error.empty()) return fail(options.pods + " is no table of pods: " + error);
  std::fputs(sluice::sim::packing_table(pods, static_cast<std::uint32_t>(options.gpus),
                                        options.seed, static_cast<std::uint32_t>(options.runs))
                 .c_str(),
             stdout);
  return 0;
}

std::string scenario_name(const Options& options) {
  return options.scenario.empty() ? kScenarioUsual : options.scenario;
}

/// What is to be run; null = it was said what is wrong.
std::optional<sluice::sim::Experiment> experiment_of(const Options& options) {
  if (options.jobs.empty()) {
    auto setup = sluice::sim::scenario_make(scenario_name(options), options.seed);
    if (!setup)
      fail("there is no scenario '" + options.scenario + "'; sluice-sim --help lists them");
    return setup;
  }
  std::ifstream file(options.jobs);
  std::string error;
  auto setup = file ? sluice::sim::jobs_read(file, options.seed, &error) : std::nullopt;
  if (!file)
    fail("cannot read " + options.jobs);
  else if (!setup)
    fail(options.jobs + ": " + error + "; sluice-sim --help shows one");
  return setup;
}

/// Those that take a value.
constexpr std::string_view kOptions[] = {"--scenario", "--seed",    "--seconds", "--quantum",
                                         "--policy",   "--sm-mode", "--pods",    "--jobs",
                                         "--gpus",     "--runs"};

/// 0 = go on.
int options_parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--help" || word == "-h") {
      options->help = true;
      return 0;
    }
    if (word == "--json") {
      options->json = true;
      continue;
    }
    if (word == "--shares") {
      options->shares = true;
      continue;
    }
    const bool known = std::ranges::find(kOptions, word) != std::end(kOptions);
    if (!known) return fail("there is no option " + std::string(word) + "; see sluice-sim --help");
    if (i + 1 == argc) return fail(std::string(word) + " needs a value; see sluice-sim --help");
    const std::string_view value = argv[++i];
    if (word == "--scenario")
      options->scenario = value;
    else if (word == "--jobs")
      options->jobs = value;
    else if (word == "--pods")
      options->pods = value;
    else if (word == "--policy") {
      options->order = sluice::core::order_named(value);
      if (!options->order)
        return fail("--policy takes fair, round-robin or fifo, not '" + std::string(value) + "'");
    } else if (word == "--sm-mode") {
      options->mode = mode_named(value);
      if (!options->mode)
        return fail("--sm-mode takes best-effort, equal or fixed, not '" + std::string(value) +
                    "'");
    } else if (!number_parse(value, number_named(*options, word)))
      return fail(std::string(word) + " takes a whole number, not '" + std::string(value) + "'");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (const int error = options_parse(argc, argv, &options); error != 0) return error;
  if (options.help) {
    usage_print();
    return 0;
  }
  if (options.shares + !options.scenario.empty() + !options.jobs.empty() + !options.pods.empty() >
      1)
    return fail("--scenario, --jobs, --shares and --pods exclude each other");
  if (options.shares) {
    if (const std::string word = shares_leaves_out(options); !word.empty())
      return fail("--shares takes --seed, --policy and --sm-mode beside it, not " + word);
    const auto mode = options.mode.value_or(sluice::core::SmMode::kBestEffort);
    const auto order = options.order.value_or(sluice::core::Order::kFair);
    std::fputs(sluice::sim::share_table(order, mode, options.seed).c_str(), stdout);
    return 0;
  }
  if (!options.pods.empty()) return packing_print(options);
  auto setup = experiment_of(options);
  if (!setup) return kUsageExit;
  if (options.order) setup->policy.order = *options.order;
  if (options.mode)
    for (auto& job : setup->jobs) job.sm_mode = *options.mode;
  constexpr std::uint64_t kQuantumMostMs = 10'000;
  if (options.quantum_ms > kQuantumMostMs) return fail("--quantum is at most 10000");
  if (options.quantum_ms > 0)
    setup->policy.quantum_ns = static_cast<sluice::sim::Nanos>(options.quantum_ms) * 1'000'000;
  constexpr std::uint64_t kSecondsMax = 86'400;
  if (options.seconds > kSecondsMax) return fail("--seconds is at most 86400");
  if (options.seconds > 0)
    setup->duration_ns = static_cast<sluice::sim::Nanos>(options.seconds) * 1'000'000'000;
  const sluice::sim::Result result = sluice::sim::simulate(*setup);
  const std::string name = options.jobs.empty() ? scenario_name(options) : options.jobs;
  const sluice::sim::ReportHead head{name, options.seed, setup->duration_ns};
  const std::string text = options.json ? report_json(head, result) : report_text(head, result);
  std::fputs(text.c_str(), stdout);
  return 0;
}
