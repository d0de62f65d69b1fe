// See options.h.
#include "trainer/debug/options.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "trainer/base/failure.h"
#include "trainer/job/command_line.h"

namespace sluice::train {
namespace {

constexpr int kJobsMax = 10000;

void job_flags_add(CommandLine& line, DebugOptions& o) {
  line.number("--kernels", o.kernels, "small kernels to run (outcome loop: no end)", 1, 1000000);
  line.number("--seed", o.seed, "of the numbers, the pauses, the life and the outcome");
  line.word("--outcome", o.outcome,
            "ok; fail: an illegal address; crash: the host program aborts; kill: SIGKILL; loop: "
            "until killed; random: one of these by --odds",
            {"ok", "fail", "crash", "kill", "loop", "random"});
  line.number("--gap-ms", o.gap_ms, "mean pause of the host between kernels", 0.0, 1e5);
  line.number("--elements", o.elements, "floats that the kernels work on", 1, 1 << 26);
  line.number("--life-median", o.mix.life_median_s,
              "seconds: instead of --kernels, live for a time drawn from a log-normal distribution "
              "with this median, and keep the GPU busy for a part of it (--busy)",
              0.001, 1e6);
  line.number("--life-sigma", o.mix.life_sigma, "deviation of the life's logarithm; 0 = the median",
              0.0, 5.0);
  line.exclusive({"--kernels", "--life-median"});
}

void stream_flags_add(CommandLine& line, DebugOptions& o) {
  line.number("--jobs", o.jobs,
              "start so many jobs as processes of their own, in a Poisson stream, and report how "
              "they fared; 0 = be one job",
              0, kJobsMax);
  line.number("--rate", o.rate_per_s, "jobs started per second", 0.001, 1e4);
  line.number("--patience", o.patience_s,
              "a job of --jobs that lives so many seconds longer than it should is killed", 0.1,
              1e6);
  line.text("--log", o.log, "JSON lines: start, first_result, end; of --jobs: start, job, end");
  line.flag("--quiet", o.quiet, "print nothing but errors");
}

void mix_take(const std::vector<double>& busy, const std::vector<double>& odds, DebugOptions& o) {
  const double low = busy.front(), high = busy.back();
  if (busy.size() > 2 || !(low > 0 && low <= high && high <= 1)) {
    throw Failure("--busy takes two numbers L,H with 0 < L <= H <= 1, or one");
  }
  o.mix.busy_low = low;
  o.mix.busy_high = high;
  const bool usable = std::all_of(odds.begin(), odds.end(), [](double x) { return x >= 0; });
  const double sum = std::accumulate(odds.begin(), odds.end(), 0.0);
  if (odds.size() != kOutcomes || !usable || !(sum > 0 && sum < 1e9)) {
    throw Failure("--odds takes five numbers of 0 or more: of ok, fail, crash, kill and loop");
  }
  std::copy(odds.begin(), odds.end(), o.mix.odds.begin());
  if (o.jobs > 0 && !(o.mix.life_median_s > 0)) {
    throw Failure("--jobs needs --life-median: how long its jobs live");
  }
}

}  // namespace

bool debug_options_parse(int argc, char** argv, DebugOptions* out, int* exit_code) {
  DebugOptions& o = *out;
  CommandLine line("sluice-debug",
                   "A short debugging job: a few small kernels with pauses; or many of them.");
  job_flags_add(line, o);
  std::vector<double> busy = {o.mix.busy_low, o.mix.busy_high};
  line.numbers("--busy", busy, "of a life: the GPU's part of it, drawn evenly between two numbers");
  std::vector<double> odds(o.mix.odds.begin(), o.mix.odds.end());
  line.numbers("--odds", odds,
               "of --outcome random: how often ok, fail, crash, kill and loop, in any unit");
  stream_flags_add(line, o);
  return line.parse(argc, argv, exit_code, [&] { mix_take(busy, odds, o); });
}

}  // namespace sluice::train
