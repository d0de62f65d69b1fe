#include "trainer/load/options.h"

#include <algorithm>
#include <cctype>

#include "trainer/base/failure.h"
#include "trainer/job/command_line.h"

namespace sluice::train {
namespace {

void check(const LoadOptions& options) {
  const auto in_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  if (options.kernel.empty() || std::isdigit(static_cast<unsigned char>(options.kernel[0])) != 0 ||
      !std::ranges::all_of(options.kernel, in_name))
    throw Failure("--kernel: a name of letters, digits and underscores, not '" + options.kernel +
                  "'");
  if (options.pattern != "rank") return;
  if (options.meeting.empty()) throw Failure("--pattern rank needs --meeting FILE");
  if (options.rank >= options.ranks)
    throw Failure("--rank " + std::to_string(options.rank) + " is not below --ranks " +
                  std::to_string(options.ranks));
}

}  // namespace

bool load_options_parse(int argc, char** argv, LoadOptions* out, int* exit_code) {
  CommandLine line(
      "sluice-load",
      "Launches kernels of a known length in a pattern, until its standard input is closed.\n"
      "Prints `ready` once its first kernel has run; then `done NS` whenever something has ended: "
      "the kernel time up to then;\n"
      "`request NS` for each request: from when it was meant to start to the end of its last "
      "kernel; `step NS` for each step of a gang or rank.\n"
      "On a software GPU SOFTGPU_TIMED says how long the kernel of that name takes; on hardware "
      "--rounds-per-us does.");
  constexpr int kManyUs = 100'000'000;
  line.word("--pattern", out->pattern,
            "loop: kernels, --depth of them in flight; sync: a kernel, a wait, again; bursts: "
            "--kernels, a wait, a pause; graph: graphs of --kernels, two in flight; streams: "
            "kernels of one block in --streams, four in flight each; requests: --kernels at random "
            "times, --gap-us apart; gang: one process with a rank on each of --ranks GPUs; each "
            "step is --kernels and a collective that spins; rank: one such rank; each step ends "
            "when all processes of --meeting are there; once: --kernels in each of --streams, "
            "prints `took NS` and ends; calibrate: prints this GPU's --rounds-per-us and ends",
            {"loop", "sync", "bursts", "graph", "streams", "requests", "gang", "rank", "once",
             "calibrate"});
  line.text("--kernel", out->kernel, "name of the kernel");
  line.number("--kernel-us", out->kernel_us, "how long it takes, microseconds", 1, kManyUs);
  line.number("--kernels", out->kernels, "of a burst, graph, request or step", 1, 1'000'000);
  line.number("--depth", out->depth, "kernels in flight", 1, 10'000);
  line.number("--streams", out->streams, "streams", 1, 1024);
  line.number("--pause-us", out->pause_us, "mean of the pauses, which are exponential", 0, kManyUs);
  line.number("--gap-us", out->gap_us, "mean time between two requests, which is exponential", 1,
              kManyUs);
  line.number("--host-us", out->host_us, "gang: time on the host before and after a collective", 0,
              kManyUs);
  line.number("--ranks", out->ranks, "gang, rank: how many ranks there are", 1, 64);
  line.number("--rank", out->rank, "rank: which one this process is, from 0", 0, 63);
  line.text("--meeting", out->meeting, "rank: a file that the ranks share; made where it is not");
  line.number("--seed", out->seed, "of pauses and arrivals");
  line.number("--rounds-per-us", out->rounds_per_us,
              "hardware: rounds of the kernel in a microsecond, as calibrate prints them", 0, 1e9);
  return line.parse(argc, argv, exit_code, [&] { check(*out); });
}

}  // namespace sluice::train
